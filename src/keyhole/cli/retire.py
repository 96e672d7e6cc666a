"""`keyhole retire APP [QUERY]`: has all state servers forget a query that is over."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

from keyhole import Client
from keyhole.cli.patience import patience
from keyhole.cli.reads import OutputFormat
from keyhole.errors import KeyholeError, StillRunning
from keyhole.rpc.retiring import retire
from keyhole.security.credentials import Credentials
from keyhole.terminal.json_output import print_json
from keyhole.terminal.written_out import written_out


class _RetiringServer(NamedTuple):
    """A server. `away`: why it is not asked; empty: it is."""

    server: str
    address: str
    away: str = ""


class Retired(NamedTuple):
    """What came of it: by server the states of each query that it has forgotten now; and why others were not asked."""

    found: dict[str, dict[str, list[str]]]
    away: dict[str, str]

    def rows(self) -> list[dict[str, Any]]:
        """One per server and query."""
        return [
            {"server": server, "query": query, "states": states}
            for server, queries in self.found.items()
            for query, states in queries.items()
        ]


def run(options: argparse.Namespace, credentials: Credentials, output: OutputFormat) -> int:
    """Exit code 1 where a server could not be asked: of that, nothing is known.

    Raises:
        StillRunning: A server takes a run for alive. None has forgotten anything, unless the run has begun since all
            were asked.
    """
    with patience(f"having the servers forget {options.application}"):
        done = retire_everywhere(options, credentials)
    rows = done.rows()
    if output.as_json:
        print_json({"application": options.application, "retired": rows, "not_asked": done.away})
        return 1 if done.away else 0
    output.rows([row | {"states": ", ".join(row["states"])} for row in rows], f"forgotten of {options.application}")
    for name, why in done.away.items():
        print(written_out(f"not asked: {name}: {why}"))
    return 1 if done.away else 0


def retire_everywhere(options: argparse.Namespace, credentials: Credentials, *, need_all: bool = False) -> Retired:
    """Has all servers forget `options.query` of `options.application`.

    Args:
        need_all: None forgets anything unless all can be asked.

    Raises:
        StillRunning: As `run`.
    """
    asked = _servers(options, credentials)
    away = {server.server: server.away for server in asked if server.away}
    found: dict[str, dict[str, list[str]]] = {}
    # All are asked before any forgets something: one that refuses may not be the first.
    for check_only in (True, False):
        if away and need_all:
            return Retired({}, away)
        for server in asked:
            if server.server in away:
                continue
            try:
                found[server.server] = retire(
                    server.address,
                    options.application,
                    options.query or "",
                    check_only=check_only,
                    timeout_seconds=options.timeout,
                    credentials=credentials,
                )
            except StillRunning:
                raise
            except KeyholeError as error:
                away[server.server] = error.message
    return Retired({server: queries for server, queries in found.items() if server not in away}, away)


def _servers(options: argparse.Namespace, credentials: Credentials) -> list[_RetiringServer]:
    """Owners first: they know best whether a run is alive, and replicas forget nothing where one is."""
    if options.servers:
        return [_RetiringServer(address, address) for address in options.servers]
    with Client(options.proxy, timeout=options.timeout, credentials=credentials) as client:
        known = sorted(client.status(), key=lambda status: (status.replica, status.server))
    return [_RetiringServer(status.server or status.address, status.address, status.unreachable) for status in known]
