"""Which run of a query a server obeys: that of the highest generation, and of its grants the last. Pure."""

from __future__ import annotations

from typing import NamedTuple

from keyhole.coordinator.decisions import serial_of
from keyhole.errors import Fenced, StageLost
from keyhole.types import Run


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


def check_newest(run: Run, last: Run) -> None:
    """Raises Fenced for a run that is older than the last one here, or its twin."""
    if run.generation < last.generation or (run.generation == last.generation and run.run_id != last.run_id):
        raise fenced(run, last)


def fenced(run: Run, by: Run) -> Fenced:
    """What a run is told that was superseded."""
    return Fenced(
        f"run {run.generation} of query {run.query!r} has been superseded by run {by.generation} (run id {by.run_id}); "
        "it must stop. Is the job running twice?",
        generation=by.generation,
        run_id=by.run_id,
    )
