"""An application with a state of every kind, on any changelog, as its coordinators and servers leave it behind."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from keyhole.changelog.base import Changelog, Marker, Partition, PartitionChanges, RestoredEpochs
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.envelope import Aggregate
from keyhole.encoding.row_codec import encode_row
from keyhole.model.epoch import START, EpochStamp
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, TtlClock, ValueField, ValueSchema
from keyhole.protocol.batch_decisions import following, written
from keyhole.protocol.control import CompleteRecord, GenerationRecord, QueryRecord, read_control, record
from tests.support.applications import KAFKA_ENTRY
from tests.support.states import descriptor

DEADLINE = 60.0
MAIN, RULES = "main", "rules"
_SPARK_IDS = {MAIN: "4dceb7d9-171f-47ac-82ae-309038507825", RULES: "776e40aa-2b40-4b9b-b2b2-69c065f33ccf"}
_GENERATION = 2

_NUMBER = ValueField("n", "double")
_HOURS = (KeyColumn("hour", KeyType.TIMESTAMP), KeyColumn("place", KeyType.STRING))
_HOUR = datetime(2026, 11, 21, 10, tzinfo=UTC)
_READ = following(None, 0, b"4", "3", 0)
_STAMP = (4_000_000_000_000).to_bytes(8, "big")

STATES = {
    "values": descriptor(ttl_ms=1000),
    "evolved": descriptor(
        value=ValueSchema(2, (_NUMBER, ValueField("more", "bigint"))), earlier=(ValueSchema(1, (_NUMBER,)),)
    ),
    "maps": descriptor(kind=StateKind.MAP, map_key=_HOURS, ttl_ms=1000),
    "lists": descriptor(kind=StateKind.LIST, max_length=5, ttl_ms=1000, ttl_clock=TtlClock.EVENT_TIME),
    "sums": descriptor(kind=StateKind.REDUCING, reducers=("sum",)),
    "aggregates": descriptor(kind=StateKind.AGGREGATING, ttl_ms=1000),
    "operator": descriptor(kind=StateKind.AGGREGATING, key=(KeyColumn("subtask", KeyType.INT),)),
    "rules": descriptor(kind=StateKind.BROADCAST, key_groups=1, query=RULES),
}

Entries = dict[tuple[object, ...], bytes]
"""By the values of key and map key, what is stored."""
Content = dict[str, tuple[StateDescriptor, dict[bytes, bytes]]]
"""By state, what it is, but for the topic's id, and its rows by storage key."""


def entries(name: str, epoch: int) -> Entries:
    """What an epoch writes of a state: other values than any other epoch."""
    of = STATES[name]
    keys: Iterable[object] = range(6) if name == "operator" else (f"key-{number}" for number in range(6))
    suffixes: list[tuple[object, ...]] = [()]
    if of.kind is StateKind.MAP:
        suffixes = [(_HOUR, "a\0b"), (_HOUR, ""), (_HOUR.replace(hour=11), "c")]
    if of.kind is StateKind.LIST:
        suffixes = [(7,), (8,)]
    made: Entries = {}
    for number, key in enumerate(keys):
        for place, suffix in enumerate(suffixes):
            value = 100.0 * epoch + 10 * number + place
            # Every other key was last written before the schema changed.
            new = name == "evolved" and number % 2 == 1
            plain = encode_row(2, [value, epoch]) if new else encode_row(1, [value])
            stored = plain
            if of.kind is StateKind.AGGREGATING:
                stored = Aggregate(epoch, plain, f"sum {value}".encode(), None).encode()
            made[key, *suffix] = _STAMP + stored if of.ttl_ms else stored
    return made


def encoded(of: StateDescriptor, rows: Mapping[tuple[object, ...], bytes | None]) -> dict[bytes, bytes | None]:
    """By storage key."""
    codec = StateCodec(of)
    return {codec.storage_key(values if len(values) > 1 else values[0]): row for values, row in rows.items()}


def expected(renamed: StateDescriptor, name: str) -> dict[bytes, bytes]:
    """The rows of the complete epoch: each state's first key has been deleted."""
    kept = {key: row for key, row in entries(name, 4).items() if key not in _deleted(name)}
    return {key: row for key, row in encoded(renamed, kept).items() if row is not None}


def _deleted(name: str) -> set[tuple[object, ...]]:
    return {next(iter(entries(name, 4)))}


def write_application(changelog: Changelog, application: str, checkpoint: Path) -> None:
    """Epochs 3 and 4 are complete; of epoch 5 there are rows in the changelogs, and it is not.

    Args:
        checkpoint: Where that of the query `main` is made.
    """
    states = {
        name: msgspec.structs.replace(of, application=application, state=name, key_groups=min(2, of.key_groups))
        for name, of in STATES.items()
    }
    admin = changelog.admin()
    with ExitStack() as stack:
        control = stack.enter_context(closing(changelog.control(MAIN)))
        control.open(DEADLINE)
        writer = stack.enter_context(closing(changelog.writer(f"grant.{application}")))
        writer.open(DEADLINE)
        records: dict[str, bytes | None] = {}
        for name, of in states.items():
            records |= record("state", name, msgspec.structs.replace(of, topic_id=admin.ensure(of, DEADLINE)))
        for query, spark in _SPARK_IDS.items():
            # Spark's batch 0 is epoch 3.
            records |= record("query", query, QueryRecord(spark, base=3, first_epoch=3, stateful=query == MAIN))
            records |= record("generation", query, GenerationRecord(_GENERATION, "run"))
        control.append(records, DEADLINE)
        for epoch in (3, 4, 5):
            marker = Marker(EpochStamp(epoch, _GENERATION, int(1000 * time.time()), 500 * epoch), epoch, epoch)
            markers: dict[str, list[int]] = {name: [-1] * of.key_groups for name, of in states.items()}
            changes: dict[Partition, list[tuple[bytes, bytes | None]]] = {
                Partition(name, group): [] for name, of in states.items() for group in range(of.key_groups)
            }
            for name, of in states.items():
                gone = dict.fromkeys(_deleted(name)) if epoch == 4 else {}
                for key, row in encoded(of, entries(name, epoch) | gone).items():
                    changes[Partition(name, int.from_bytes(key[:2], "big"))].append((key, row))
            written = [PartitionChanges(part, rows, marker) for part, rows in changes.items()]
            for part, offset in writer.commit(written, DEADLINE).items():
                markers[part.state][part.key_group] = offset
            if epoch < 5:
                control.append(_complete(states, marker, markers), DEADLINE)
    _write_checkpoint(application, checkpoint)


def _complete(
    states: Mapping[str, StateDescriptor], marker: Marker, markers: Mapping[str, list[int]]
) -> dict[str, bytes | None]:
    records: dict[str, bytes | None] = {}
    for query in _SPARK_IDS:
        complete = CompleteRecord.of(
            marker.stamp,
            marker.offsets_hash,
            {name: of for name, of in markers.items() if states[name].query == query},
            KAFKA_ENTRY,
        )
        records |= record("complete", query, complete)
    return records


def _write_checkpoint(application: str, folder: Path) -> None:
    """Spark's, as of batch 1; of stores that hold nothing that can be read."""
    for name, text in checkpoint_files(application).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def checkpoint_files(application: str) -> dict[str, str]:
    """By name, what is in the checkpoint of the query `main`."""
    return {
        "metadata": f'{{"id":"{_SPARK_IDS[MAIN]}"}}',
        "offsets/0": KAFKA_ENTRY,
        "offsets/1": KAFKA_ENTRY,
        "commits/0": 'v1\n{"nextBatchWatermarkMs":1500}',
        "commits/1": 'v1\n{"nextBatchWatermarkMs":2000}',
        "sources/0/0": "where it began",
        "state/0/0/1.delta": "the first changes",
        "state/0/0/2.delta": "the second changes",
        # The second batch has read what the first one had.
        f"keyhole/broadcast/{application}.rules/0": written(_READ).decode(),
        f"keyhole/broadcast/{application}.rules/1": written(following(_READ, 1, b"4", "4", 0)).decode(),
        "keyhole/subtasks/operator/1": "6",
    }


def content(changelog: Changelog) -> tuple[Content, dict[str, int]]:
    """What the application holds, and by query the complete epoch, whose marker is each key group's last record."""
    # Kafka answers who commits before others can read it.
    records = changelog.control("test").read_decided(DEADLINE)
    states = read_control(records, "").states
    complete = {query: read_control(records, query).complete for query in {of.query for of in states.values()}}
    rows: dict[str, dict[bytes, bytes | None]] = {name: {} for name in states}
    last: dict[Partition, Marker | None] = {}
    with closing(changelog.reader()) as reader:
        ends = reader.ends({name: range(of.key_groups) for name, of in states.items()}, DEADLINE)

    def read(name: str) -> list[RestoredEpochs]:
        upto = {part: end for part, end in ends.items() if part.state == name}
        with closing(changelog.reader()) as reader:
            return list(reader.read(dict.fromkeys(upto, START), upto, DEADLINE))

    with ThreadPoolExecutor(len(states)) as pool:
        for piece in (piece for pieces in pool.map(read, states) for piece in pieces):
            rows[piece.partition.state] |= dict(piece.changes)
            last[piece.partition] = piece.marker
    for part, end in ends.items():
        whole, marker = complete[states[part.state].query], last[part]
        assert whole is not None
        assert marker is not None
        assert (marker.stamp.epoch, marker.stamp.generation) == (whole.epoch, whole.generation)
        # After the marker comes the end of its transaction. In the real-time lane the record names no markers.
        assert marker.feed is not None or whole.markers[part.state][part.key_group] == end - 2
    found = {
        name: (
            msgspec.structs.replace(of, topic_id=""),
            {key: row for key, row in rows[name].items() if row is not None},
        )
        for name, of in states.items()
    }
    return found, {query: whole.epoch for query, whole in complete.items() if whole is not None}
