"""The coordinator of one query, in the Spark driver: makes each micro-batch one epoch of the query's states.

It takes the query over with the first epoch, runs every epoch as a two-phase commit (epoch_rounds.py), and keeps the
servers' leases (heartbeat.py).

Threads: `run_epoch` is called by one thread; the heartbeat has one of its own. The ChangeLock lets one of them at a
time change anything.
"""

from __future__ import annotations

from keyhole.changelog.base import Changelog
from keyhole.clock import Clock
from keyhole.config import JobConfig
from keyhole.coordinator.admission import agreed
from keyhole.coordinator.counts import QueryCounts
from keyhole.coordinator.epoch_rounds import Epoch, EpochContext
from keyhole.coordinator.fleet import Addresses, Fleet
from keyhole.coordinator.heartbeat import HEARTBEAT_SECONDS
from keyhole.coordinator.held_query import HeldQuery
from keyhole.errors import Fenced, KeyholeError
from keyhole.protocol.control import CompleteRecord, QueryControl, QueryRecord
from keyhole.protocol.epoch_of_batch import OnNewCheckpoint, check_batch, check_bootstrap, is_bootstrapped
from keyhole.protocol.epochs import EpochBatch, EpochResult
from keyhole.protocol.failpoints import NoObserver, StepObserver
from keyhole.protocol.membership import groups_of
from keyhole.protocol.replacement import Patience
from keyhole.protocol.start import Start, StartOptions, decide_start


class Coordinator(HeldQuery):
    """See the module's text. Made once per run of a query; the first epoch takes the query over.

    Args: As HeldQuery takes them, and
        allow_dropped_states: States of a savepoint that the query was restored from, and that the job does not declare,
            are dropped for good.
        patience: With servers that are lost, or about to end, while a batch runs.
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
        super().__init__(
            config,
            query,
            changelog,
            clock,
            on_new_checkpoint=on_new_checkpoint,
            addresses=addresses,
            fleet=fleet,
            heartbeat_seconds=heartbeat_seconds,
            counts=counts,
        )
        self._options = StartOptions(on_new_checkpoint, allow_dropped_states)
        self._record: QueryRecord | None = None
        self._gave_up = False
        self._context = EpochContext(
            config,
            query,
            self._run,
            self._fleet,
            self._changes,
            self._counts,
            clock,
            self._closed,
            observer or NoObserver(),
            patience or Patience(),
            strict,
        )

    def bootstrapped(self, name: str) -> bool:
        """Whether the query's states have begun with this bootstrap already. Disturbs no other run.

        Raises:
            StateConflict: They have begun otherwise, and it may not take the place of what they hold.
            KafkaUnreachable: Nobody could be asked.
        """
        reset = self._options.on_new_checkpoint == "reset"

        def done(control: QueryControl) -> bool:
            if is_bootstrapped(control.query, control.complete, name):
                return True
            check_bootstrap(self._query, control.query, control.complete, name, reset=reset)
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
        with self._changes.held():
            if self._run.fenced is not None:
                self._note_given_up(self._run.fenced)
                raise self._run.fenced
            began, began_ms, before = self._clock.monotonic(), self._clock.now_ms(), dict(self._counts.phase_seconds)
            try:
                result = self._epoch_of(batch).complete()
            except Fenced as error:
                self._note_given_up(error)
                if error is self._run.fenced:
                    raise
                raise self._run.be_fenced(error) from error
            except KeyholeError as error:
                self._counts.failed[error.reason] += 1
                raise
            finally:
                self._counts.note_membership(self._run.run.generation, self._run.membership)
            took = self._clock.monotonic() - began
            self._counts.note_epoch(result, took, batch=batch.batch_id, began_ms=began_ms, before=before)
            return result

    def _note_given_up(self, fenced: Fenced) -> None:
        """Counts once: there are no more epochs of this run, however often one is tried."""
        if not self._gave_up:
            self._gave_up = True
            self._counts.failed[fenced.reason] += 1

    def _epoch_of(self, batch: EpochBatch) -> Epoch:
        if self._record is None:
            self._record = self._start(batch)
            self._heartbeat.start()
            number = self._record.base + batch.batch_id
        else:
            number = check_batch(self._query, self._record, self._run.complete, batch.batch_id)
        return Epoch(self._context, self._record, number, batch)

    def _start(self, batch: EpochBatch) -> QueryRecord:
        """Takes the query over. Returns what is on record of it from now on."""

        def decide(control: QueryControl) -> Start:
            return decide_start(self._query, control, batch, self._options)

        # What is refused leaves an earlier run as it is.
        self._admission.check(decide)
        control = self._run.take(batch.spark_query_id)
        # Once more: until now others could record.
        start = decide(control)
        self._run.declare(control, start.states, self._options.on_new_checkpoint, start.query)
        self._run.settle(start.over)
        return start.query

    @property
    def complete(self) -> CompleteRecord | None:
        """What this run has on record of the last complete epoch; None: there is none, or the query is not taken yet.
        Any thread."""
        return self._run.complete

    def owned_by(self, server: str, state: str) -> tuple[int, ...]:
        """Returns the key groups that a server owns now; for tests and tools."""
        return groups_of(self.membership.assignment, server, state)
