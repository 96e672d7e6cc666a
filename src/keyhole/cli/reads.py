"""What the reading commands show: answers of a proxy or a state server, as a table, as JSON, or as types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from rich.console import Console

from keyhole import Answer, Client, Source, Stale, StateDescriptor
from keyhole.cli.codegen.python_types import python_types
from keyhole.cli.codegen.typescript_types import typescript_types
from keyhole.client.bounds import StalePolicy
from keyhole.client.options import ReadOptions
from keyhole.client.server_status import ServerStatus, StateHolding
from keyhole.encoding.key_text import parse_key
from keyhole.encoding.value_json import to_json
from keyhole.errors import KeyholeError, KeyMismatch, UnknownApplication, UnknownState
from keyhole.model.state_path import state_path
from keyhole.protocol.registration import columns_text
from keyhole.terminal import tables
from keyhole.terminal.json_output import print_json


@dataclass(frozen=True)
class OutputFormat:
    """How to print: `as_json` one JSON document, in which numbers are numbers, else tables for a person."""

    as_json: bool

    def rows(self, rows: Sequence[Mapping[str, Any]], title: str) -> None:
        """Same fields in each row; nothing but the title where there are none."""
        if self.as_json:
            print_json(list(rows))
            return
        tables.show(Console(), [tables.as_said(row) for row in rows], title)

    def before_the_first_epoch(self, path: str) -> None:
        """Says to a person what "found: False" leaves open then; a program has `epoch`."""
        if not self.as_json:
            what = f"{path}: epoch 0: no epoch is complete yet, so that nothing is known of any key"
            Console(stderr=True).print(what, markup=False, highlight=False, soft_wrap=True)


def states(client: Client, output: OutputFormat) -> None:
    """All states of all applications."""
    output.rows([_state_row(descriptor) for descriptor in client.list_states()], "states")


def _state_row(descriptor: StateDescriptor) -> dict[str, Any]:
    return {
        "state": descriptor.path,
        "kind": str(descriptor.kind),
        "key": columns_text(descriptor.key),
        "map_key": columns_text(descriptor.map_key) or None,
        "value": columns_text(descriptor.value.fields),
        "key_groups": descriptor.key_groups,
        "query": descriptor.query,
    }


def describe(client: Client, output: OutputFormat, path: str) -> None:
    """One state, and which server holds what of it."""
    application, state = state_path(path)
    descriptor = client.describe_state(application, state)
    holdings = [
        holding
        for server in client.status()
        for holding in server.holdings
        if (holding.descriptor.application, holding.descriptor.state) == (application, state)
    ]
    if output.as_json:
        held = [holding_row(holding) for holding in holdings]
        print_json(msgspec.to_builtins(descriptor) | {"holdings": held})
        return
    of_class = {"class_version": descriptor.class_version} if descriptor.class_version else {}
    output.rows([_state_row(descriptor) | of_class], path)
    output.rows([holding_row(holding) for holding in holdings], "held by")


@dataclass(frozen=True)
class Bounds:
    """Which copies may answer, and how old they may be; None: any age."""

    stale: StalePolicy = Stale.WHEN_NEEDED
    max_staleness_seconds: float | None = None
    min_epoch: int = 0
    as_of: int | None = None

    @property
    def options(self) -> ReadOptions:
        """As reads of a client take them."""
        return {
            "stale": self.stale,
            "max_staleness": self.max_staleness_seconds,
            "min_epoch": self.min_epoch,
            "as_of": self.as_of,
        }


def codegen(client: Client, application: str, states: Sequence[str], language: str) -> None:
    """Types for the values of an application's states, on standard output.

    Args:
        states: Those that are wanted; none: all.
        language: python or typescript.
    """
    found = {descriptor.state: descriptor for descriptor in client.list_states(application)}
    if not found:
        raise UnknownApplication(f"there is no application {application!r} with a state; `keyhole states` lists them")
    if unknown := [state for state in states if state not in found]:
        raise UnknownState(f"application {application} has no state {unknown[0]}; it has {', '.join(sorted(found))}")
    write = python_types if language == "python" else typescript_types
    print(write(application, [found[state] for state in sorted(states or found)]), end="")


def get(
    client: Client, output: OutputFormat, path: str, keys: Sequence[str], bounds: Bounds, *, latest: bool = False
) -> None:
    """The answers to some keys, in their order. An absent key is an answer.

    Args:
        latest: Also what is staged and not committed.
    """
    application, state = state_path(path)
    descriptor = client.describe_state(application, state)
    consistency: Literal["latest", "committed"] = "latest" if latest else "committed"
    typed = typed_keys(descriptor, path, keys)
    answers = client.get_many(application, state, typed, consistency=consistency, **bounds.options)
    rows = [
        _answer_row(key, answer) | staged_epoch([answer.source], latest=latest)
        for key, answer in zip(keys, answers, strict=True)
    ]
    output.rows(rows, path)
    if any(answer.epoch == 0 for answer in answers):
        output.before_the_first_epoch(path)


def staged_epoch(sources: Iterable[Source], *, latest: bool) -> dict[str, int | None]:
    """What is shown of these sources where the latest was asked for: the last epoch of which anything is staged."""
    if not latest:
        return {}
    return {"staged_epoch": max((source.staged_epoch for source in sources), default=0) or None}


def typed_keys(descriptor: StateDescriptor, path: str, keys: Sequence[str]) -> list[Any]:
    """Keys of entries, as a person has typed them. Raises KeyMismatch."""
    columns = (*descriptor.scan_key, *descriptor.entry_key)
    try:
        return [parse_key(columns, key) for key in keys]
    except KeyMismatch as error:
        if not (descriptor.scan_key and descriptor.entry_key):
            raise
        raise KeyMismatch(f"{error.message}. `keyhole scan {path} KEY` lists all entries of a key") from None


def _answer_row(key: str, answer: Answer) -> dict[str, Any]:
    return {
        "key": key,
        "found": answer.found,
        "value": to_json(answer.value) if answer.found else None,
        "epoch": answer.epoch,
        "commit_age_seconds": seconds_since(answer.commit_time),
        "staleness_seconds": seconds_since(answer.source.as_of),
        "lag_epochs": answer.source.lag_epochs,
        "server": answer.server,
        "role": role_of(answer.source),
    }


def seconds_since(moment: datetime | None) -> float | None:
    """How long ago that was, by this machine's clock."""
    # A server's clock may be ahead of this machine's.
    return None if moment is None else max(0.0, (datetime.now(UTC) - moment).total_seconds())


def role_of(source: Source) -> str:
    """The role, and whether its answers are confirmed."""
    return f"{source.role}, unconfirmed" if source.unconfirmed else str(source.role)


def status(client: Client, output: OutputFormat, pods: Mapping[str, Sequence[Mapping[str, Any]]] | None = None) -> None:
    """The servers, what each holds, and how far a restore is.

    Args:
        pods: Troubles of pods, by their kind, which are shown first: where nothing runs yet, no proxy answers. As JSON
            they and the servers are one object; where no proxy answers, `servers` is null in it, and `error` says why.
            None: nobody asked for them.

    Raises:
        KeyholeError: No proxy answers; the pods were shown.
    """
    if pods is not None and not output.as_json:
        for kind, rows in pods.items():
            output.rows(rows, kind.replace("_", " "))
    try:
        servers = client.status()
    except KeyholeError as error:
        if pods is not None and output.as_json:
            print_json({**pods, "servers": None, "error": error.message})
        raise
    if output.as_json:
        rows = [
            server_row(server)
            | {"holdings": [holding_row(of) for of in server.holdings], "placements": placement_rows(server)}
            for server in servers
        ]
        print_json(rows if pods is None else {**pods, "servers": rows})
        return
    output.rows([server_row(server) for server in servers], "servers")
    output.rows([holding_row(holding) for server in servers for holding in server.holdings], "states they hold")
    if moved := [row for server in servers for row in placement_rows(server)]:
        output.rows(moved, "what `keyhole move` has placed")


def server_row(server: ServerStatus) -> dict[str, Any]:
    """A server as programs are given it."""
    return {
        "server": server.server,
        "address": server.address,
        "started": server.started.isoformat(timespec="seconds") if server.started else None,
        "replica": server.replica,
        "draining": server.draining,
        "unreachable": server.unreachable or None,
    }


def placement_rows(server: ServerStatus) -> list[dict[str, Any]]:
    """What was moved to a server, as programs are given it."""
    return [
        {"server": server.server, "state": f"{of.application}/{of.state}", "key_groups": list(of.key_groups)}
        for of in server.placements
    ]


def holding_row(holding: StateHolding) -> dict[str, Any]:
    """What a server holds of a state, as programs are given it."""
    return {
        "server": holding.server,
        "state": holding.descriptor.path,
        "key_groups": len(holding.key_groups),
        "all_key_groups": holding.descriptor.key_groups,
        "role": role_of(holding.source),
        "ready": holding.ready,
        "restored_records": holding.restored_records,
        "records_to_restore": holding.records_to_restore,
        "epoch": holding.source.epoch,
        "lag_epochs": holding.source.lag_epochs,
        "staleness_seconds": seconds_since(holding.source.as_of),
        "lag_updates": holding.lag_updates,
        "updates_lag_seconds": holding.updates_lag.total_seconds(),
        "entries": holding.entries,
        "bytes": holding.bytes,
    }
