"""Follows what a query's owners write: the changelogs of some key groups, and the query's records in the control topic.

Threads: a follower has one of its own, which reads and waits; whatever it has read goes through `deliver` and
`prepare`, which block it until the host has taken it in. So a slow store slows the follower instead of filling memory.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from keyhole.changelog.base import Changelog, ChangelogTail, Partition, Reached, RestoredEpochs, by_state
from keyhole.changelog.control_topic import ControlTail
from keyhole.clock import Clock
from keyhole.errors import KeyholeError
from keyhole.model.epoch import Position
from keyhole.protocol.control import QueryControl, read_control

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_AGAIN_SECONDS = 1.0
_KAFKA_DEADLINE_SECONDS = 10.0
_JOIN_SECONDS = 3.0


@dataclass(frozen=True)
class Subscription:
    """What is to be followed: key groups by state. `number` grows with every one of a host."""

    number: int
    groups: Mapping[str, frozenset[int]]


@dataclass(frozen=True)
class Delivery:
    """What has come. `subscription`: its number; `control`: the query's records, where they have changed."""

    subscription: int
    items: Sequence[RestoredEpochs | Reached]
    control: QueryControl | None


Prepare = Callable[[int, Mapping[Partition, int | None]], Mapping[Partition, Position] | None]
"""(the subscription's number, the changelogs' ends) -> where to begin, by partition. None: it is out of date.

An end of None: the partition is followed already.
"""


class Following(Protocol):
    """What a host needs of a follower."""

    def start(self) -> None: ...

    def subscribe(self, subscription: Subscription) -> None:
        """Replaces the one before. Any thread."""

    def close(self) -> None:
        """Returns at once; it ends at its next step. `join` waits for that."""

    def join(self) -> None:
        """Blocks; not on the event loop, which it may be waiting for."""


MakeFollower = Callable[[Changelog, str, Prepare, Callable[[Delivery], None], Clock], Following]
"""(changelog, query, prepare, deliver, clock); `prepare` and `deliver` block, and are called by the follower."""


class Follower:
    """Following, on a thread. See the module's text."""

    def __init__(
        self,
        changelog: Changelog,
        query: str,
        prepare: Prepare,
        deliver: Callable[[Delivery], None],
        clock: Clock,
    ) -> None:
        self._changelog = changelog
        self._query = query
        self._prepare = prepare
        self._deliver = deliver
        self._clock = clock
        self._wanted = Subscription(0, {})
        self._current = Subscription(0, {})
        self._followed: frozenset[Partition] = frozenset()
        self._records: dict[str, bytes] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"keyhole-follow-{query}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def subscribe(self, subscription: Subscription) -> None:
        self._wanted = subscription

    def close(self) -> None:
        self._closed.set()

    def join(self) -> None:
        # Not for ever: it may be waiting for a Kafka that is away, and changes nothing any more.
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                with contextlib.closing(self._changelog.control_tail()) as control:
                    self._follow(control)
            except KeyholeError as error:
                _log.warning("following was broken off", extra={"query": self._query, "why": error.message})
            except Exception:  # noqa: BLE001 - the top of a loop: a follower that ends would leave its copies behind
                _log.exception("following failed unexpectedly", extra={"query": self._query})
            self._begin_anew()
            self._clock.wait(self._closed, _AGAIN_SECONDS)

    def _begin_anew(self) -> None:
        """Next time all is followed from where the stores are then."""
        self._current, self._followed, self._records = Subscription(0, {}), frozenset(), {}

    def _follow(self, control: ControlTail) -> None:
        tail: ChangelogTail | None = None
        try:
            while not self._closed.is_set():
                if self._wanted.number != self._current.number:
                    tail = self._begin(self._wanted, tail)
                if tail is None:
                    self._hand_over((), control.poll(_POLL_SECONDS))
                    continue
                items = tail.poll(_POLL_SECONDS)
                self._hand_over(items, control.poll(0))
        finally:
            if tail is not None:
                tail.close()

    def _begin(self, subscription: Subscription, tail: ChangelogTail | None) -> ChangelogTail | None:
        wanted = {Partition(state, group) for state, groups in subscription.groups.items() for group in groups}
        ends: dict[Partition, int | None] = dict.fromkeys(wanted & self._followed)
        # Of what is followed already nothing is asked: that would stand still while Kafka is waited for.
        if new := wanted - self._followed:
            with contextlib.closing(self._changelog.reader()) as reader:
                ends |= reader.ends(by_state(sorted(new)), _KAFKA_DEADLINE_SECONDS)
        positions = self._prepare(subscription.number, ends) if wanted else {}
        self._current = subscription
        if positions is None:  # another subscription is coming
            return tail
        if tail is None and positions:
            tail = self._changelog.tail()
        if tail is not None:
            tail.follow(positions)
        self._followed = frozenset(positions)
        return tail

    def _hand_over(self, items: Sequence[RestoredEpochs | Reached], changes: Mapping[str, bytes | None] | None) -> None:
        if items or changes:
            self._deliver(Delivery(self._current.number, items, self._taken_in(changes or {})))

    def _taken_in(self, changes: Mapping[str, bytes | None]) -> QueryControl | None:
        for name, value in changes.items():
            if value is None:
                self._records.pop(name, None)
            else:
                self._records[name] = value
        return read_control(self._records, self._query) if changes else None
