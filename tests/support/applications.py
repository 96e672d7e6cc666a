"""An application in a Kafka in memory, as its coordinator and its servers leave it behind; and one to restore into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from keyhole.changelog.base import Changelog, ChangelogWriter, Marker, Partition, PartitionChanges
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.row_codec import encode_row
from keyhole.model.epoch import START, EpochStamp
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import CompleteRecord, GenerationRecord, QueryRecord, read_control, record
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from tests.support.states import descriptor

KAFKA_ENTRY = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"events":{"0":12,"1":7}}'
FILE_ENTRY = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"logOffset":3}'

Numbers = Mapping[str, float | None]
"""By key, the value's only field; None deletes."""


@dataclass
class Application:
    """One query that feeds one state, app/counts unless told otherwise."""

    kafka: MemoryKafka = field(default_factory=MemoryKafka)
    of: StateDescriptor = field(default_factory=descriptor)
    spark_query_id: str = "4dceb7d9-171f-47ac-82ae-309038507825"
    stateful: bool = False
    entry: str = KAFKA_ENTRY

    def __post_init__(self) -> None:
        self.changelog: Changelog = MemoryChangelog(self.kafka, self.of.application)
        self.control = self.changelog.control(self.of.query)
        self.control.open(1)
        topic_id = self.changelog.admin().ensure(self.of, 1)
        self.of = msgspec.structs.replace(self.of, topic_id=topic_id)
        self.writer: ChangelogWriter = self.changelog.writer(f"grant-{self.of.state}")
        self.writer.open(1)
        self.markers = [-1] * self.of.key_groups
        self.codec = StateCodec(self.of)
        # Spark's batch 0 is epoch 3.
        self.query = QueryRecord(self.spark_query_id, base=3, first_epoch=3, stateful=self.stateful)
        self.control.append(
            record("state", self.of.state, self.of)
            | record("generation", self.of.query, GenerationRecord(2, "run"))
            | record("query", self.of.query, self.query),
            1,
        )

    def commit(self, epoch: int, numbers: Numbers, commit_time_ms: int = 0) -> None:
        """One epoch, all servers have it; it is not complete yet."""
        rows = {
            self.codec.storage_key(key): None if number is None else encode_row(1, [number])
            for key, number in numbers.items()
        }
        self.commit_rows(epoch, rows, commit_time_ms)

    def commit_rows(self, epoch: int, rows: Mapping[bytes, bytes | None], commit_time_ms: int = 0) -> None:
        """The same with rows as they are stored, by storage key."""
        changes: dict[int, list[tuple[bytes, bytes | None]]] = {}
        for storage_key, row in rows.items():
            changes.setdefault(int.from_bytes(storage_key[:2], "big"), []).append((storage_key, row))
        marker = Marker(EpochStamp(epoch, 2, commit_time_ms or 1000 * epoch, 500 * epoch), epoch, epoch)
        part = [PartitionChanges(Partition(self.of.state, group), of, marker) for group, of in changes.items()]
        for partition, offset in self.writer.commit(part, 1).items():
            self.markers[partition.key_group] = offset

    def complete(self, epoch: int) -> None:
        self.control.append(
            record(
                "complete",
                self.of.query,
                CompleteRecord(
                    epoch, 2, 1000 * epoch, 500 * epoch, epoch, {self.of.state: list(self.markers)}, self.entry
                ),
            ),
            1,
        )

    def run(self, epoch: int, numbers: Numbers) -> None:
        """Commit, and complete."""
        self.commit(epoch, numbers)
        self.complete(epoch)


def numbers_of(kafka: MemoryKafka, of: StateDescriptor) -> dict[str, float]:
    """What a server would restore: the state by key, each key in its key group."""
    codec = StateCodec(of)
    found = {}
    for storage_key, row in rows_of(kafka, of).items():
        (key,) = codec.key(storage_key)
        assert codec.storage_key(key) == storage_key
        found[str(key)] = codec.decode_row(row).n
    return found


def rows_of(kafka: MemoryKafka, of: StateDescriptor) -> dict[bytes, bytes]:
    """The same, as it is stored."""
    reader = MemoryChangelog(kafka, of.application).reader()
    ends = reader.ends({of.state: range(of.key_groups)}, 1)
    rows: dict[bytes, bytes | None] = {}
    for piece in reader.read(dict.fromkeys(ends, START), ends, 1):
        rows |= dict(piece.changes)
    return {storage_key: row for storage_key, row in rows.items() if row is not None}


def control_of(kafka: MemoryKafka, application: str) -> Mapping[str, bytes]:
    """The control topic's records."""
    return MemoryChangelog(kafka, application).control("test").read(1)


def next_epoch(kafka: MemoryKafka, application: str, query: str = "main") -> int:
    """The epoch that the next run of the query begins with."""
    control = read_control(control_of(kafka, application), query)
    assert control.complete is not None
    return control.complete.epoch + 1
