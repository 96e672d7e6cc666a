"""A query's records in the control topic, under its own transactional.id: whoever opens it last is the only writer.

Kafka's producer epoch fences the runs before it. An append whose outcome is unknown ends the run, as nobody can say
what is on record.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Mapping

import msgspec

from keyhole.changelog.control_topic import ControlLog
from keyhole.changelog.settings import CONTROL_TRANSACTION_MOST_SECONDS
from keyhole.clock import Clock
from keyhole.errors import ChangelogRecreated, EpochFailed, OutcomeUnknown
from keyhole.model.epoch import Run
from keyhole.protocol.control import (
    AssignmentRecord,
    CompleteRecord,
    GenerationRecord,
    GrantRecord,
    OpenedRecord,
    QueryControl,
    read_control,
    record,
)
from keyhole.protocol.takeover import check_restored

OPEN_SECONDS = CONTROL_TRANSACTION_MOST_SECONDS + 10.0
"""How long Kafka may take to end a transaction that somebody has left open, behind which nothing can be read."""


def known(
    control: ControlLog,
    query: str,
    deadline_seconds: float,
    *,
    decided: bool = False,
    open_seconds: float = OPEN_SECONDS,
) -> QueryControl:
    """What the control topic says of a query, without opening it: nobody is fenced.

    Args:
        deadline_seconds: Of each request to Kafka.
        decided: Nothing is missing that was recorded before: what is behind an open transaction is waited for.
        open_seconds: So much longer.

    Raises:
        KafkaUnreachable: Also where that is open for longer.
        ProtocolMismatch: A record that this version can't read.
    """
    try:
        records = control.read_decided(deadline_seconds + open_seconds) if decided else control.read(deadline_seconds)
    except ChangelogRecreated:
        records = {}  # there is no control topic: the application is new
    return read_control(records, query)


class QueryLog:
    """See the module's text. Not thread-safe.

    Args:
        opened: What others can read of this run.
        deadline_seconds: Of each request to Kafka.
        open_seconds: For what stands behind a transaction that Kafka must end.

    Attributes:
        uncertain: Something may or may not be on record, or could not be read once the log was open: nothing can be
            appended any more, and the log can't be opened again.
    """

    def __init__(
        self,
        control: ControlLog,
        query: str,
        opened: OpenedRecord,
        clock: Clock,
        deadline_seconds: float,
        open_seconds: float,
    ) -> None:
        self._control = control
        self._query = query
        self._opened = opened
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._open_seconds = open_seconds
        self.uncertain = False

    def known(self, *, decided: bool = False) -> QueryControl:
        """What the control topic says, as the function of this name."""
        deadline = self._deadline_seconds
        return known(self._control, self._query, deadline, decided=decided, open_seconds=self._open_seconds)

    def open(self, spark_query_id: str) -> QueryControl:
        """Fences any earlier run of the query, and reads all that it has recorded.

        Raises:
            KafkaUnreachable: May be called again, unless the run is `uncertain` by now: it is open, but what earlier
                runs have recorded can't be read yet.
            SavepointMismatch: The application is being restored.
        """
        self._opened = msgspec.structs.replace(self._opened, spark_query_id=spark_query_id)
        self._control.open(self._deadline_seconds)
        # Kafka's producer opens a log once. Opened by another one, it could be taken back from a newer run.
        self.uncertain = True
        # Of earlier runs' last grants, which must be fenced, and of their generation none may be missing.
        control = self.recorded()
        self.uncertain = False
        return control

    def recorded(self) -> QueryControl:
        """What the control topic says, with all that was recorded, by whomever, before this is called.

        Kafka shows nothing beyond a transaction that is still open, as one of another query whose driver died in it. So
        once a record of ours can be read, all can be read that was recorded before it.

        Raises:
            SavepointMismatch: The application is being restored.
        """
        self.append(record("opened", self._query, self._opened))
        records = self._control.read(self._deadline_seconds + self._open_seconds)
        return check_restored(read_control(records, self._query))

    def append(self, records: Mapping[str, bytes | None]) -> None:
        """Writes all of the records in one transaction.

        Raises:
            Fenced: A newer run has opened the log.
            EpochFailed: The records may or may not be there.
        """
        try:
            self._control.append(records, self._deadline_seconds)
        except OutcomeUnknown as error:
            self.uncertain = True
            # Opening the control log anew could take the query back from a newer run: this run must end instead.
            raise unknown_outcome() from error

    def generation(self, run: Run) -> None:
        """Records the run's fencing token. Raises as `append`, as do the following."""
        self.append(record("generation", self._query, GenerationRecord(run.generation, run.run_id)))

    def grants(self, fenced: Collection[str], granted: Collection[GrantRecord]) -> None:
        """Forgets grants that are fenced, and records new ones, in one transaction."""
        forgotten: dict[str, bytes | None] = {f"grant/{self._query}/{grant}": None for grant in fenced}
        new = [record("grant", f"{self._query}/{grant.grant}", grant) for grant in granted]
        if forgotten or new:
            self.append(functools.reduce(operator.or_, new, forgotten))

    def assignment(self, assignment: AssignmentRecord) -> None:
        """Records who owns and follows what."""
        self.append(record("assignment", self._query, assignment))

    def complete(self, complete: CompleteRecord) -> CompleteRecord:
        """Records that an epoch is complete; returns the record, with the time at which it was written."""
        repeated = msgspec.structs.replace(complete, told_ms=self._clock.now_ms())
        self.append(record("complete", self._query, repeated))
        return repeated


def unknown_outcome() -> EpochFailed:
    """What a run ends with that can't know what is on record."""
    return EpochFailed("a write to the control topic has an unknown outcome; restart the query: the new run finds out")
