"""`keyhole status --watch`: the servers and what they hold, again and again."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from keyhole import Client
from keyhole.cli import reads
from keyhole.cli.seen_servers import seen_servers
from keyhole.client.server_status import ServerStatus
from keyhole.demo.signals import stopped_by_signals
from keyhole.errors import KeyholeError
from keyhole.terminal.fitting import fitted
from keyhole.terminal.json_output import print_json
from keyhole.terminal.rounds import Rounds, show_rounds, time_of_day
from keyhole.terminal.written_out import written_out


class StatusRounds:
    """The status of each round. A server that the proxy knows no more stays, and is shown as such."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, ServerStatus] = {}
        self._present: frozenset[str] = frozenset()
        self.error = ""

    def look(self) -> None:
        """Asks the proxy. That it does not answer is shown, with what it has said last."""
        try:
            servers = self._client.status()
        except KeyholeError as error:
            self.error = error.message
            return
        self.error = ""
        self._present = frozenset(server.address for server in servers)
        self._known = seen_servers(self._known, servers)

    def servers(self) -> list[dict[str, Any]]:
        """A row for each server, as `keyhole status` has it, and whether something is wrong with it: those first that
        are there.
        """
        rows = []
        for address, server in self._known.items():
            row = reads.server_row(server)
            if address not in self._present:
                row["unreachable"] = "gone: the proxy knows it no more"
            rows.append(row)
        return rows

    def holdings(self) -> list[dict[str, Any]]:
        """A row for each state on each server that is there."""
        there = [server for address, server in sorted(self._known.items()) if address in self._present]
        return [reads.holding_row(holding) for server in there for holding in server.holdings]


def watch(client: Client, output: reads.OutputFormat, rounds: Rounds) -> None:
    """Until Ctrl-C, or so many rounds."""
    console, status = Console(highlight=False), StatusRounds(client)

    def say() -> None:
        if output.as_json:
            head = {"time": time_of_day(), "error": status.error or None}
            print_json(head | {"servers": status.servers(), "holdings": status.holdings()})
            return
        if status.error:
            print(f"{time_of_day()} {written_out(status.error)}", flush=True)
        output.rows(status.servers(), f"{time_of_day()} servers")
        output.rows(status.holdings(), f"{time_of_day()} states they hold")

    with stopped_by_signals():
        on = Console(file=console.file, force_terminal=False) if output.as_json else console
        show_rounds(on, rounds, status.look, lambda: _screen(status, console.width), say)


def _screen(status: StatusRounds, width: int) -> RenderableType:
    first = Text(f"{time_of_day()}  Ctrl-C ends it", no_wrap=True, overflow="ellipsis")
    if status.error:
        first = Text(
            written_out(f"{time_of_day()}  {status.error}"), style="bold red", no_wrap=True, overflow="ellipsis"
        )
    parts: list[RenderableType] = [first]
    servers = [
        {
            "server": row["server"] or row["address"],
            "is": row["unreachable"] or ("draining" if row["draining"] else "replica" if row["replica"] else "ok"),
            "address": row["address"],
            "started": row["started"],
        }
        for row in status.servers()
    ]
    holdings = [
        {
            "server": row["server"],
            "state": row["state"],
            "is": "ok" if row["ready"] else f"restores {row['restored_records']:,} of {row['records_to_restore']:,}",
            "role": row["role"],
            "key_groups": f"{row['key_groups']:,} of {row['all_key_groups']:,}",
            "epoch": row["epoch"],
            "staleness_seconds": row["staleness_seconds"],
            "lag_epochs": row["lag_epochs"],
            "lag_updates": row["lag_updates"],
            "entries": row["entries"],
            "bytes": row["bytes"],
        }
        for row in status.holdings()
    ]
    for rows in (servers, holdings):
        if rows:
            parts += [Text(), fitted(rows, width)]
    return Group(*parts)
