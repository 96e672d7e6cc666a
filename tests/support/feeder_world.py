"""A source topic, an updates topic and feeders between them, without Kafka: any of them dies, at any call it makes.

What a feeder sends is under way until the world delivers it, also where the feeder is dead by then. Each partition's
records arrive in their order, as those of an idempotent producer do.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from keyhole.errors import Fenced
from keyhole.feed.fed_topics import Done
from keyhole.feed.feed_options import FeedOptions, RecordFormat, describe, key_columns, reduced_columns
from keyhole.feed.feeder import Feeder
from keyhole.feed.mapping import RecordMapper
from keyhole.feed.positions import SourceDescription, deleted_unread
from keyhole.feed.record_encoding import JSON, RecordEncoding
from keyhole.feed.rows import SourceRecord
from keyhole.protocol.seen import SeenRows
from keyhole.protocol.updates import BoundaryRecord, EndRecord, UpdateRecord, decode
from keyhole.testing.clock import ManualClock

TOPIC = "orders"
KEY_GROUPS = 3
DEAD = -1
"""Where dead letters go, among the partitions of the updates topic."""

_SUMMED, _REDUCERS = reduced_columns(["n:bigint=sum"])
STATE = describe(FeedOptions("app", "s", key_columns(["id"]), _SUMMED, _REDUCERS, key_groups=KEY_GROUPS))


class Killed(BaseException):
    """The process is gone, in the middle of a call."""


@dataclass
class World:
    """What outlives feeders.

    Attributes:
        source: By partition, the values of its records.
        starts: By partition, what is still there.
        earlier: By id, what `expected` was of the topics of the source's name that are gone.
        unfed: By partition, what was gone from the source before the updates topic was there.
        logs: By partition of the updates topic, values. Under DEAD, dead letters: id, partition and offset as JSON.
        log_start: Of the updates topic's partitions; what is below was deleted.
        holder: Which feeder has the lease.
    """

    source: list[list[bytes]] = field(default_factory=lambda: [[]])
    starts: list[int] = field(default_factory=lambda: [0])
    topic_id: str = "id-1"
    earlier: dict[str, dict[tuple[int, int], int]] = field(default_factory=dict)
    unfed: dict[int, int] = field(default_factory=dict)
    updates_id: str = "updates-1"
    logs: dict[int, list[bytes]] = field(default_factory=lambda: {at: [] for at in range(-1, KEY_GROUPS)})
    log_start: int = 0
    holder: object = None
    clock: ManualClock = field(default_factory=ManualClock)

    def append(self, partition: int, value: object) -> None:
        self.source[partition].append(value if isinstance(value, bytes) else json.dumps(value).encode())

    def add_partition(self) -> None:
        self.source.append([])
        self.starts.append(0)

    def make_anew(self) -> None:
        """The source topic is deleted, and made again under its name."""
        self.earlier[self.topic_id] = self.expected()
        self.source, self.starts, self.topic_id, self.unfed = [[]], [0], self.topic_id + "x", {}

    def make_updates_anew(self) -> None:
        """The updates topic is deleted, and made again under its name; the state is dropped. Dead letters stay."""
        self.logs |= {group: [] for group in range(KEY_GROUPS)}
        self.log_start, self.updates_id = 0, self.updates_id + "x"
        self.earlier.clear()
        self.unfed = dict(enumerate(self.starts))

    def ended(self, group: int) -> set[str]:
        """The sources that have ended in a partition of the updates topic."""
        return {record.source for value in self.logs[group] if isinstance(record := decode(value), EndRecord)}

    def sent(self) -> dict[tuple[int, int], list[tuple[int, UpdateRecord]]]:
        """By partition and offset of the source, where its update stands, each time; of topics that are gone, too."""
        found: dict[tuple[int, int], list[tuple[int, UpdateRecord]]] = {}
        for group in range(KEY_GROUPS):
            for value in self.logs[group]:
                if isinstance(record := decode(value), UpdateRecord):
                    found.setdefault((record.partition, record.offset), []).append((group, record))
        return found

    def counted(self, topic_id: str = "") -> dict[tuple[int, int], int]:
        """By partition and offset of the source, its amount: each row as often as owners count it.

        Args:
            topic_id: Of a topic of the source's name that is gone; empty: of the one there is.
        """
        found: dict[tuple[int, int], int] = {}
        for group in range(KEY_GROUPS):
            seen = SeenRows()
            for at, value in enumerate(self.logs[group]):
                record = decode(value)
                if isinstance(record, BoundaryRecord):
                    seen.reach(record)
                elif isinstance(record, EndRecord):
                    seen.end(record.source)
                elif isinstance(record, UpdateRecord) and seen.take(record.row, at):
                    if record.source != (topic_id or self.topic_id):
                        continue
                    assert record.value is not None
                    name = record.partition, record.offset
                    found[name] = found.get(name, 0) + record.value[0]
        return found

    def expected(self) -> dict[tuple[int, int], int]:
        """What `counted` must come to, once all is fed."""
        return {
            (partition, offset): fields["n"]
            for partition, records in enumerate(self.source)
            for offset, value in enumerate(records)
            if offset >= self.unfed.get(partition, 0) and "n" in (fields := json.loads(value))
        }

    def rejected(self) -> set[tuple[int, int]]:
        """By partition and offset of the source, what stands among the dead letters."""
        letters = map(json.loads, self.logs[DEAD])
        return {(partition, offset) for topic_id, partition, offset in letters if topic_id == self.topic_id}

    def unreadable(self) -> set[tuple[int, int]]:
        """What `rejected` must come to, once all is fed."""
        return {
            (partition, offset)
            for partition, records in enumerate(self.source)
            for offset, value in enumerate(records)
            if "n" not in json.loads(value)
        }


class FeederProcess:
    """One feeder, with what it has of the world: its place in the source, and what it has sent.

    Attributes:
        calls_left: It dies in the call after so many; None: in none.
        updates_id: Of the updates topic, when it was opened.
        source_id: Of the source, when it was described.
        reasons: Of its dead letters.
        encoding: Of the source's records.
    """

    encoding: RecordEncoding = JSON

    def __init__(
        self,
        world: World,
        kind: type[Feeder] = Feeder,
        *,
        from_earliest: bool = False,
        topic_id: str = "",
        strict: bool = False,
    ) -> None:
        self.world = world
        self.calls_left: int | None = None
        self.underway: dict[int, deque[tuple[bytes, Done]]] = {}
        self._acknowledged: list[Done] = []
        self._positions: dict[int, int] = {}
        self.updates_id = world.updates_id
        self.source_id = ""
        self.reasons: list[str] = []
        self.feeder = kind(
            TOPIC,
            lambda source: RecordMapper(STATE, RecordFormat.JSON, source, self.encoding),
            _Source(self),
            _Updates(self),
            _DeadLetters(self),
            _Lease(self),
            world.clock,
            from_earliest=from_earliest,
            topic_id=topic_id,
            strict=strict,
        )

    def call(self) -> None:
        """Stands before each call to Kafka."""
        if self.calls_left is not None:
            if not self.calls_left:
                raise Killed
            self.calls_left -= 1

    def describe(self) -> SourceDescription:
        self.source_id = self.world.topic_id
        return SourceDescription(TOPIC, self.world.topic_id, dict(enumerate(self.world.starts)))

    def read_from(self, positions: Mapping[int, int]) -> None:
        self._positions |= positions

    def read(self) -> list[SourceRecord]:
        """A few records of each partition."""
        found = []
        for partition, position in self._positions.items():
            start = self.world.starts[partition]
            if position < start:
                raise deleted_unread(TOPIC, partition, position, start)
            records = self.world.source[partition][position : position + 2]
            found += [SourceRecord(partition, position + at, None, value) for at, value in enumerate(records)]
            self._positions[partition] = position + len(records)
        return found

    def send(self, partition: int, value: bytes, done: Done) -> None:
        self.underway.setdefault(partition, deque()).append((value, done))

    def deliver(self, partition: int, most: int = 1_000_000) -> None:
        """What is under way arrives; the feeder hears of it the next time it looks."""
        for _ in range(min(most, len(self.underway.get(partition, ())))):
            value, done = self.underway[partition].popleft()
            self.world.logs[partition].append(value)
            self._acknowledged.append(done)

    def serve(self, *, waits: bool) -> None:
        if waits:
            for partition in sorted(self.underway):
                self.deliver(partition)
        acknowledged, self._acknowledged = self._acknowledged, []
        for done in acknowledged:
            done()

    def drain(self) -> None:
        """Feeds all there is, to the last boundary."""
        while self.feeder.step(0.0) or self.feeder.waiting:
            self.serve(waits=True)
        self.feeder.finish()


class _Port:
    def __init__(self, process: FeederProcess) -> None:
        self._process = process


class _Source(_Port):
    def describe(self) -> SourceDescription:
        self._process.call()
        return self._process.describe()

    def look(self) -> tuple[str, int]:
        self._process.call()
        return self._process.world.topic_id, len(self._process.world.source)

    def read_from(self, positions: Mapping[int, int]) -> None:
        self._process.call()
        self._process.read_from(positions)

    def poll(self, seconds: float) -> Sequence[SourceRecord]:
        self._process.call()
        return self._process.read()


class _Updates(_Port):
    partitions = KEY_GROUPS
    most_bytes = 1_000

    @property
    def topic_id(self) -> str:
        return self._process.updates_id

    def look(self) -> str:
        self._process.call()
        return self._process.world.updates_id

    def bounds(self, partition: int) -> tuple[int, int]:
        self._process.call()
        return self._process.world.log_start, len(self._process.world.logs[partition])

    def read(self, partition: int, start: int, end: int) -> Iterable[bytes | None]:
        self._process.call()
        return self._process.world.logs[partition][start:end]

    def send(self, partition: int, value: bytes, done: Done) -> None:
        self._process.call()
        self._process.send(partition, value, done)

    def poll(self, seconds: float) -> None:
        self._process.call()
        self._process.serve(waits=seconds > 0)


class _DeadLetters(_Port):
    def send(self, record: SourceRecord, reason: str, done: Done) -> None:
        self._process.call()
        self._process.reasons.append(reason)
        letter = [self._process.source_id, record.partition, record.offset]
        self._process.send(DEAD, json.dumps(letter).encode(), done)

    def poll(self, seconds: float) -> None:
        self._process.call()


class _Lease(_Port):
    def take(self) -> None:
        self._process.call()
        self._process.world.holder = self._process

    def keep(self, ends: Mapping[int, int]) -> None:
        self._process.call()
        if self._process.world.holder is not self._process:
            raise Fenced("another feeder has begun")
