"""A state's descriptor as the control topic has it, for those who write to it and hold no run."""

from __future__ import annotations

from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.errors import ChangelogRecreated, UnknownApplication, UnknownState
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import read_control

_OPEN_SECONDS = 30.0
_DECLARED = "Start the job, or the `keyhole feed`, that declares the state"


def recorded_state(bootstrap_servers: str, application: str, state: str) -> StateDescriptor:
    """The state as its runs have declared it.

    Raises:
        UnknownApplication, UnknownState: There is none.
        KafkaUnreachable: Kafka does not answer.
    """
    control = KafkaChangelog(bootstrap_servers, application).control("")
    try:
        states = read_control(control.read(_OPEN_SECONDS), "").states
    except ChangelogRecreated as error:
        raise UnknownApplication(
            f"no application {application} is known to Kafka at {bootstrap_servers}. {_DECLARED}"
        ) from error
    finally:
        control.close()
    if state not in states:
        has = f"; it has {', '.join(sorted(states))}" if states else ""
        raise UnknownState(f"application {application} has no state {state}{has}. {_DECLARED}")
    return states[state]
