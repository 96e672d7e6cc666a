"""What the first batch of a run makes of what is on record: decided before the run takes the query, and after. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from keyhole.errors import CheckpointMismatch, SavepointMismatch, StateChanged
from keyhole.model.evolution import written_otherwise
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import QueryControl, QueryRecord
from keyhole.protocol.epoch_of_batch import OnNewCheckpoint, first_record
from keyhole.protocol.epochs import EpochBatch
from keyhole.protocol.fed_sources import admitted
from keyhole.protocol.registration import settled
from keyhole.protocol.takeover import check_restored, dropped_states, settled_records

UPDATES = "updates"
"""In place of Spark's query id, in the record of a query that has no epochs: no Spark query has it."""


@dataclass(frozen=True)
class StartOptions:
    """What the job says of a start.

    Attributes:
        allow_dropped_states: States of a savepoint that the query was restored from, and that the job does not declare,
            are dropped for good.
    """

    on_new_checkpoint: OnNewCheckpoint = "refuse"
    allow_dropped_states: bool = False


@dataclass(frozen=True)
class Start:
    """What a run is to record.

    Attributes:
        query: Where its epochs come from.
        states: As they are settled, and how many standbys each is to have.
        over: What only the first run after a restore had to know: to be deleted.
    """

    query: QueryRecord
    states: Mapping[StateDescriptor, int]
    over: Mapping[str, None]


def decide_start(query: str, control: QueryControl, batch: EpochBatch, options: StartOptions) -> Start:
    """Decides what becomes of a run's first batch.

    Raises:
        SavepointMismatch: The application is being restored, or was from a savepoint with more states, or to go on in
            real time.
        CheckpointMismatch: The batch is not the next one of the states.
        StateConflict: A bootstrap comes too late; or another query feeds a state.
        StateChanged: A state can't become what the job declares.
    """
    check_restored(control)
    if control.savepoint is not None and control.query is not None and control.query.spark_query_id == UPDATES:
        raise SavepointMismatch(
            f"query {query!r} was restored from a savepoint, to go on in real time: start it by queryable.realtime or "
            "keyhole feed; or restore it into another application without --real-time",
            query=query,
        )
    record = first_record(query, control.query, control.complete, batch, options.on_new_checkpoint)
    record = msgspec.structs.replace(record, stateful=batch.stateful)
    declared = [plan.descriptor.state for plan in batch.states]
    dropped = dropped_states(query, control.savepoint, declared, allowed=options.allow_dropped_states)
    states = {
        settled(control.states.get(plan.descriptor.state), plan.descriptor): plan.standbys for plan in batch.states
    }
    if written_otherwise(control.states, states):
        record = msgspec.structs.replace(record, evolved_epoch=record.base + batch.batch_id)
    return Start(record, states, settled_records(query, control.savepoint, dropped))


def decide_feed(
    query: str, control: QueryControl, states: Mapping[StateDescriptor, int], sources: Mapping[str, str]
) -> Start:
    """Decides what becomes of a run that feeds its states by updates.

    Args:
        states: As they are declared, without ids, and how many standbys each is to have.
        sources: By which topics feed them, each with the name of its topic.

    Returns:
        The states have the updates topic that is on record; a new one has none yet.

    Raises:
        SavepointMismatch: The application is being restored; or the query was, to go on by epochs or with other states.
        CheckpointMismatch: The query runs by epochs.
        StateConflict: Another query feeds a state. Or one of these topics does under another name: see `admitted`.
        StateChanged: A state is fed by epochs, or can't become what is declared.
    """
    check_restored(control)
    restored = control.savepoint is not None
    if restored and control.query is not None and control.query.spark_query_id != UPDATES:
        raise SavepointMismatch(
            f"query {query!r} was restored from a savepoint, to go on by epochs: start the job that fed it; or restore "
            f"it into another application with --real-time {query}",
            query=query,
        )
    dropped_states(query, control.savepoint, [of.state for of in states], allowed=False)
    if control.query is not None and control.query.spark_query_id != UPDATES:
        raise CheckpointMismatch(
            f"query {query!r} runs by the epochs of a Spark query, and can't be fed by updates: give it another name",
            query=query,
        )
    wanted, fed = {}, recorded_sources(control)
    for of, standbys in states.items():
        stored = control.states.get(of.state)
        if stored is not None and stored.query == of.query and not (stored.updates_topic_id or restored):
            raise StateChanged(
                f"state {of.state!r} is fed by epochs: give the one of updates another name", state=of.state
            )
        known = "" if stored is None else stored.updates_topic_id
        wanted[settled(stored, msgspec.structs.replace(of, updates_topic_id=known))] = standbys
        fed[of.state] = admitted(of.state, fed.get(of.state, ()), sources)
    record = QueryRecord(UPDATES, base=0, sources={name: of for name, of in fed.items() if of})
    return Start(record, wanted, settled_records(query, control.savepoint, ()))


def recorded_sources(control: QueryControl) -> dict[str, tuple[str, ...]]:
    """By state that is on record, the sources by which topics have fed it, as far as those are known."""
    known = {} if control.query is None else control.query.sources
    return {name: of for name, of in known.items() if name in control.states}
