"""What the first batch of a run makes of what is on record: decided before the run takes the query, and after. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from keyhole.model.evolution import written_otherwise
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import QueryControl, QueryRecord
from keyhole.protocol.epoch_of_batch import OnNewCheckpoint, first_record
from keyhole.protocol.epochs import EpochBatch
from keyhole.protocol.registration import settled
from keyhole.protocol.takeover import check_restored, dropped_states, settled_records


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
        SavepointMismatch: The application is being restored, or was from a savepoint with more states.
        CheckpointMismatch: The batch is not the next one of the states.
        StateConflict: A bootstrap comes too late; or another query feeds a state.
        StateChanged: A state can't become what the job declares.
    """
    check_restored(control)
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
