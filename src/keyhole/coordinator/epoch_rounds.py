"""One epoch of a query: a two-phase commit over the state servers, in as many rounds as it takes.

A round brings the servers to their key groups, prepares (the batch's tasks stage their rows), judges the receipts, and
commits. Once every server has committed, the epoch's complete record goes to the control topic. Whatever fails on the
way leads to another round, and each key group takes the epoch once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from keyhole.clock import Clock
from keyhole.config import JobConfig
from keyhole.coordinator.change_lock import ChangeLock, StagingRound
from keyhole.coordinator.commit_phase import Committed, commit_requests
from keyhole.coordinator.commit_time import CommitTime
from keyhole.coordinator.counts import QueryCounts
from keyhole.coordinator.fleet import Fleet
from keyhole.coordinator.run import QueryRun
from keyhole.errors import CommitError, EpochFailed, Fenced, KafkaUnreachable, KeyholeError, UnavailableError
from keyhole.model.epoch import EpochStamp
from keyhole.protocol.control import CompleteRecord, QueryRecord
from keyhole.protocol.decisions import Restage, decide
from keyhole.protocol.epochs import EpochBatch, EpochResult
from keyhole.protocol.failpoints import Step, StepObserver
from keyhole.protocol.receipts import PartitionReceipt, StageOrder
from keyhole.protocol.replacement import Patience, Urgency
from keyhole.v1 import state_server_pb2 as pb

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5


@dataclass(frozen=True)
class EpochContext:
    """What all epochs of a query are run with.

    Attributes:
        changes: Held by whoever runs an epoch.
        closed: Set once the query ends.
        strict: A replay that differs is an error.
    """

    config: JobConfig
    query: str
    run: QueryRun
    fleet: Fleet
    changes: ChangeLock
    counts: QueryCounts
    clock: Clock
    closed: threading.Event
    observer: StepObserver
    patience: Patience
    strict: bool


class Epoch:
    """See the module's text. Made for one batch, and run once, under the ChangeLock.

    Args:
        record: What is on record of the query.
        number: The epoch that the batch is.
    """

    def __init__(self, context: EpochContext, record: QueryRecord, number: int, batch: EpochBatch) -> None:
        self._config, self._query, self._clock = context.config, context.query, context.clock
        self._run, self._fleet, self._counts = context.run, context.fleet, context.counts
        self._context = context
        self._observer = context.observer
        self._record = record
        self._number = number
        before, begins_anew = self._run.complete, number == record.reset_epoch
        self._batch = batch if before is None or begins_anew else batch.with_watermark_from(before)
        # Not before: starting has deadlines of its own, and however slow it was, the servers are to be tried.
        self._deadline = self._clock.monotonic() + self._config.epoch_deadline_seconds
        self._time = CommitTime(self._clock)

    def complete(self) -> EpochResult:
        """Returns when the epoch is complete.

        Raises:
            KeyholeError: See Coordinator.run_epoch.
        """
        self._observer.reached(Step.DRIVER_BEFORE_STAGE, self._number)
        rounds = 0
        while True:
            outcome = self._round(rounds)
            if isinstance(outcome, EpochResult):
                return outcome
            rounds += 1
            if self._clock.monotonic() > self._deadline:
                raise EpochFailed(
                    f"epoch {self._number} of query {self._query!r} was not committed within "
                    f"{self._config.epoch_deadline_seconds:g} s and {rounds} rounds: {outcome.message}"
                ) from outcome

    def _round(self, number: int) -> EpochResult | KeyholeError:
        """Runs one round. Returns the result, or what kept the epoch from it and may not keep the next round."""
        with self._counts.phase("converge", self._clock):
            self._run.converge(self._deadline)
        order = self._order(number)
        with self._counts.phase("stage", self._clock):
            receipts = self._stage(order)
        if receipts is None:
            # Some of the rows are with servers that own them no more. What the receipts say doesn't matter then.
            return UnavailableError("the state servers changed while the batch ran")
        proceed = decide(receipts, self._batch.partitions_by_state, order.targets)
        if isinstance(proceed, Restage):
            return self._suspect(proceed.suspects)
        self._observer.reached(Step.DRIVER_STAGED, self._number)
        self._time.decide()
        commits = commit_requests(self._batch, order, proceed, self._stamp())
        self._observer.reached(Step.DRIVER_BEFORE_COMMIT, self._number)
        with self._counts.phase("commit", self._clock):
            answers = self._commit(order, commits)
        lost = {name: answer for name, answer in answers.items() if isinstance(answer, KeyholeError)}
        if lost:
            return self._judge(lost)
        self._observer.reached(Step.DRIVER_COMMITTED, self._number)
        with self._counts.phase("complete", self._clock):
            replayed = self._record_complete([of for of in answers.values() if isinstance(of, pb.CommitResponse)])
        self._observer.reached(Step.DRIVER_COMPLETE, self._number)
        return EpochResult(self._stamp(), replayed, number + 1)

    def _stamp(self) -> EpochStamp:
        return EpochStamp(self._number, self._run.run.generation, self._time.ms, self._batch.watermark_ms)

    def _order(self, number: int) -> StageOrder:
        membership = self._run.membership
        assignment = membership.assignment
        return StageOrder(
            run=self._run.run,
            stamp=self._stamp(),
            round=number,
            assignment_version=assignment.version,
            targets=tuple(membership.members[server].target for server in assignment.servers),
            routes=dict(assignment.owners),
            deadline_seconds=max(1.0, self._deadline - self._clock.monotonic()),
            descriptors=dict(self._run.descriptors),
            credentials=self._config.credentials,
            empties=self._number == self._record.reset_epoch,
            replaced=frozenset(plan.descriptor.state for plan in self._batch.states if plan.replace),
        )

    def _stage(self, order: StageOrder) -> Sequence[PartitionReceipt] | None:
        """Lends the lock meanwhile: heartbeats replace servers that can't wait for the batch's end.

        Returns:
            None where they did.
        """
        staging = StagingRound(Urgency(self._context.patience), self._run.changes)
        receipts: Sequence[PartitionReceipt] | None = None
        failure: Exception | None = None
        with self._context.changes.lent(staging):
            try:
                receipts = self._batch.stage(order)
            except Exception as error:  # noqa: BLE001 - what ends a batch may be the change itself, and not come again
                failure = error
        if self._run.fenced is not None:
            raise self._run.fenced
        changed = self._run.changes != staging.changes
        if failure is not None:
            if not changed or self._context.closed.is_set():
                raise failure
            _log.warning("a batch failed while servers changed", extra={"query": self._query, "why": str(failure)})
        return None if changed else receipts

    def _suspect(self, suspects: Mapping[str, str]) -> KeyholeError:
        # A server that answers again afterwards is simply staged to again; one that doesn't is replaced.
        _log.warning("a server took no rows", extra={"query": self._query, "suspects": dict(suspects)})
        for server in suspects:
            self._run.distrust(server)
        return UnavailableError("; ".join(f"{server}: {message}" for server, message in suspects.items()))

    def _commit(
        self, order: StageOrder, requests: Mapping[str, pb.CommitRequest]
    ) -> dict[str, pb.CommitResponse | KeyholeError]:
        timeout = max(1.0, self._deadline - self._clock.monotonic())
        links = {target.server: self._fleet.link(target) for target in order.targets}
        return self._fleet.each(
            {name: partial(links[name].commit, request, timeout) for name, request in requests.items()}
        )

    def _judge(self, lost: Mapping[str, KeyholeError]) -> KeyholeError:
        """Decides about servers that did not commit: returns the reason for another round.

        Raises:
            KeyholeError: Trying again can't help (fenced, a full disk, wrong rows).
        """
        for server, error in lost.items():
            if not isinstance(error, (UnavailableError, CommitError)) or isinstance(error, Fenced):
                raise error
            _log.warning("a server did not commit", extra={"server": server, "reason": error.reason, "why": str(error)})
            self._run.distrust(server)
        return next(iter(lost.values()))

    def _record_complete(self, responses: Sequence[pb.CommitResponse]) -> bool:
        """Returns whether the epoch was a replay, at least in part."""
        committed = Committed(self._query, self._number, responses)
        markers = committed.markers(self._run.complete, self._run.descriptors)
        evolved = self._number == self._record.evolved_epoch
        committed.report_differences(evolved=evolved, strict=self._context.strict)
        batch = self._batch
        self._write(CompleteRecord.of(self._stamp(), batch.offsets_hash, markers, batch.offsets))
        return committed.replayed

    def _write(self, complete: CompleteRecord) -> None:
        # All servers have committed. To end the query now would cost its readers a restart, and gain nothing.
        while True:
            try:
                return self._run.record_complete(complete)
            except KafkaUnreachable as error:
                if self._context.closed.is_set() or self._clock.monotonic() > self._deadline:
                    raise EpochFailed(
                        f"all servers have committed epoch {self._number} of query {self._query!r}, and that could not "
                        f"be recorded within {self._config.epoch_deadline_seconds:g} s of its beginning; the next run "
                        f"of the query does so: {error.message}"
                    ) from error
                more = {"query": self._query, "epoch": self._number, "why": str(error)}
                _log.warning("a committed epoch waits to be recorded as complete", extra=more)
            self._clock.sleep(_RETRY_SECONDS)
