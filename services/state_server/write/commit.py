"""The commit of one epoch on this server: one Kafka transaction, then one write per store. Host thread only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from keyhole.changelog.base import ChangelogWriter, Marker, Partition, PartitionChanges
from keyhole.encoding.envelope import layout_of
from keyhole.errors import NotOwner, OutcomeUnknown, StageLost
from keyhole.model.epoch import EpochStamp, Position
from keyhole.protocol.failpoints import Step, StepObserver
from keyhole.protocol.receipts import GroupReceipt
from keyhole.stores.base import Snapshot
from services.state_server.replica.hosted import StateReplica
from services.state_server.write.merge import changes
from services.state_server.write.merging import CommitContext, EntryChange
from services.state_server.write.spill import Spool
from services.state_server.write.staged import StagedAttempt, StagedGroup, winners
from services.state_server.write.store_write import write_to_stores
from services.state_server.write.ttl_gc import GcPass, Sweeper, Written, beside


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
class _Plan:
    """What is to be written, and what was written by an earlier run already.

    Attributes:
        passes: Of the states in which it was looked for what has expired.
        spool: Holds the changes of key groups, where rows of the epoch are on disk.
    """

    changes: list[PartitionChanges] = field(default_factory=list)
    already: list[GroupCommitted] = field(default_factory=list)
    passes: list[tuple[Sweeper, GcPass]] = field(default_factory=list)
    spool: Spool | None = None

    def make_room(self, staged: Iterable[StagedGroup]) -> None:
        """On disk, where these rows are: memory holds the changes of one key group at a time."""
        if self.spool is None:
            self.spool = next((rows.spool.for_changes() for rows in staged if rows.spool is not None), None)

    def kept(self, changes: list[EntryChange], rows: StagedGroup | None) -> Iterable[EntryChange]:
        """The changes, where the rows are that they were made of.

        Args:
            rows: None: there are none, and something has expired; it may be as much as others have rows.
        """
        in_memory = self.spool is None or (rows is not None and rows.spool is None)
        return changes if self.spool is None or in_memory else self.spool.keep(changes)

    def gc_pass(
        self, sweeper: Sweeper, snapshot: Snapshot, context: CommitContext, written: Written | None
    ) -> GcPass | None:
        """Begins to look for what has expired; `written`: None: not in this epoch."""
        if written is None:
            sweeper.begin_anew()
            return None
        gc = sweeper.begin(snapshot, context, written)
        if gc is not None:
            self.passes.append((sweeper, gc))
        return gc

    def close(self) -> None:
        if self.spool is not None:
            self.spool.close()


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
    plan = _Plan()
    try:
        for name, part in epoch.states.items():
            _plan_state(plan, epoch, hosted[name], part)
        committed = plan.already
        if plan.changes:
            committed = committed + _carry_out(plan, epoch, hosted, writer, observer, deadline_seconds)
        for sweeper, gc in plan.passes:
            sweeper.done(gc)
        return committed
    finally:
        plan.close()


def _carry_out(
    plan: _Plan,
    epoch: EpochToCommit,
    hosted: Mapping[str, StateReplica],
    writer: ChangelogWriter,
    observer: StepObserver,
    deadline_seconds: float,
) -> list[GroupCommitted]:
    observer.reached(Step.SERVER_BEFORE_TRANSACTION, epoch.stamp.epoch)
    offsets = writer.commit(plan.changes, deadline_seconds)
    observer.reached(Step.SERVER_TRANSACTION_COMMITTED, epoch.stamp.epoch)
    try:
        write_to_stores(plan.changes, offsets, hosted)
    except StageLost as error:
        # Rows that could be read a moment ago. They are in the changelog: from there the stores must get them.
        raise OutcomeUnknown(f"epoch {epoch.stamp.epoch} is committed, and could not be written to a store") from error
    observer.reached(Step.SERVER_STORE_WRITTEN, epoch.stamp.epoch)
    return [
        GroupCommitted(*item.partition, offsets[item.partition], item.marker.checksum, already=False)
        for item in plan.changes
    ]


def _plan_state(plan: _Plan, epoch: EpochToCommit, state: StateReplica, part: StateToCommit) -> None:
    name = f"{state.descriptor.application}/{state.descriptor.state}"
    staged = winners(part.attempts, part.receipts, name)
    if foreign := staged.keys() - state.groups.owned:
        raise NotOwner(f"{len(foreign)} key groups of state {name} are staged here and not owned; stage them again")
    # Complete mode also empties the key groups that got no rows. And a replay may lack all rows of a key group.
    committed = {group for group in state.groups.owned if state.position(group).epoch >= epoch.stamp.epoch}
    this = CommitContext.of(epoch.stamp, epoch.next_watermark_ms)
    snapshot = state.store.snapshot()
    try:
        plan.make_room(staged.values())
        gc: GcPass | None = None
        if state.sweeper is not None:
            # What replaces everything leaves nothing that has expired; what is run again has been through it.
            amount = None if part.replace or committed else _amount(staged.values())
            gc = plan.gc_pass(state.sweeper, snapshot, this, amount)
        for group in sorted(state.groups.owned if part.replace or gc is not None else staged.keys() | committed):
            rows, position = staged.get(group), state.position(group)
            checksum = rows.checksum & 0xFFFF_FFFF_FFFF_FFFF if rows is not None else 0
            if position.epoch >= epoch.stamp.epoch:
                plan.already.append(_already(state, group, position, epoch.stamp.epoch, checksum))
                continue
            merged = rows.merged() if rows is not None else {}
            written = changes(merged, snapshot, group, state.merge, this, replace=part.replace)
            if state.sweeper is not None:
                state.sweeper.wrote(written)
            if gc is not None:
                written = beside(written, gc.of(group, written=bool(written)))
            if written:
                plan.changes.append(_partition_changes(epoch, state, group, plan.kept(written, rows), checksum))
    finally:
        snapshot.close()


def _amount(staged: Collection[StagedGroup]) -> Written:
    entries = sum(len(rows.rows) if rows.spool is None else rows.count for rows in staged)
    return Written(entries, sum(rows.bytes for rows in staged))


def _already(state: StateReplica, group: int, position: Position, epoch: int, checksum: int) -> GroupCommitted:
    differs = position.epoch == epoch and position.checksum != checksum
    return GroupCommitted(
        state.descriptor.state, group, position.offset - 1, position.checksum, already=True, differs=differs
    )


def _partition_changes(
    epoch: EpochToCommit, state: StateReplica, group: int, written: Iterable[EntryChange], checksum: int
) -> PartitionChanges:
    marker = Marker(epoch.stamp, checksum, epoch.offsets_hash, layout=layout_of(state.descriptor))
    return PartitionChanges(Partition(state.descriptor.state, group), written, marker)
