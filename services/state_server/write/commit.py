"""The commit of one epoch on this server: one Kafka transaction, then one write per store. Host thread only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from keyhole.changelog.base import ChangelogWriter, Marker, Partition, PartitionChanges
from keyhole.encoding.envelope import layout_of
from keyhole.errors import NotOwner
from keyhole.model.epoch import EpochStamp
from keyhole.protocol.failpoints import Step, StepObserver
from keyhole.protocol.receipts import GroupReceipt
from services.state_server.replica.hosted import StateReplica
from services.state_server.write.merge import changes
from services.state_server.write.merging import CommitContext
from services.state_server.write.spill import ChangesRoom
from services.state_server.write.staged import StagedAttempt, amount_of, winners
from services.state_server.write.store_write import write_to_stores
from services.state_server.write.ttl_gc import StateGc

_CHECKSUM_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class StateToCommit:
    """One state's part of an epoch, as the coordinator decided it."""

    attempts: Sequence[StagedAttempt]
    receipts: Sequence[GroupReceipt]
    replace: bool


@dataclass(frozen=True)
class EpochToCommit:
    """What a Commit message asks for (state_server.proto): one epoch of a query, with the winners of each state."""

    stamp: EpochStamp
    offsets_hash: int
    states: Mapping[str, StateToCommit]
    next_watermark_ms: int = 0


@dataclass(frozen=True)
class GroupCommitted:
    """What became of one key group. `differs`: it was committed before, from other rows."""

    state: str
    key_group: int
    marker_offset: int
    checksum: int
    already: bool
    differs: bool = False


@dataclass
class _CommitPlan:
    """What is to be written, and what was written by an earlier run already.

    Attributes:
        collected: What looks for what has expired, by state.
        room: Where the changes are.
    """

    changes: list[PartitionChanges] = field(default_factory=list)
    already: list[GroupCommitted] = field(default_factory=list)
    collected: list[StateGc] = field(default_factory=list)
    room: ChangesRoom = field(default_factory=ChangesRoom)


def commit_epoch(
    epoch: EpochToCommit,
    hosted: Mapping[str, StateReplica],
    writer: ChangelogWriter,
    observer: StepObserver,
    deadline_seconds: float,
) -> list[GroupCommitted]:
    """Makes the epoch durable; the caller makes it visible.

    A key group whose store is at the epoch already was committed by an earlier run (or an earlier round): it is left
    as it is. So the same epoch may be committed any number of times, and each key group takes it once.

    Raises:
        StageLost: The staged rows are not those of the receipts, or can't be read back. Nothing was committed.
        Overloaded: No room on disk. Nothing was committed.
        NotOwner: A key group is not this server's, or not restored. Nothing was committed.
        KafkaUnreachable: Nothing was committed; may be called again.
        Fenced: Nothing was committed; the grant is worthless from now on.
        OutcomeUnknown: All key groups must be restored under a new grant.
        StoreFull: It is committed, in the changelog; the store must be restored.
    """
    plan = _CommitPlan()
    number = epoch.stamp.epoch
    try:
        for name, part in epoch.states.items():
            _plan_state(plan, epoch, hosted[name], part)
        offsets: Mapping[Partition, int] = {}
        if plan.changes:
            observer.reached(Step.SERVER_BEFORE_TRANSACTION, number)
            offsets = writer.commit(plan.changes, deadline_seconds)
            observer.reached(Step.SERVER_TRANSACTION_COMMITTED, number)
            write_to_stores(plan.changes, offsets, hosted)
            observer.reached(Step.SERVER_STORE_WRITTEN, number)
        for gc in plan.collected:
            gc.done()
        return [
            *plan.already,
            *(
                GroupCommitted(*item.partition, offsets[item.partition], item.marker.checksum, already=False)
                for item in plan.changes
            ),
        ]
    finally:
        plan.room.close()


def _plan_state(plan: _CommitPlan, epoch: EpochToCommit, state: StateReplica, part: StateToCommit) -> None:
    descriptor, number = state.descriptor, epoch.stamp.epoch
    name = descriptor.path
    staged = winners(part.attempts, part.receipts, name)
    amount = amount_of(staged.values())
    if foreign := staged.keys() - state.groups.owned:
        raise NotOwner(f"{len(foreign)} key groups of state {name} are staged here and not owned; stage them again")
    # Complete mode also empties the key groups that got no rows. And a replay may lack all rows of a key group.
    committed = {group for group in state.groups.owned if state.position(group).epoch >= number}
    context = CommitContext.of(epoch.stamp, epoch.next_watermark_ms)
    snapshot = state.store.snapshot()
    try:
        plan.room.make(rows.spool for rows in staged.values())
        # What replaces everything leaves nothing that has expired; what is run again has been through it.
        gc = StateGc(state.sweeper, snapshot, context, None if part.replace or committed else amount)
        plan.collected.append(gc)
        for group in sorted(state.groups.owned if part.replace or gc.looks else staged.keys() | committed):
            rows, position = staged.get(group), state.position(group)
            checksum = rows.checksum & _CHECKSUM_MASK if rows is not None else 0
            if position.epoch >= number:
                differs = position.epoch == number and position.checksum != checksum
                at = position.offset - 1
                plan.already.append(
                    GroupCommitted(descriptor.state, group, at, position.checksum, already=True, differs=differs)
                )
                continue
            merged = rows.merged() if rows is not None else {}
            written = changes(merged, snapshot, group, state.merge, context, replace=part.replace)
            written = gc.with_expired(group, written)
            if written:
                marker = Marker(epoch.stamp, checksum, epoch.offsets_hash, layout=layout_of(descriptor))
                # Where nothing was staged, as much may have expired as others have rows.
                kept = plan.room.keep(written, in_memory=rows is not None and rows.spool is None)
                plan.changes.append(PartitionChanges(Partition(descriptor.state, group), kept, marker))
    finally:
        snapshot.close()
