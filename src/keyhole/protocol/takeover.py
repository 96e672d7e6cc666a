"""What a run must know of others that had, or take, what it has: a restore from a savepoint, and a newer run. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from keyhole.errors import SavepointMismatch
from keyhole.model.epoch import Run
from keyhole.protocol.control import OpenedRecord, QueryControl, SavepointRecord, record


def check_restored(control: QueryControl) -> QueryControl:
    """As it was given.

    Raises:
        SavepointMismatch: The application is being restored, so all of its states are those of the savepoint's queries.
    """
    own = control.savepoint is not None and not control.savepoint.finished
    # A restore records states at its end only. Where there are some, a query has declared them, as earlier versions let
    # it beside a restore that was broken off.
    if own or (control.restoring and not control.states):
        raise SavepointMismatch(
            f"the application is being restored from savepoint {control.restoring}, or that was broken off: run "
            "`keyhole savepoint restore` again with the same options, or delete the application's topics",
            savepoint=control.restoring,
        )
    return control


def dropped_states(
    query: str, savepoint: SavepointRecord | None, declared: Collection[str], *, allowed: bool
) -> tuple[str, ...]:
    """The states of the savepoint that the job does not declare, if it may drop them.

    Raises:
        SavepointMismatch: It may not.
    """
    if savepoint is None:
        return ()
    dropped = tuple(sorted(set(savepoint.states) - set(declared)))
    if dropped and not allowed:
        raise SavepointMismatch(
            f"the savepoint that query {query!r} was restored from holds {', '.join(map(repr, dropped))}, and the job "
            "doesn't declare it: declare it, restore it under the name that the job gives it (--rename OLD=NEW), or "
            "drop it for good with allow_dropped_states=True",
            query=query,
            states=", ".join(dropped),
        )
    return dropped


def settled_records(query: str, savepoint: SavepointRecord | None, dropped: Collection[str]) -> Mapping[str, None]:
    """What the first run deletes: the savepoint's record, and those of the states that it drops.

    Without its record nobody finds a dropped state any more, and a later one of its name is refused until the topic is
    deleted.
    """
    if savepoint is None:
        return {}
    names = [("savepoint", query), *(("state", state) for state in dropped)]
    return {key: None for kind, name in names for key in record(kind, name, None)}


def taken_over_by(control: QueryControl, run: Run) -> tuple[str, dict[str, str]]:
    """Who has taken a query over from a run that was fenced: in words, and the same as facts.

    Args:
        control: As it was read after that.
    """
    opened = control.opened
    newer = control.generation > run.generation
    if newer and (opened is None or opened.run_id != control.run_id):
        # Of an earlier version; or somebody else has opened the log since.
        opened = OpenedRecord(control.run_id)
    elif opened is None or opened.run_id == run.run_id:
        return "nobody is on record who has: a start that was ended at once, or a restore of a savepoint", {}
    facts = {name: str(value) for name, value in msgspec.structs.asdict(opened).items() if value}
    if not newer:
        return f"by a start that has no generation yet, or was refused ({opened.who})", facts
    facts["generation"] = str(control.generation)
    return f"by run {control.generation} ({opened.who}). Is the job running twice?", facts
