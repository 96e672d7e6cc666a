"""How an epoch that is committed in the changelog is written to the stores. Host thread only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from keyhole.changelog.base import Partition, PartitionChanges
from keyhole.changelog.records import position_after
from keyhole.errors import OutcomeUnknown, StageLost
from keyhole.stores.base import Advance, Batch
from services.state_server.replica.hosted import StateReplica
from services.state_server.write.spill import SpooledRows
from services.state_server.write.watched_write import befores_of, watched_epochs

# How much of what was on disk is in memory while it is written to a store; one key group may be more.
_WRITE_BYTES = 16 << 20


def write_to_stores(
    written: Sequence[PartitionChanges], offsets: Mapping[Partition, int], hosted: Mapping[str, StateReplica]
) -> None:
    """Brings the stores to the epoch.

    Args:
        written: Ascending by key group within each state.
        offsets: Of the markers, by partition.

    Raises:
        OutcomeUnknown, StoreFull: Rows on disk can't be read back, though they could a moment ago, or a store takes no
            more. The changelog has them; each key group is wholly at this epoch or wholly at the one before.
    """
    for name, state in hosted.items():
        for items in portions([item for item in written if item.partition.state == name]):
            try:
                _apply(state, items, offsets)
            except StageLost as error:
                epoch = items[0].marker.stamp.epoch
                raise OutcomeUnknown(f"epoch {epoch} is committed, and could not be written to a store") from error


def portions(written: Sequence[PartitionChanges]) -> Iterator[list[PartitionChanges]]:
    """What is written to a store in one step: all that is in memory, and what is on disk in portions of key groups.

    Several steps are as good as one. A key group's rows and its position are in the same step. So wherever a crash
    comes in between, each key group is wholly at this epoch or wholly at the one before; the changelog, which has the
    epoch already, brings it up. Readers see none of it: they hold the snapshot that was published last, until the host
    publishes one that has all.
    """
    in_memory = [item for item in written if not isinstance(item.changes, SpooledRows)]
    if in_memory:
        yield in_memory
    portion: list[PartitionChanges] = []
    size = 0
    for item in written:
        if isinstance(item.changes, SpooledRows):
            if portion and size + item.changes.bytes > _WRITE_BYTES:
                yield portion
                portion, size = [], 0
            portion.append(item)
            size += item.changes.bytes
    if portion:
        yield portion


def _apply(state: StateReplica, items: Sequence[PartitionChanges], offsets: Mapping[Partition, int]) -> None:
    advances = {item.partition.key_group: _advance(state, item, offsets[item.partition]) for item in items}
    puts: list[tuple[bytes, bytes]] = []
    deletes: list[bytes] = []
    watched = watched_epochs(state, items, advances)
    # Storage keys begin with their key group, and the groups are ascending: so are all the keys.
    for key, row in (change for item in items for change in item.changes):
        if row is None:
            deletes.append(key)
        else:
            puts.append((key, row))
    befores = None if state.indexes is None else befores_of(watched)
    state.apply(Batch(puts=puts, deletes=deletes, advances=advances), befores)
    state.changed += watched


def _advance(state: StateReplica, item: PartitionChanges, marker_offset: int) -> Advance:
    return Advance(state.position(item.partition.key_group), position_after(item.marker, marker_offset))
