"""Which messages about a query a server obeys. Pure.

Those of the run of the highest generation, with the last of its grants, by the assignment that it has given this server
last. All others are late, or of somebody who was replaced.

A message is refused before anything is done, each kind by what it may not be. Fenced: a later run has come, and its
sender must stop. NotReady: what it goes by is not here yet, and its sender gives it again. NotOwner: the key groups
have moved, and its sender asks for the routes again. StageLost: the rows, or the grant, are gone, and are staged, or
given, again.
"""

from __future__ import annotations

from typing import NamedTuple

from keyhole.errors import Fenced, NotOwner, NotReady, StageLost
from keyhole.model.epoch import Run
from keyhole.protocol.grant_names import serial_of


class LastRun(NamedTuple):
    """What a server keeps of a query that it has forgotten: messages may be late, and then must be refused as before.

    Attributes:
        serial: Of the last grant that the run has given this server.
    """

    run: Run
    serial: int

    def check(self, run: Run, grant: str) -> None:
        """Whether a run may begin here with this grant.

        Raises:
            Fenced: A newer run has been here, or another one of the same generation.
            StageLost: The grant, or a later one, has been here. It may have been fenced since, and to take it now would
                take that back.
        """
        check_newest(run, self.run)
        if run == self.run and serial_of(grant) <= self.serial:
            raise StageLost(
                f"query {run.query!r} was forgotten here, and this grant with it; its run needs another one"
            )


class Fence:
    """What the messages about one query are held against, on one incarnation of a server. Used by one thread.

    Attributes:
        run: The one that was opened here last; of generation 0: none was.
        serial: Of the last grant that it has given this server; -1: none.
        version: Of its assignment; 0: it has assigned nothing here yet.
    """

    def __init__(self, application: str, query: str, server: str, incarnation: str) -> None:
        self._nobody = Run(application, query, 0, "")
        self._server = server
        self._incarnation = incarnation
        self.run, self.serial, self.version = self._nobody, -1, 0

    @property
    def last_run(self) -> LastRun:
        """What is to be remembered of it when all else is forgotten."""
        return LastRun(self.run, self.serial)

    def check_run(self, run: Run) -> None:
        """Raises Fenced for a run that was superseded, NotReady for one that has not been opened here."""
        if run == self.run:
            return
        if run.generation > self.run.generation:
            raise NotReady(f"run {run.generation} of query {run.query!r} has not been opened on this server")
        raise fenced(run, self.run)

    def check_may_begin(self, run: Run, incarnation: str) -> None:
        """Whether a run may be opened here, or opened again for another grant.

        Raises:
            NotReady: It means another incarnation of this server.
            Fenced: A newer run has been here, or another one of the same generation.
        """
        self._check_incarnation(incarnation)
        check_newest(run, self.run)

    def check_may_write(self, run: Run, incarnation: str, version: int) -> None:
        """Whether rows may be staged, read as a base, or committed.

        Raises:
            Fenced, NotReady: As `check_run`; or it means another incarnation of this server.
            NotOwner: It goes by another assignment: its routes are out of date.
        """
        self.check_run(run)
        self._check_incarnation(incarnation)
        if version != self.version:
            raise self._other_version(version)

    def check_not_older(self, run: Run, version: int) -> None:
        """Whether key groups may be given, or taken. What a later assignment has given is not taken away by what came
        before it.

        Raises:
            Fenced, NotReady: As `check_run`.
            NotOwner: A later assignment has come.
        """
        self.check_run(run)
        if version < self.version:
            raise self._other_version(version)

    def check_may_confirm(self, run: Run, version: int) -> None:
        """Whether a heartbeat may renew the lease. Raises Fenced, NotReady."""
        self.check_run(run)
        if version != self.version:
            raise NotReady(f"server {self._server} is at assignment version {self.version}, not {version}")

    def begin(self, run: Run, grant: str) -> None:
        """From now on this run counts, with this grant; it has assigned nothing here yet.

        Raises:
            StageLost: The run has given a later grant; this one has been fenced since, and to take it now would take
                that back.
        """
        serial = serial_of(grant)
        if run == self.run and serial < self.serial:
            raise StageLost(f"server {self._server} was given a later grant of this run")
        self.run, self.serial, self.version = run, serial, 0

    def is_later(self, generation: int, version: int) -> bool:
        """Whether an assignment came after the one here."""
        return (generation, version) > (self.run.generation, self.version)

    def close(self) -> None:
        """All runs are refused from now on as if none had been opened here: NotReady."""
        self.run, self.version = self._nobody, 0

    def _check_incarnation(self, incarnation: str) -> None:
        if incarnation != self._incarnation:
            raise NotReady(f"server {self._server} has been restarted; it needs a new grant")

    def _other_version(self, version: int) -> NotOwner:
        return NotOwner(f"the assignment is at version {self.version}, not {version}", version=self.version)


def check_newest(run: Run, last: Run) -> None:
    """Raises Fenced for a run that is older than the last one here, or its twin."""
    if run.generation < last.generation or (run.generation == last.generation and run.run_id != last.run_id):
        raise fenced(run, last)


def fenced(run: Run, by: Run) -> Fenced:
    """The error that a superseded run gets."""
    return Fenced(
        f"run {run.generation} of query {run.query!r} has been superseded by run {by.generation} (run id {by.run_id}); "
        "it must stop. Is the job running twice?",
        generation=by.generation,
        run_id=by.run_id,
    )
