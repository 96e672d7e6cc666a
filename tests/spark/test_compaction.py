"""A restore reads what is alive, not what was ever written; and what followers meet in the part that was compacted."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import pytest

from keyhole.changelog.base import Marker, Partition, PartitionChanges, Reached, RestoredEpochs
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.changelog.settings import MIN_COMPACTION_LAG_MS
from keyhole.clock import SystemClock
from keyhole.model.epoch import START, EpochStamp, Position
from keyhole.model.state import StateDescriptor
from services.state_server.replica.restore import AtOnce, restore
from tests.support.changelogs import DEADLINE, grant
from tests.support.states import KEY_GROUPS, content, descriptor, hosted
from tests.support.topics import alter_topic
from tests.support.waiting import LONG_SECONDS

KEYS, EPOCHS, LATER_EPOCHS = 20_000, 100, 5
# Of a value. An epoch of a key group must be about a segment: what is in the open one is never compacted.
BYTES = 160
PARTITIONS = [Partition(descriptor().state, group) for group in range(KEY_GROUPS)]
NAMES = [
    [group.to_bytes(2, "big") + b"%06d\x00" % number for number in range(group, KEYS, KEY_GROUPS)]
    for group in range(KEY_GROUPS)
]
DELETED_IN_THE_LAST = [names[::10] for names in NAMES]
HOUR_MS = 3600 * 1000

Rows = Mapping[bytes, bytes]
Changed = Mapping[bytes, bytes] | Mapping[bytes, bytes | None]


def rows_of(epoch: int, group: int) -> dict[bytes, bytes]:
    """Every key of the group with a value that this epoch alone has, and that can't be compressed."""
    values = random.Random(f"{epoch}/{group}").randbytes(BYTES * len(NAMES[group]))
    return {name: values[BYTES * n : BYTES * (n + 1)] for n, name in enumerate(NAMES[group])}


def later_rows_of(epoch: int, group: int) -> dict[bytes, bytes]:
    return dict.fromkeys(NAMES[group][epoch % 7 :: 50], b"%d" % epoch)


def rows_after(epoch: int, group: int) -> Rows:
    """The key group as it was when the epoch had been committed; not before the last one that overwrites all."""
    rows = rows_of(EPOCHS, group)
    for name in DELETED_IN_THE_LAST[group]:
        del rows[name]
    for later in range(EPOCHS + 1, epoch + 1):
        rows |= later_rows_of(later, group)
    return rows


@dataclass(frozen=True)
class Overwritten:
    """A changelog whose every key was overwritten again and again, and which has been compacted since.

    Attributes:
        early: Where a copy is that was last there after 30 epochs.
    """

    state: StateDescriptor
    changelog: KafkaChangelog
    early: Mapping[Partition, Position]


@pytest.fixture(scope="module")
def overwritten(kafka: str) -> Overwritten:
    state = descriptor(application=f"app-{grant()}")
    changelog = KafkaChangelog(kafka, state.application)
    changelog.admin().ensure(state, DEADLINE)
    compacted_soon = {"min.cleanable.dirty.ratio": "0.01", "min.compaction.lag.ms": "0"}
    alter_topic(kafka, state.topic, {**compacted_soon, "segment.bytes": str(1 << 20)})
    with closing(changelog.writer(grant())) as writer:
        writer.open(DEADLINE)

        def write(
            epoch: int, rows: Sequence[Mapping[bytes, bytes | None]], commit_time_ms: int
        ) -> dict[Partition, int]:
            marker = Marker(EpochStamp(epoch, 1, commit_time_ms, 0), 0, 0)
            parts = [PartitionChanges(part, list(rows[part.key_group].items()), marker) for part in PARTITIONS]
            return dict(writer.commit(parts, DEADLINE))

        early: dict[Partition, Position] = {}
        long_ago_ms = time.time_ns() // 1_000_000 - HOUR_MS
        for epoch in range(1, EPOCHS + 1):
            deleted = DELETED_IN_THE_LAST if epoch == EPOCHS else [[]] * KEY_GROUPS
            rows = [rows_of(epoch, group) | dict.fromkeys(deleted[group]) for group in range(KEY_GROUPS)]
            offsets = write(epoch, rows, long_ago_ms)
            if epoch == 30:
                early = {part: Position(offset + 1, epoch, 1, 0, long_ago_ms) for part, offset in offsets.items()}
        wait_until_compacted(changelog)
        # What comes now is younger than the lag, as all is in a real one for as long.
        alter_topic(kafka, state.topic, {"min.compaction.lag.ms": str(MIN_COMPACTION_LAG_MS)})
        for epoch in range(EPOCHS + 1, EPOCHS + LATER_EPOCHS + 1):
            later = [later_rows_of(epoch, group) for group in range(KEY_GROUPS)]
            write(epoch, later, time.time_ns() // 1_000_000)
    changelog.admin().fence("another", DEADLINE)
    return Overwritten(state, changelog, early)


def records_read(changelog: KafkaChangelog, positions: Mapping[Partition, Position] | None = None) -> int:
    with closing(changelog.reader()) as reader:
        ends = reader.ends({PARTITIONS[0].state: range(KEY_GROUPS)}, DEADLINE)
        return sum(piece.records for piece in reader.read(positions or dict.fromkeys(ends, START), ends, DEADLINE))


def wait_until_compacted(changelog: KafkaChangelog) -> None:
    """The log's last, open segments are never compacted: they have about one more epoch."""
    until = time.monotonic() + 5 * LONG_SECONDS
    while (records := records_read(changelog)) > 2.5 * KEYS:
        assert time.monotonic() < until, f"the broker did not compact: {records} records are left"
        time.sleep(3)


def test_a_restore_reads_what_is_alive_however_often_it_was_overwritten(overwritten: Overwritten) -> None:
    written = EPOCHS * KEYS
    read = records_read(overwritten.changelog)
    assert KEYS <= read <= 3 * KEYS < written / 30


def test_a_restore_from_a_compacted_changelog_gives_the_last_values(overwritten: Overwritten) -> None:
    state = hosted(restored=(), of=overwritten.state)
    restore(
        {overwritten.state.state: state},
        {overwritten.state.state: range(KEY_GROUPS)},
        overwritten.changelog,
        SystemClock(),
        away_limit_ms=10**12,
        deadline_seconds=DEADLINE,
        stop=threading.Event(),
        at_once=AtOnce(),
    )
    expected: dict[bytes, bytes] = {}
    for group in range(KEY_GROUPS):
        expected |= rows_after(EPOCHS + LATER_EPOCHS, group)
    assert content(state.store) == expected


@pytest.mark.parametrize("behind", ["from the start", "after 30 epochs"])
def test_a_follower_in_the_compacted_part_is_told_so_until_every_marker_is_a_state_that_existed(
    overwritten: Overwritten, behind: str
) -> None:
    """Where markers were compacted away pieces have none, or an old one: a standby shows nothing of these."""
    early = behind != "from the start"
    copies: dict[Partition, dict[bytes, bytes]] = {
        part: rows_of(30, part.key_group) if early else {} for part in PARTITIONS
    }
    young_ms = time.time_ns() // 1_000_000 - MIN_COMPACTION_LAG_MS
    old, young, reached = 0, 0, set()
    with closing(overwritten.changelog.tail()) as tail:
        tail.follow(overwritten.early if early else dict.fromkeys(PARTITIONS, START))
        until = time.monotonic() + 4 * DEADLINE
        while len(reached) < len(PARTITIONS):
            assert time.monotonic() < until
            for item in tail.poll(1):
                copy = copies[item.partition]
                if isinstance(item, Reached):
                    reached.add(item.partition)
                    assert copy == rows_after(EPOCHS + LATER_EPOCHS, item.partition.key_group)
                    continue
                apply(copy, item)
                if item.marker is None or item.marker.stamp.commit_time_ms < young_ms:
                    old += 1
                    assert item.partition not in reached
                else:
                    young += 1
                    assert copy == rows_after(item.position.epoch, item.partition.key_group)
    assert old
    assert young
    assert old < EPOCHS * len(PARTITIONS) / 5, "most markers of the compacted part should be gone"


def apply(copy: dict[bytes, bytes], piece: RestoredEpochs) -> None:
    for name, row in piece.changes:
        if row is None:
            copy.pop(name, None)
        else:
            copy[name] = row
