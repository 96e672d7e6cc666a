"""What Kafka says: how far the sources' topics go, and how large the changelogs are. On a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from keyhole.changelog.settings import topic_name
from keyhole.clock import Clock
from keyhole.errors import InvalidConfiguration, KeyholeError

_log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 10.0


class SourceRead(NamedTuple):
    """The offset that a query's next batch begins with, of one partition of a source.

    Attributes:
        told: A process says so now; False: it was said before.
    """

    application: str
    query: str
    topic: str
    partition: int
    offset: int
    told: bool = True


@dataclass(frozen=True)
class Wanted:
    """What is to be found out. `states`: their key groups by (application, state)."""

    states: Mapping[tuple[str, str], int] = field(default_factory=dict)
    sources: Sequence[SourceRead] = ()


@dataclass(frozen=True)
class Found:
    """What was. Replaced whole.

    Attributes:
        source_lag: Records by (application, query, topic).
        changelogs: Offsets by (application, state).
        ahead: Sources' partitions, by (application, topic, partition), that ended before where a query is.
    """

    source_lag: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    changelogs: Mapping[tuple[str, str], int] = field(default_factory=dict)
    ahead: frozenset[tuple[str, str, int]] = frozenset()


_NOTHING = Found()


class Offsets(Protocol):
    """Where partitions begin and end: the part of TopicOffsets that is used here."""

    def ends(self, topics: Mapping[str, Sequence[int]], timeout_seconds: float) -> dict[tuple[str, int], int]: ...

    def starts(self, topics: Mapping[str, Sequence[int]], timeout_seconds: float) -> dict[tuple[str, int], int]: ...


def look(offsets: Offsets, wanted: Wanted, before: Found = _NOTHING) -> Found:
    """Asks Kafka for all of it. Blocks, 20 s at most. Raises KafkaUnreachable, InvalidConfiguration.

    An application has a lag only where all of its sources are known. A topic is not that is gone, or that Kafka does
    not tell of. Nor is one that was made anew: for two looks in a row it ends before where a query is.

    Args:
        before: What the last look found.
    """
    changelogs = {topic_name(*name): list(range(key_groups)) for name, key_groups in wanted.states.items()}
    topics: defaultdict[str, set[int]] = defaultdict(set)
    for read in wanted.sources:
        topics[read.topic].add(read.partition)
    ends = offsets.ends(changelogs | {topic: sorted(of) for topic, of in topics.items()}, _TIMEOUT_SECONDS)
    try:
        starts = offsets.starts(changelogs, _TIMEOUT_SECONDS)
    except InvalidConfiguration as error:
        # Kafka has answered: where it tells of no changelog, their sizes alone are unknown.
        _log.warning("Kafka does not tell of the changelogs", extra={"why": error.message})
        starts = {}
    lag: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    unknown: set[str] = set()
    ahead: set[tuple[str, str, int]] = set()
    for read in wanted.sources:
        end, place = ends.get((read.topic, read.partition)), (read.application, read.topic, read.partition)
        if end is not None and end < read.offset:
            ahead.add(place)
        if end is None or (place in ahead and place in before.ahead):
            # Of a source that was only read before, nothing is missing that readers could wait for.
            if read.told:
                unknown.add(read.application)
        else:
            lag[read.application, read.query, read.topic] += max(0, end - read.offset)
    sizes = {}
    for name, key_groups in wanted.states.items():
        parts = [(topic_name(*name), group) for group in range(key_groups)]
        if all(part in starts and part in ends for part in parts):
            sizes[name] = sum(ends[part] - starts[part] for part in parts)
    lags = {of: records for of, records in lag.items() if of[0] not in unknown}
    return Found(lags, sizes, frozenset(ahead))


class KafkaLook:
    """Looks again and again. `wanted` may be replaced by any thread; `found`, `up` and `age_seconds` read by any."""

    def __init__(self, offsets: Offsets, clock: Clock, interval_seconds: float) -> None:
        self._offsets = offsets
        self._clock = clock
        self._interval = interval_seconds
        self._closed = threading.Event()
        self._found_monotonic = float("-inf")
        self._thread = threading.Thread(target=self._run, name="keyhole-kafka-look", daemon=True)
        self.wanted = Wanted()
        self.found = Found()
        self.up: bool | None = None
        """Whether it answered when it was asked last; None: there was nothing to ask it for yet."""

    @property
    def age_seconds(self) -> float:
        """The age of what was found; infinite: nothing was."""
        return self._clock.monotonic() - self._found_monotonic

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Does not wait for a Kafka that is silent."""
        self._closed.set()

    def _run(self) -> None:
        # Soon after the first answers: they say what there is to look for.
        pause = min(1.0, self._interval)
        while not self._clock.wait(self._closed, pause):
            if not self.wanted.states and not self.wanted.sources:
                self.found, self.up, self._found_monotonic = Found(), None, float("-inf")
                continue
            pause = self._interval
            try:
                self.found = look(self._offsets, self.wanted, self.found)
                self._found_monotonic = self._clock.monotonic()
                self.up = True
            except KeyholeError as error:
                self.up = False
                _log.warning("Kafka did not tell", extra={"reason": error.reason, "why": error.message})
            except Exception:  # noqa: BLE001 - the top of a loop: it would never look again
                self.up = False
                _log.exception("looking at Kafka failed unexpectedly")
