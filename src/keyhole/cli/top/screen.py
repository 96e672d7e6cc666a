"""What `keyhole top` shows, in a terminal of any size, in a pipe, and as JSON."""

from __future__ import annotations

import argparse

from rich.console import Console, Group, RenderableType
from rich.text import Text

from keyhole.cli.read_commands import LOOK_SECONDS
from keyhole.cli.reads import OutputFormat
from keyhole.cli.top.looks import ClusterLooks
from keyhole.cli.top.overview import Overview
from keyhole.client.target import targets_of
from keyhole.demo.signals import stopped_by_signals
from keyhole.security.credentials import Credentials
from keyhole.terminal.fitting import fitted, shortly, title_of
from keyhole.terminal.json_output import print_json
from keyhole.terminal.rounds import Rounds, show_rounds, time_of_day
from keyhole.terminal.written_out import written_out

_LEAST_ROWS = 4
_DRAWN_SECONDS = 0.5
# The lines that are no rows: the first one, and titles and blanks of two tables.
_AROUND = 6


def run(options: argparse.Namespace, credentials: Credentials, output: OutputFormat) -> int:
    """Until Ctrl-C, or so many rounds; returns the exit code: 0."""
    console, overview = Console(highlight=False), Overview()
    targets, seconds = targets_of(options.proxy), options.interval or LOOK_SECONDS

    def say() -> None:
        if output.as_json:
            head = {"time": time_of_day(), "error": overview.error or None, "silent": overview.silent()}
            print_json(head | {"servers": overview.servers(), "states": overview.states()})
            return
        for line in lines_of(overview, ",".join(targets)):
            print(line, flush=True)

    # Into a file or a program goes JSON line by line, also where it is a terminal.
    on = Console(file=console.file, force_terminal=False) if output.as_json else console
    # Somebody who looks is shown at once what is known; of lines that stay, each has what comes until the next one.
    patience = _DRAWN_SECONDS if on.is_terminal else max(_DRAWN_SECONDS, seconds)
    with stopped_by_signals(), ClusterLooks(targets, credentials, options.timeout, patience) as looks:
        show_rounds(
            on,
            Rounds(seconds, options.count),
            lambda: overview.take(looks.look()),
            lambda: screen_of(overview, ",".join(targets), console.width, console.height),
            say,
        )
    return 0


def screen_of(overview: Overview, proxy: str, width: int, height: int) -> RenderableType:
    """As much as a terminal of this size has room for."""
    servers, states = overview.servers(), overview.states()
    room = max(2 * _LEAST_ROWS, height - _AROUND)
    of_servers = min(len(servers), max(_LEAST_ROWS, room // 3))
    parts: list[RenderableType] = [_first_line(overview, proxy)]
    if servers:
        parts += [Text(), fitted(servers, width, of_servers)]
    if states:
        parts += [Text(), fitted(states, width, max(_LEAST_ROWS, room - of_servers))]
    elif servers:
        parts.append(Text("no states yet"))
    return Group(*parts)


def lines_of(overview: Overview, proxy: str) -> list[str]:
    """A line for each server and state, for `grep` and the like; each begins with the time."""
    at = time_of_day()
    lines = [f"{at} proxy {proxy}: {written_out(overview.error)}"] if overview.error else []
    silent = overview.silent()
    lines += [f"{at} proxy {address}: {silent[address]}" for address in proxy.split(",") if address in silent]
    for kind, rows in (("server", overview.servers()), ("state", overview.states())):
        for row in rows:
            rest = " ".join(
                f"{title_of(name)}={shortly(name, value)}".replace(" ", "_")
                for name, value in row.items()
                if name not in (kind, "is")
            )
            lines.append(f"{at} {kind} {written_out(row[kind])}: {written_out(row['is'])} {rest}")
    return lines


def _first_line(overview: Overview, proxy: str) -> Text:
    if overview.error:
        since = f" (what is shown is {overview.silent_seconds:.0f} s old)" if overview.silent_seconds else ""
        return Text(
            written_out(f"{time_of_day()}  {overview.error}{since}"),
            style="bold red",
            no_wrap=True,
            overflow="ellipsis",
        )
    states = overview.states()

    def total(name: str) -> str:
        known = [row[name] for row in states if row[name] is not None]
        return shortly(name, sum(known)) if known else "-"

    return Text(
        f"{time_of_day()}  {proxy}: servers: {overview.present}, states: {len(states)}, "
        f"{total('rows_per_second')} rows/s, {total('reads_per_second')} reads/s."
        f"{_silent(overview, proxy)} Ctrl-C ends it",
        no_wrap=True,
        overflow="ellipsis",
    )


def _silent(overview: Overview, proxy: str) -> str:
    """The proxies that tell no figures; servers have a row each."""
    silent = overview.silent()
    return "".join(f" {address} {silent[address]}." for address in proxy.split(",") if address in silent)
