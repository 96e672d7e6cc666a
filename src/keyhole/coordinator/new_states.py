"""Declares new states: a state is the query's that declares it first, however many start at once.

A state that the control topic doesn't know is declared under one transactional.id that all queries share, so by one at
a time. Whoever opens it fences whoever had it before, and can read what was declared until then. docs/protocol.md says
why that decides it. Queries of one process wait for each other, as fencing each other would cost them tries.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from keyhole.backoff import Backoff
from keyhole.changelog.base import Changelog
from keyhole.changelog.control_topic import ControlLog
from keyhole.changelog.settings import CONTROL_TRANSACTION_MOST_SECONDS
from keyhole.clock import Clock
from keyhole.coordinator.local_lock import Turns
from keyhole.errors import ConflictError, EpochFailed, Fenced
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import record
from keyhole.protocol.registration import settled

DECLARING = "*"
"""Stands for the query where the control log is opened to declare states, or to begin a restore; no query can have this
name."""

# About as long as it takes to declare a few states: who fences whom are those of other drivers.
_FIRST_RETRY_SECONDS = 1.0
_MOST_RETRY_SECONDS = 8.0
# Together more than it takes another query to declare what it has made topics for.
_LOOKS = 10
_LOOK_SECONDS = 1.0

Known = Callable[[], Mapping[str, StateDescriptor]]
"""The states on record, at least all that were declared before it is called."""

DescriptorMaker = Callable[[StateDescriptor, StateDescriptor | None], StateDescriptor]
"""(what a state is to be, what is on record of it) -> the same with its topic's id. Makes the topic, or checks it."""


def declare_new(
    changelog: Changelog,
    turns: Turns,
    wanted: Sequence[StateDescriptor],
    known: Known,
    make: DescriptorMaker,
    clock: Clock,
    deadline_seconds: float,
) -> dict[str, StateDescriptor]:
    """Declares states that were not on record a moment ago. Returns, by name, what is on record of them now.

    Args:
        turns: Of the application's queries in this process.
        deadline_seconds: How long a call to Kafka may take, and how long it is tried, from the first turn on.

    Raises:
        StateConflict: Another query has declared one of them meanwhile.
        SavepointMismatch: A restore into the application has begun meanwhile.
        ConflictError: One can't be what it is to be; see `settled`, and `make`.
        EpochFailed: Others declared states all the time.
        OutcomeUnknown: They may or may not be on record.
    """
    until: float | None = None
    # Whoever has the turn may wait for Kafka to end a transaction, which would keep those after it waiting, too.
    patience_seconds = deadline_seconds + CONTROL_TRANSACTION_MOST_SECONDS
    backoff = Backoff(_FIRST_RETRY_SECONDS, _MOST_RETRY_SECONDS)
    while True:
        with turns.mine(clock, patience_seconds), contextlib.closing(changelog.control(DECLARING)) as log:
            until = until or clock.monotonic() + deadline_seconds
            declared = _attempt(log, wanted, known, make, deadline_seconds)
        if isinstance(declared, dict):
            return declared
        if declared is not None:
            # With the turn passed on: it may be a query of this process.
            look_for_another(wanted, known, clock)
            raise declared
        if clock.monotonic() > until:
            raise EpochFailed(
                f"{', '.join(of.state for of in wanted)} could not be declared within {deadline_seconds:g} s, because "
                "other queries of the application declared states all the time; start the query again"
            )
        # By chance, so that two who have fenced each other don't go on doing it.
        clock.sleep(backoff.next())


def look_for_another(wanted: Sequence[StateDescriptor], known: Known, clock: Clock) -> None:
    """What stands in the way may be what another query has just made, and goes on to declare: then it is named.

    Looks, and doesn't open the log under the shared id, which would keep that query from it.

    Raises:
        StateConflict: Another query has declared one of the states.
    """
    for _ in range(_LOOKS):
        clock.sleep(_LOOK_SECONDS)
        stored = known()
        for of in wanted:
            settled(stored.get(of.state), of)


def _attempt(
    log: ControlLog, wanted: Sequence[StateDescriptor], known: Known, make: DescriptorMaker, deadline_seconds: float
) -> dict[str, StateDescriptor] | ConflictError | None:
    """What was declared, or what stands in the way of it; None: another query has begun to declare."""
    try:
        log.open(deadline_seconds)
    except Fenced:
        return None
    stored = known()
    # Before anything is made for a state that is another query's.
    states = [settled(stored.get(of.state), of) for of in wanted]
    try:
        made = {of.state: make(of, stored.get(of.state)) for of in states}
    except ConflictError as error:
        return error
    records: dict[str, bytes | None] = {}
    for name, of in made.items():
        records |= record("state", name, of)
    try:
        log.append(records, deadline_seconds)
    except Fenced:
        return None
    return made
