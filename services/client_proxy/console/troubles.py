"""What is wrong, and what to do about it, from the worst to the least. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

import msgspec

from keyhole.v1 import query_pb2 as pb
from services.client_proxy.console.group_lag import FAR_EPOCHS, FAR_UPDATES_MS
from services.client_proxy.console.group_runs import GroupStatus
from services.client_proxy.console.state_standing import StateStanding

_STALE_MS = 30_000


class Severity(enum.StrEnum):
    """BAD: reads fail. WARNING: reads are answered, and something needs a look. NOTE: it mends by itself."""

    BAD = "bad"
    WARNING = "warning"
    NOTE = "note"


class ShownTrouble(msgspec.Struct, frozen=True):
    """One thing that is wrong.

    Attributes:
        about: "APPLICATION/STATE", or a server's name.
        application, state: Of a state's; else empty.
        what: A sentence.
        to_do: What to do about it, or what will happen by itself.
        since_ms: Since when, where that is known: milliseconds since 1970; 0: not known.
    """

    severity: Severity
    about: str
    application: str
    state: str
    what: str
    to_do: str
    since_ms: int = 0


_ORDER = {severity: order for order, severity in enumerate(Severity)}


def troubles_of(now_ms: int, states: Iterable[StateStanding], servers: Iterable[pb.ServerStatus]) -> list[ShownTrouble]:
    """All of them.

    Args:
        servers: Those that may be named.
    """
    found = [trouble for state in states for trouble in _of_state(now_ms, state)]
    found += [trouble for server in servers for trouble in _of_server(server)]
    return sorted(found, key=lambda trouble: (_ORDER[trouble.severity], trouble.about))


def _of_state(now_ms: int, state: StateStanding) -> Iterator[ShownTrouble]:
    def trouble(severity: Severity, what: str, to_do: str, since_ms: int = 0) -> ShownTrouble:
        about = f"{state.application}/{state.state}"
        return ShownTrouble(severity, about, state.application, state.state, what, to_do, since_ms)

    writer = "the feeder" if state.fed_by == "updates" else "the job"
    query = f"query {state.query} of application {state.application}"
    if nobody := state.count(GroupStatus.NOBODY):
        yield trouble(
            Severity.BAD,
            f"{_groups(nobody, state)} no server: reads of their keys fail.",
            f"See that the state servers run, and {writer} ({query}), which gives key groups to servers. "
            "Standbys or a replica would answer meanwhile.",
        )
    if waiting := state.count(GroupStatus.WAITING):
        yield trouble(
            Severity.BAD,
            f"{_groups(waiting, state)} an owner that still restores, and no other copy: reads wait.{_progress(state)}",
            "Wait: they are answered once the changelog is read. With standbys, nobody has to wait for a restore.",
        )
    if followed := state.count(GroupStatus.FOLLOWED):
        yield trouble(
            Severity.WARNING,
            f"{_groups(followed, state)} no owner: other copies answer, and they get no newer rows from {writer}.",
            f"Start {writer} again ({query}) if it does not run: it gives them to servers within seconds. "
            "Replicas alone answer for as long as you like.",
            state.as_of_ms,
        )
    if unconfirmed := state.count(GroupStatus.UNCONFIRMED):
        yield trouble(
            Severity.WARNING,
            f"{writer.capitalize()} of {_all_or(unconfirmed, state)} has not been heard of: what is read gets older.",
            f"Start {writer} again ({query}). Until then, reads with stale=never are refused, and all others answered.",
            state.as_of_ms,
        )
    if restoring := state.count(GroupStatus.RESTORING):
        yield trouble(
            Severity.NOTE,
            f"{_groups(restoring, state)} an owner that still restores; other copies answer.{_progress(state)}",
            "Nothing: it takes over once it has read the changelog.",
        )
    lately = state.as_of_ms and now_ms - state.as_of_ms > _STALE_MS
    if lately and not state.count(GroupStatus.FOLLOWED, GroupStatus.UNCONFIRMED):
        yield trouble(
            Severity.WARNING,
            "What readers see is old, though its owner answers.",
            f"Look into the log of {writer} ({query}), and compare the clocks of its machine and of this one.",
            state.as_of_ms,
        )
    if state.lag_epochs >= FAR_EPOCHS:
        yield trouble(
            Severity.WARNING,
            f"A standby or replica is {state.lag_epochs} epochs behind.",
            "See whether it reaches Kafka, and whether its disk keeps up: its log says so.",
        )
    if state.updates_lag_ms >= FAR_UPDATES_MS:
        yield trouble(
            Severity.WARNING,
            f"{state.lag_updates:,} updates are not applied yet; the oldest has waited for "
            f"{state.updates_lag_ms // 1000} s.",
            "See whether its owners reach Kafka and have the processor time; more state servers share the key groups.",
        )
    if state.epoch == 0 and state.fed_by == "epochs" and state.count(GroupStatus.OWNED):
        yield trouble(
            Severity.NOTE,
            "No epoch is complete yet: nothing is known of any key.",
            f"Wait for the first batch of {query}; its log says what it waits for.",
        )


def _of_server(server: pb.ServerStatus) -> Iterator[ShownTrouble]:
    name = server.server or server.address
    if server.unreachable:
        yield ShownTrouble(
            Severity.WARNING,
            name,
            "",
            "",
            f"The client proxy can't reach it: {server.unreachable}",
            "Start it again, or take it out of what KEYHOLE_CLIENT_PROXY_SERVERS names.",
        )
    elif server.draining:
        yield ShownTrouble(
            Severity.NOTE,
            name,
            "",
            "",
            "It drains: its key groups go to others, and it is given none.",
            f"Nothing. `keyhole drain {name} --undo` ends that." if server.goes_on else "Nothing: it is about to end.",
        )


def _groups(count: int, state: StateStanding) -> str:
    return f"{count:,} of {state.key_groups:,} key groups {'has' if count == 1 else 'have'}"


def _all_or(count: int, state: StateStanding) -> str:
    return "this state" if count == state.key_groups else f"{count:,} of {state.key_groups:,} key groups"


def _progress(state: StateStanding) -> str:
    if not state.records_to_restore:
        return ""
    percent = 100 * state.restored_records // state.records_to_restore
    return f" {percent} % of {state.records_to_restore:,} records are read."
