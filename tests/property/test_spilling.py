"""An epoch that is staged through the disk is the same epoch: receipts, changelog, stores and errors."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.changelog.base import Marker, Partition, PartitionChanges
from keyhole.changelog.records import MARKER_KEY
from keyhole.encoding.row_codec import encode_row
from keyhole.errors import DuplicateKey
from keyhole.model.epoch import START, EpochStamp
from keyhole.model.state import StateDescriptor, StateKind, ValueField, ValueSchema
from services.state_server.write.commit import EpochToCommit, StateToCommit
from services.state_server.write.merge import merge_of
from services.state_server.write.spill import SpooledRows, StagingRoom
from services.state_server.write.staged import StagedAttempt
from services.state_server.write.store_write import portions
from tests.support.bench import Bench
from tests.support.states import KEY_GROUPS, content, descriptor, key, names_in

KEYS = [key(name) for group in range(KEY_GROUPS) for name in names_in(group, 3)]
PLAIN = descriptor()
RANKED = descriptor(order_by="n")
SUMS = descriptor(
    kind=StateKind.REDUCING, reducers=("sum",), value=ValueSchema(1, (ValueField("n", "bigint"),)), order_by=""
)

chunks = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.integers(-9, 9)), max_size=12)
staging = st.lists(st.tuples(chunks, st.booleans()), max_size=6)
Staging = list[tuple[list[tuple[bytes, int | None]], bool]]


def stage(attempt: StagedAttempt, of: StateDescriptor, chunks: Staging, *, on_disk: bool) -> None:
    """Goes to disk, if at all, after each chunk that says so."""
    for rows, spill in chunks:
        values = [None if n is None else encode_row(1, [n if of is SUMS else float(n)]) for _, n in rows]
        attempt.add([name for name, _ in rows], values)
        if spill and on_disk:
            attempt.spill()
    attempt.check()


def outcome(of: StateDescriptor, chunks: Staging, *, replace: bool, room: StagingRoom | None) -> list[object]:
    """What two epochs of the same rows leave behind, or the error that they are refused with."""
    bench = Bench(of)
    receipts = []
    for number in (1, 2):
        attempt = StagedAttempt("app/counts", KEY_GROUPS, 511, merge_of(of), room)
        try:
            stage(attempt, of, chunks, on_disk=room is not None)
            receipts.append(attempt.receipts())
            states = {"counts": StateToCommit([attempt], receipts[-1], replace and number == 2)}
            bench.commit(EpochToCommit(EpochStamp(number, 1, number, 0), 0, states))
        except DuplicateKey:
            return [DuplicateKey]
        finally:
            attempt.close()
    snapshot = bench.state.store.snapshot()
    positions = dict(snapshot.positions())
    groups = range(KEY_GROUPS)
    assert {group: positions.get(group, START) for group in groups} == {of: bench.state.position(of) for of in groups}
    log = [bench.log(group) for group in range(KEY_GROUPS)]
    assert all(records[-1][0] == MARKER_KEY for records in log if records)
    return [receipts, content(bench.state.store), positions, log]


@given(st.sampled_from([PLAIN, RANKED, SUMS]), staging, st.booleans())
@settings(deadline=None)
def test_the_same_rows_are_committed_whether_they_were_on_disk_or_not(
    of: StateDescriptor, chunks: Staging, replace: bool
) -> None:
    room = StagingRoom(0, 1 << 30, Path(tempfile.gettempdir()))
    in_memory = outcome(of, chunks, replace=replace, room=None)
    assert outcome(of, chunks, replace=replace, room=room) == in_memory
    assert (room.memory_bytes, room.disk_bytes) == (0, 0)


@given(st.lists(st.integers(0, 40 << 20), max_size=20))
def test_portions_hold_whole_key_groups_in_order_and_each_once(sizes: list[int]) -> None:
    def spooled(size: int) -> SpooledRows:
        rows = SpooledRows.__new__(SpooledRows)
        rows.bytes = size
        return rows

    marker = Marker(EpochStamp(1, 1, 0, 0), 0, 0)
    items = [PartitionChanges(Partition("counts", n), spooled(size), marker) for n, size in enumerate(sizes)]
    found = list(portions(items))
    assert [item for portion in found for item in portion] == items
    for portion in found:
        assert len(portion) == 1 or sum(sizes[item.partition.key_group] for item in portion) <= 16 << 20
