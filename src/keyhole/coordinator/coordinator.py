"""Runs the epochs of one query: stage, decide, commit, complete, with as many rounds as it takes.

Threads: `run_epoch` is called by one thread; a heartbeat thread of the coordinator's own keeps the servers' leases,
notices lost servers while the query is idle or a batch is being staged, and repeats the last complete epoch. A lock
lets one of them at a time change anything.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from keyhole.changelog.base import Changelog
from keyhole.clock import Clock
from keyhole.config import JobConfig
from keyhole.coordinator.admission import Admission, agreed
from keyhole.coordinator.counts import QueryCounts
from keyhole.coordinator.fleet import Addresses, Fleet
from keyhole.coordinator.run import QueryRun
from keyhole.coordinator.server_link import state_commit
from keyhole.discovery import discovery_of
from keyhole.errors import (
    CommitError,
    EpochFailed,
    Fenced,
    KeyholeError,
    ReplayDiffers,
    UnavailableError,
    by_reason,
)
from keyhole.protocol import bootstrap as bootstrapping
from keyhole.protocol.control import CompleteRecord, QueryControl, QueryRecord
from keyhole.protocol.decisions import OnNewCheckpoint, Proceed, Restage, check_batch, decide
from keyhole.protocol.epochs import EpochBatch, EpochResult
from keyhole.protocol.failpoints import NoObserver, Step, StepObserver
from keyhole.protocol.membership import Membership, groups_of
from keyhole.protocol.receipts import PartitionReceipt, StageOrder
from keyhole.protocol.replacement import Patience, Urgency
from keyhole.protocol.start import Start, StartOptions, decide_start
from keyhole.rpc.convert_writes import run_to_proto
from keyhole.v1 import state_server_pb2 as pb

_log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0


class _CommitTime:
    """When an epoch is committed, for all of its key groups: once the rows of a round are all staged, which may take
    minutes, and from then on in each further round. Before that: when it was begun, up to which its tasks take what
    expires for living.

    Attributes:
        ms: Milliseconds since 1970.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._decided = False
        self.ms = clock.now_ms()

    def decide(self) -> None:
        """All rows are staged. Idempotent."""
        if not self._decided:
            self._decided = True
            self.ms = max(self.ms, self._clock.now_ms())


class _Staging(NamedTuple):
    """A round whose tasks run. `changes`: as many changes of the membership had begun before."""

    urgency: Urgency
    changes: int


class Coordinator:
    """See the module's text. Made once per run of a query; the first epoch takes the query over.

    Args:
        addresses: Where the state servers are, closed with the coordinator; default: as `config.servers` says.
        allow_dropped_states: States of a savepoint that the query was restored from, and that the job does not declare,
            are dropped for good.
        clock: All of its time.
        heartbeat_seconds: Between two heartbeats that it makes by itself.
        patience: With servers that are lost or drain while a batch runs.
    """

    def __init__(
        self,
        config: JobConfig,
        query: str,
        changelog: Changelog,
        clock: Clock,
        *,
        on_new_checkpoint: OnNewCheckpoint = "refuse",
        strict: bool = False,
        observer: StepObserver | None = None,
        addresses: Addresses | None = None,
        allow_dropped_states: bool = False,
        fleet: Fleet | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        patience: Patience | None = None,
        counts: QueryCounts | None = None,
    ) -> None:
        self._config = config
        self._query = query
        self._clock = clock
        self._options = StartOptions(on_new_checkpoint, allow_dropped_states)
        self._strict = strict
        self._observer = observer or NoObserver()
        self._control = changelog.control(query)
        # What looks for servers ends with the coordinator.
        self._ending = contextlib.ExitStack()
        self._fleet = fleet or self._fleet_of(addresses)
        self._heartbeat_seconds = heartbeat_seconds
        self._counts = counts or QueryCounts()
        self._run = QueryRun(config, query, changelog, self._control, self._fleet, clock)
        self._admission = Admission(config, query, changelog, self._fleet, self._run, clock, on_new_checkpoint)
        self._record: QueryRecord | None = None
        self._fenced: Fenced | None = None
        self._patience = patience or Patience()
        self._lock = threading.Lock()
        # While a batch's tasks run, and nobody holds the lock.
        self._staging: _Staging | None = None
        self._closed = threading.Event()
        self._heartbeat = threading.Thread(target=self._beat, name=f"keyhole-heartbeat-{query}", daemon=True)

    def _fleet_of(self, addresses: Addresses | None) -> Fleet:
        if addresses is not None:
            self._ending.callback(addresses.close)
            return Fleet(addresses, self._config.credentials)
        discovery = discovery_of(self._config.servers)
        self._ending.callback(discovery.close)
        return Fleet(discovery.known, self._config.credentials)

    def bootstrapped(self, name: str) -> bool:
        """Whether the query's states have begun with this bootstrap already. Disturbs no other run.

        Raises:
            StateConflict: They have begun otherwise, and it may not take the place of what they hold.
            KafkaUnreachable: Nobody could be asked.
        """
        reset = self._options.on_new_checkpoint == "reset"

        def done(control: QueryControl) -> bool:
            if bootstrapping.done(control.query, control.complete, name):
                return True
            bootstrapping.check_bootstrap(self._query, control.query, control.complete, name, reset=reset)
            return False

        return agreed(self._run, done)

    def run_epoch(self, batch: EpochBatch) -> EpochResult:
        """Makes the batch one epoch of the query's states; returns when it is complete.

        Raises:
            CheckpointMismatch, StateConflict, StateChanged, SavepointMismatch, TopicMismatch, ChangelogRecreated: At a
                run's first batch, and a bootstrap that comes too late.
            RequestError: The rows are wrong (DuplicateKey, NullKey, ...). Nothing was committed.
            Fenced: A newer run has taken the query over. This one can change nothing any more.
            EpochFailed: Not within `epoch_deadline_seconds`. Running the batch again is safe.
            KafkaUnreachable: At a run's start.
        """
        with self._lock:
            if self._fenced is not None:
                raise self._fenced
            began = self._clock.monotonic()
            try:
                result = self._run_epoch(batch)
            except Fenced as error:
                if error is self._fenced:
                    raise
                raise self._be_fenced(error) from error
            except KeyholeError as error:
                self._counts.failed[error.reason] += 1
                raise
            finally:
                self._note_membership()
            self._count(result, self._clock.monotonic() - began)
            return result

    def _be_fenced(self, error: Fenced) -> Fenced:
        """What the query ends with, from now on whatever it does."""
        self._fenced, self._counts.fenced = self._run.superseded(error), True
        return self._fenced

    def _note_membership(self) -> None:
        membership = self._run.membership
        self._counts.generation = self._run.run.generation
        self._counts.assignment_version = membership.assignment.version
        self._counts.members = len(membership.members)

    def _count(self, result: EpochResult, seconds: float) -> None:
        counts, complete = self._counts, self._run.complete
        counts.epochs += 1
        counts.replayed += result.replayed
        counts.rounds += result.rounds
        counts.complete_epoch = result.epoch
        counts.commit_time_ms = complete.commit_time_ms if complete is not None else 0
        counts.seconds.observe(seconds)
        counts.fenced = False

    def _distrust(self, server: str) -> None:
        self._counts.distrusted += 1
        self._run.distrust(server)

    def _run_epoch(self, batch: EpochBatch) -> EpochResult:
        epoch = self._start(batch) if self._record is None else self._continue(batch)
        batch = replace(batch, watermark_ms=self._watermark_ms(batch, epoch))
        # Not before: starting has deadlines of its own, and however slow it was, the servers are to be tried.
        deadline = self._clock.monotonic() + self._config.epoch_deadline_seconds
        time = _CommitTime(self._clock)
        self._observer.reached(Step.DRIVER_BEFORE_STAGE, epoch)
        number = 0
        while True:
            outcome = self._round(batch, epoch, number, time, deadline)
            if isinstance(outcome, EpochResult):
                return outcome
            number += 1
            if self._clock.monotonic() > deadline:
                raise EpochFailed(
                    f"epoch {epoch} of query {self._query!r} was not committed within "
                    f"{self._config.epoch_deadline_seconds:g} s and {number} rounds: {outcome.message}"
                ) from outcome

    def _round(
        self, batch: EpochBatch, epoch: int, number: int, time: _CommitTime, deadline: float
    ) -> EpochResult | KeyholeError:
        """One try: the epoch is complete, or what kept it from that and may not keep the next."""
        with self._counts.phase("converge", self._clock):
            self._run.converge(deadline)
        order = self._order(epoch, number, deadline, time.ms, batch.watermark_ms)
        with self._counts.phase("stage", self._clock):
            receipts = self._stage(batch, order)
        if receipts is None:
            # Some of the rows are with servers that own them no more. What the receipts say doesn't matter then.
            return UnavailableError("the state servers changed while the batch ran")
        proceed = self._judged(batch, order, receipts)
        if isinstance(proceed, Restage):
            return self._suspect(proceed.suspects)
        self._observer.reached(Step.DRIVER_STAGED, epoch)
        time.decide()
        commits = self._commit_requests(batch, order, proceed, time.ms)
        self._observer.reached(Step.DRIVER_BEFORE_COMMIT, epoch)
        with self._counts.phase("commit", self._clock):
            answers = self._commit(order, commits, deadline)
        lost = {name: answer for name, answer in answers.items() if isinstance(answer, KeyholeError)}
        if lost:
            return self._judge(lost)
        self._observer.reached(Step.DRIVER_COMMITTED, epoch)
        with self._counts.phase("complete", self._clock):
            replayed = self._complete(batch, epoch, time.ms, answers)
        self._observer.reached(Step.DRIVER_COMPLETE, epoch)
        return EpochResult(epoch, replayed, number + 1)

    def _start(self, batch: EpochBatch) -> int:
        def decide(control: QueryControl) -> Start:
            return decide_start(self._query, control, batch, self._options)

        # What is refused leaves an earlier run as it is.
        self._admission.check(decide)
        control = self._run.take(batch.spark_query_id)
        # Once more: until now others could record.
        start = decide(control)
        self._run.declare(control, start.states, self._options.on_new_checkpoint, start.query)
        self._run.settle(start.over)
        self._record = start.query
        self._heartbeat.start()
        return start.query.base + batch.batch_id

    def _watermark_ms(self, batch: EpochBatch, epoch: int) -> int:
        """The batch's, and never below that of the last complete epoch, unless the states begin anew.

        That of a new checkpoint begins at 0: entries of states that are kept would come back that have expired.
        """
        assert self._record is not None
        before = self._run.complete
        if before is None or epoch == self._record.reset_epoch:
            return batch.watermark_ms
        return max(batch.watermark_ms, before.watermark_ms)

    def _continue(self, batch: EpochBatch) -> int:
        assert self._record is not None
        return check_batch(self._query, self._record, self._run.complete, batch.batch_id)

    def _order(self, epoch: int, number: int, deadline: float, commit_time_ms: int, watermark_ms: int) -> StageOrder:
        assert self._record is not None
        membership = self._run.membership
        assignment = membership.assignment
        return StageOrder(
            run=self._run.run,
            epoch=epoch,
            round=number,
            assignment_version=assignment.version,
            targets=tuple(membership.members[server].target for server in assignment.servers),
            routes=dict(assignment.owners),
            deadline_seconds=max(1.0, deadline - self._clock.monotonic()),
            descriptors=dict(self._run.descriptors),
            commit_time_ms=commit_time_ms,
            watermark_ms=watermark_ms,
            credentials=self._config.credentials,
            empties=epoch == self._record.reset_epoch,
        )

    def _stage(self, batch: EpochBatch, order: StageOrder) -> Sequence[PartitionReceipt] | None:
        """Lets go of the lock meanwhile: heartbeats replace servers that can't wait for the batch's end.

        Returns:
            None where they did.
        """
        staging = self._staging = _Staging(Urgency(self._patience), self._run.changes)
        receipts: Sequence[PartitionReceipt] | None = None
        failure: Exception | None = None
        self._lock.release()
        try:
            receipts = batch.stage(order)
        except Exception as error:  # noqa: BLE001 - what ends a batch may be the change itself, and not come again
            failure = error
        finally:
            self._lock.acquire()
            self._staging = None
        if self._fenced is not None:
            raise self._fenced
        changed = self._run.changes != staging.changes
        if failure is not None:
            if not changed or self._closed.is_set():
                raise failure
            _log.warning("a batch failed while servers changed", extra={"query": self._query, "why": str(failure)})
        return None if changed else receipts

    def _judged(self, batch: EpochBatch, order: StageOrder, receipts: Sequence[PartitionReceipt]) -> Proceed | Restage:
        for receipt in receipts:
            if receipt.failure is not None:
                reason, message, facts = receipt.failure
                error = by_reason()[reason](message)
                error.facts = facts
                raise error
        of = batch.partitions
        partitions = {name: of if isinstance(of, int) else of[name] for name in self._names(batch)}
        return decide(receipts, partitions, order.targets)

    @staticmethod
    def _names(batch: EpochBatch) -> list[str]:
        return [plan.descriptor.state for plan in batch.states]

    def _suspect(self, suspects: Mapping[str, str]) -> KeyholeError:
        # A server that answers again afterwards is simply staged to again; one that doesn't is replaced.
        _log.warning("a server took no rows", extra={"query": self._query, "suspects": dict(suspects)})
        for server in suspects:
            self._distrust(server)
        return UnavailableError("; ".join(f"{server}: {message}" for server, message in suspects.items()))

    def _commit_requests(
        self, batch: EpochBatch, order: StageOrder, proceed: Proceed, commit_time_ms: int
    ) -> dict[str, pb.CommitRequest]:
        # Others among the targets only follow.
        owners = {index for routes in order.routes.values() for index in routes}
        next_watermark_ms = batch.next_watermark_ms() if batch.next_watermark_ms else batch.watermark_ms
        return {
            target.server: pb.CommitRequest(
                run=run_to_proto(order.run),
                incarnation=target.incarnation,
                assignment_version=order.assignment_version,
                epoch=order.epoch,
                round=order.round,
                states=[
                    state_commit(
                        plan.descriptor.state,
                        proceed.commits[target.server][plan.descriptor.state],
                        plan.replace or order.empties,
                    )
                    for plan in batch.states
                ],
                commit_time_ms=commit_time_ms,
                watermark_ms=batch.watermark_ms,
                next_watermark_ms=next_watermark_ms,
                offsets_hash=batch.offsets_hash,
            )
            for index, target in enumerate(order.targets)
            if index in owners
        }

    def _commit(
        self, order: StageOrder, requests: Mapping[str, pb.CommitRequest], deadline: float
    ) -> dict[str, pb.CommitResponse | KeyholeError]:
        timeout = max(1.0, deadline - self._clock.monotonic())
        links = {target.server: self._fleet.link(target) for target in order.targets}
        return self._fleet.each(
            {name: partial(links[name].commit, request, timeout) for name, request in requests.items()}
        )

    def _judge(self, lost: Mapping[str, KeyholeError]) -> KeyholeError:
        """What to do about servers that did not commit: try another round, or give up.

        Raises:
            KeyholeError: Trying again can't help (fenced, a full disk, wrong rows).
        """
        for server, error in lost.items():
            if not isinstance(error, (UnavailableError, CommitError)) or isinstance(error, Fenced):
                raise error
            _log.warning("a server did not commit", extra={"server": server, "reason": error.reason, "why": str(error)})
            self._distrust(server)
        return next(iter(lost.values()))

    def _complete(
        self,
        batch: EpochBatch,
        epoch: int,
        commit_time_ms: int,
        answers: Mapping[str, pb.CommitResponse | KeyholeError],
    ) -> bool:
        responses = [answer for answer in answers.values() if isinstance(answer, pb.CommitResponse)]
        before = self._run.complete
        markers = {
            name: list(before.markers[name]) if before and name in before.markers else [-1] * descriptor.key_groups
            for name, descriptor in self._run.descriptors.items()
        }
        for group in (group for r in responses for group in (*r.committed, *r.already_committed)):
            markers[group.state][group.key_group] = group.marker_offset
        already = [group for response in responses for group in response.already_committed]
        self._report_differences(epoch, [group for group in already if group.differs])
        self._run.record_complete(
            CompleteRecord(
                epoch,
                self._run.run.generation,
                commit_time_ms,
                batch.watermark_ms,
                batch.offsets_hash,
                markers,
                batch.offsets,
            )
        )
        return bool(already)

    def _report_differences(self, epoch: int, differing: Sequence[pb.KeyGroupEpoch]) -> None:
        assert self._record is not None
        if not differing:
            return
        if epoch == self._record.evolved_epoch:
            _log.info("an epoch of an earlier schema stays as it was committed", extra={"query": self._query})
            return
        names = ", ".join(f"{group.state} key group {group.key_group}" for group in differing[:10])
        message = (
            f"epoch {epoch} of query {self._query!r} was run again and gave other rows than were committed, "
            f"in {names}. The batch is not deterministic: exactly once does not hold for it. What was committed stays. "
            "Make its rows depend on its source alone, not on time, chance or the order of rows (docs/spark.md); to go "
            "on with what was committed, start the job with strict=False"
        )
        _log.error("a replay differs", extra={"query": self._query, "epoch": epoch, "which": names})
        if self._strict:
            raise ReplayDiffers(message, epoch=epoch)

    def _beat(self) -> None:
        while not self._clock.wait(self._closed, self._heartbeat_seconds):
            try:
                self.beat()
            except Fenced as error:
                _log.error("a newer run has taken over", extra={"query": self._query, "why": error.message})
                return
            except KeyholeError as error:
                _log.warning("heartbeat failed", extra={"query": self._query, "why": error.message})
            except Exception:  # noqa: BLE001 - the top of a loop; were it to end, so would the leases, unheard
                _log.exception("heartbeat failed unexpectedly", extra={"query": self._query})

    def beat(self, patience_seconds: float | None = None) -> None:
        """One heartbeat: renews the leases, and follows the servers that come and go: all changes where no epoch is
        under way, what can't wait while a batch is being staged.

        Args:
            patience_seconds: For how long changes are tried again; below 0: they are tried once. Default: until the
                next heartbeat.

        Raises:
            Fenced: A newer run has taken over; `run_epoch` raises it too from now on.
            KeyholeError: What keeps the servers from being replaced; the next heartbeat tries again.
        """
        if self._fenced is not None:
            raise self._fenced
        patience = self._heartbeat_seconds if patience_seconds is None else patience_seconds
        # Without the lock: a batch that ends meanwhile does not wait for servers that don't answer.
        unconfirmed = self._run.confirm() if self._staging is not None else None
        if not self._lock.acquire(blocking=False):
            # An epoch under way speaks to the servers too, but its tasks may take long: keep the leases all the same.
            if unconfirmed is None:
                self._run.confirm()
            return
        try:
            if self._staging is not None:
                if unconfirmed is not None:
                    self._replace_urgent(self._staging, unconfirmed, patience)
                return
            # First: a run that can't write to the control topic may have been replaced, and must confirm nobody.
            self._run.repeat_complete()
            for server in self._run.confirm():
                self._distrust(server)
            self._run.converge(self._clock.monotonic() + patience)
        except Fenced as error:
            raise self._be_fenced(error) from error
        finally:
            self._note_membership()
            self._lock.release()

    def _replace_urgent(self, staging: _Staging, unconfirmed: Sequence[str], patience_seconds: float) -> None:
        seen, before = self._run.look(), self._run.changes
        urgent = staging.urgency.of(self._run.membership, unconfirmed, seen, self._clock.monotonic())
        if urgent is None or self._closed.is_set():
            return
        # After a change, which costs the round, all that is left of it, and whatever else is planned.
        if not urgent and before == staging.changes:
            return
        try:
            self._run.converge(self._clock.monotonic() + patience_seconds, seen)
        finally:
            if self._run.changes != before:
                _log.warning(
                    "changed servers while a batch runs", extra={"query": self._query, "urgent": sorted(urgent)}
                )

    @property
    def complete(self) -> CompleteRecord | None:
        """What this run has on record of the last complete epoch; None: there is none, or the query is not taken yet.
        Any thread, as the following."""
        return self._run.complete

    @property
    def membership(self) -> Membership:
        """Which servers hold what, as far as this run knows."""
        return self._run.membership

    def owned_by(self, server: str, state: str) -> tuple[int, ...]:
        """The key groups that a server owns now; for tests and tools."""
        return groups_of(self.membership.assignment, server, state)

    def close(self) -> None:
        """Ends the heartbeat and the connections. Servers keep what they own until another run takes it. Idempotent."""
        self._closed.set()
        if self._heartbeat.is_alive():
            self._heartbeat.join()
        self._control.close()
        self._fleet.close()
        self._ending.close()
