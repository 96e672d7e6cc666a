"""What a savepoint is to hold, as the control topic has it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from keyhole.encoding.row_codec import check_usable
from keyhole.errors import SavepointMismatch, UnknownApplication, ValueMismatch
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import CompleteRecord, QueryRecord, read_control
from keyhole.protocol.start import UPDATES
from keyhole.savepoint.spark_log import says_all


@dataclass(frozen=True)
class SubjectQuery:
    """A query at its last complete epoch."""

    query: str
    complete: CompleteRecord
    record: QueryRecord

    @property
    def batch(self) -> int:
        """Spark's number of the complete epoch."""
        return self.complete.epoch - self.record.base


@dataclass(frozen=True)
class Subject:
    """An application.

    Attributes:
        skipped: Queries that have not completed any epoch: nothing of theirs is committed.
        fed: Those whose states are fed by updates: a savepoint can't have them.
        left_out: States of the others that can't be used, and why; see `unusable`.
    """

    queries: tuple[SubjectQuery, ...]
    states: tuple[StateDescriptor, ...]
    skipped: tuple[str, ...]
    fed: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    def ends(self, state: StateDescriptor) -> dict[int, int]:
        """The changelog offset after the complete epoch's last marker, by key group; key groups without one lack."""
        (query,) = (query for query in self.queries if query.query == state.query)
        markers = query.complete.markers.get(state.state, [])
        return {group: marker + 1 for group, marker in enumerate(markers) if marker >= 0}


def subject_of(application: str, records: Mapping[str, bytes]) -> Subject:
    """What there is to save.

    Raises:
        UnknownApplication: No state of it has a complete epoch.
        SavepointMismatch: A query has begun from a new checkpoint, or been bootstrapped, and not completed an epoch of
            its stream. Or all states are fed by updates.
    """
    states = sorted(read_control(records, "").states.values(), key=lambda state: state.state)
    names = sorted({state.query for state in states})
    queries, skipped, fed = [], [], []
    for name in names:
        control = read_control(records, name)
        if control.complete is None or control.query is None:
            skipped.append(name)
        elif control.query.spark_query_id == UPDATES:
            fed.append(name)
        elif control.query.bootstraps:
            raise SavepointMismatch(
                f"query {name!r} has been bootstrapped, and its stream has not completed an epoch: try again when it "
                "has",
                query=name,
            )
        elif control.complete.epoch < control.query.first_epoch:
            raise SavepointMismatch(
                f"query {name!r} has begun from a new checkpoint, and has not completed an epoch of it: try again when "
                "it has",
                query=name,
            )
        else:
            queries.append(SubjectQuery(name, control.complete, control.query))
    if fed and not queries:
        raise SavepointMismatch(
            f"the states of application {application!r} that have begun are fed by updates ({', '.join(fed)}), and a "
            "savepoint can't have those: feed them anew from their topics",
            application=application,
        )
    if not queries:
        raise UnknownApplication(
            f"application {application!r} has no state with a complete epoch: nothing can be saved. Is the name right, "
            "and the Kafka?",
            application=application,
        )
    kept = {query.query for query in queries}
    why_not = {state.state: unusable(state) for state in states if state.query in kept}
    used = tuple(state for state in states if why_not.get(state.state, "") is None)
    return Subject(
        tuple(queries), used, tuple(skipped), tuple(fed), {name: why for name, why in why_not.items() if why}
    )


def unusable(state: StateDescriptor) -> str | None:
    """Why nobody can read or write the state, which an earlier version of Keyhole let be declared; None: it is as all.

    There are no rows of it, and never will be.
    """
    try:
        check_usable(state)
    except ValueMismatch as error:
        return error.message
    return None


def check_checkpoints(subject: Subject, given: Set[str]) -> None:
    """Refuses, by name, what could not be started again.

    Args:
        given: The queries whose Spark checkpoint is at hand.

    Raises:
        SavepointMismatch: A query needs its checkpoint, or the savepoint doesn't have the query.
    """
    names = [query.query for query in subject.queries]
    unknown = sorted(given - set(names))
    if unknown:
        raise SavepointMismatch(
            f"a checkpoint is given for query {unknown[0]!r}; the queries to save are {', '.join(names)}",
            query=unknown[0],
        )
    for query in subject.queries:
        if query.query in given:
            continue
        if query.record.stateful:
            raise _needed(query, "Spark keeps state of its own for it")
        if not says_all(query.complete.offsets):
            raise _needed(query, "its sources' offsets alone don't tell where it goes on (only Kafka's do)")


def _needed(query: SubjectQuery, why: str) -> SavepointMismatch:
    return SavepointMismatch(
        f"query {query.query!r} can't be saved without its Spark checkpoint, as {why}: give --checkpoint "
        f"{query.query}=DIRECTORY",
        query=query.query,
    )


def uneven(subject: Subject) -> str | None:
    """In words, the queries that share one Spark query, and so one checkpoint, and are at different batches of it."""
    first: dict[str, SubjectQuery] = {}
    for query in subject.queries:
        other = first.setdefault(query.record.spark_query_id, query)
        if other.batch != query.batch:
            return f"{other.query!r} is at batch {other.batch}, {query.query!r} at batch {query.batch}"
    return None
