"""What makes a replica server: it finds out by itself which key groups of an application to follow.

Replicas of one group share an application's key groups among themselves, through Kafka alone: no job need run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping

from keyhole.changelog.base import Changelog, Partition, ReplicaGroup
from keyhole.changelog.control_topic import ControlTail
from keyhole.clock import Clock
from keyhole.errors import KeyholeError
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import generations, read_control

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.25
_AGAIN_SECONDS = 1.0

Share = Mapping[StateDescriptor, frozenset[int]]
"""The key groups to follow, by state."""


class Lingering:
    """A share that shrinks late: what others take over is kept until they have had time to catch up. Pure.

    Args:
        seconds: How long a key group is still followed after it has left the share.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._left: dict[Partition, float] = {}
        self._share: frozenset[Partition] = frozenset()

    def update(self, share: frozenset[Partition], now: float) -> frozenset[Partition]:
        """What is to be followed now. `now`: monotonic seconds."""
        for partition in self._share - share:
            self._left.setdefault(partition, now)
        self._share = share
        self._left = {
            partition: since
            for partition, since in self._left.items()
            if partition not in share and now - since < self._seconds
        }
        return share | self._left.keys()


class ReplicaMember:
    """One replica's part in one application. On a thread of its own, which only waits and calls `tell`.

    Args:
        tell: Is given the whole share whenever it has changed. Called on the event loop that this was made in.
        linger_seconds: See Lingering.
    """

    def __init__(
        self,
        application: str,
        group: str,
        changelog: Changelog,
        clock: Clock,
        linger_seconds: float,
        tell: Callable[[Share], None],
    ) -> None:
        self._application = application
        self._group = group
        self._changelog = changelog
        self._clock = clock
        self._lingering = Lingering(linger_seconds)
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        # By query, its last generation; and the queries of which nothing is followed until there is a later one.
        # Both threads look at them, and change one entry, or all, at a time.
        self._generations: Mapping[str, int] = {}
        self._left: dict[str, int] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"keyhole-replica-{application}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def leave(self, query: str) -> None:
        """Follows nothing of a query until a later run of it begins, or this process begins anew. Any thread."""
        self._left[query] = self._generations.get(query, 0)

    def has_left(self, query: str) -> bool:
        """Whether nothing of it is to be followed."""
        return query in self._left

    async def close(self) -> None:
        """Leaves the group, so that the others share its part out at once; waits for the thread."""
        self._closed.set()
        await self._loop.run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                with (
                    contextlib.closing(self._changelog.control_tail()) as control,
                    contextlib.closing(self._changelog.replicas(self._group)) as replicas,
                ):
                    self._follow(control, replicas)
            except KeyholeError as error:
                _log.warning("a replica's share is not known", extra={"why": error.message})
            except Exception:  # noqa: BLE001 - the top of a loop: the replica would never learn its share again
                _log.exception("a replica's share could not be found out")
            self._clock.wait(self._closed, _AGAIN_SECONDS)

    def _follow(self, control: ControlTail, replicas: ReplicaGroup) -> None:
        records: dict[str, bytes] = {}
        descriptors: dict[str, StateDescriptor] = {}
        share: frozenset[Partition] = frozenset()
        given: Share = {}
        while not self._closed.is_set():
            changes = control.poll(0 if descriptors else _POLL_SECONDS)
            if changes:
                records = {k: v for k, v in {**records, **changes}.items() if v is not None}
                if any(name.startswith("state/") for name in changes):
                    descriptors = read_control(records, "").states
                if any(name.startswith("generation/") for name in changes):
                    self._note_runs(generations(records))
            if not descriptors:
                if given and not self._closed.is_set():  # the last query was dropped
                    given = {}
                    self._loop.call_soon_threadsafe(self._tell, given)
                continue
            found = replicas.poll({name: d.key_groups for name, d in descriptors.items()}, _POLL_SECONDS)
            share = share if found is None else found
            followed = {name: d for name, d in descriptors.items() if d.query not in self._left}
            wanted = _by_state(self._lingering.update(share, self._clock.monotonic()), followed)
            if wanted != given and not self._closed.is_set():
                given = wanted
                _log.info(
                    "follows key groups",
                    extra={
                        "application": self._application,
                        "key_groups": {descriptor.state: len(groups) for descriptor, groups in wanted.items()},
                    },
                )
                self._loop.call_soon_threadsafe(self._tell, wanted)

    def _note_runs(self, generations: Mapping[str, int]) -> None:
        self._generations = generations
        for query, left in list(self._left.items()):
            if generations.get(query, 0) > left:
                del self._left[query]


def _by_state(share: frozenset[Partition], descriptors: Mapping[str, StateDescriptor]) -> Share:
    return {
        descriptor: frozenset(part.key_group for part in share if part.state == name)
        for name, descriptor in descriptors.items()
    }
