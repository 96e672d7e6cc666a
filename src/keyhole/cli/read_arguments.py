"""The words of the commands that read states through a proxy: states, get, scan, watch, sql and the like."""

from __future__ import annotations

import argparse

from keyhole.cli import read_commands, tool_commands
from keyhole.cli.argument_values import (
    age,
    count,
    name,
    seconds,
    state,
    whole,
)
from keyhole.cli.credential_arguments import add_credentials
from keyhole.config import DEFAULT_PROXY_PORT, PROXY_VARIABLE
from keyhole.model.selection import named_fields

AS_LISTED = "as `keyhole states` lists them"


def add_reads(commands: argparse._SubParsersAction[argparse.ArgumentParser], proxy: str) -> None:
    """Adds the commands that read states through a proxy.

    Args:
        proxy: The default of `--proxy`.
    """
    common = _common(proxy, 5.0)
    states = commands.add_parser("states", parents=[common], help="list the states that can be read")
    describe = commands.add_parser("describe", parents=[common], help="show what a state is and who holds it")
    describe.add_argument("state", type=state, metavar="APP/STATE", help=AS_LISTED)
    get = commands.add_parser("get", parents=[common], help="look keys up")
    get.add_argument("state", type=state, metavar="APP/STATE", help=AS_LISTED)
    get.add_argument(
        "keys",
        nargs="+",
        metavar="KEY",
        help="several columns: a JSON array, or separated by commas; of a map state the key's, then the map key's",
    )
    scan = commands.add_parser("scan", parents=[common], help="list all keys of a state, or the entries of one key")
    scan.add_argument("state", type=state, metavar="APP/STATE", help=AS_LISTED)
    scan.add_argument(
        "key", nargs="?", metavar="KEY", help="as for get, without the map key; default: all keys, in no order"
    )
    scan.add_argument(
        "--from",
        dest="start",
        metavar="MAPKEY",
        help="inclusive, its first columns will do; of all keys a key; default: all",
    )
    scan.add_argument("--to", dest="stop", metavar="MAPKEY", help="exclusive; as --from")
    scan.add_argument("--descending", action="store_true", help="from the last one on")
    scan.add_argument("--ordered", action="store_true", help="all keys in the order of the keys; default: in none")
    scan.add_argument("--prefix", metavar="KEY", help="of all keys those that begin so: of a text, or of bytes")
    scan.add_argument("--map-from", metavar="MAPKEY", help="of all keys: under each from this one on (inclusive)")
    scan.add_argument("--map-to", metavar="MAPKEY", help="of all keys: under each up to this one (exclusive)")
    _add_selection(scan)
    scan.add_argument(
        "--aggregate",
        action="append",
        default=[],
        metavar="FIGURE",
        help="in place of the entries: count, sum(FIELD), min(FIELD), max(FIELD), avg(FIELD), top(N,FIELD), ...",
    )
    scan.add_argument("--keys-only", action="store_true", help="no values")
    scan.add_argument("--limit", type=count, metavar="N", help="default: all of one key, 1,000 of all keys")
    scan.add_argument("--after", metavar="TOKEN", help="of all keys: go on behind what an earlier scan has listed")
    watch = commands.add_parser("watch", parents=[common], help="print each change of keys, or of a state, as it comes")
    watch.add_argument("state", type=state, metavar="APP/STATE", help=AS_LISTED)
    watch.add_argument(
        "keys", nargs="*", metavar="KEY", help="as for get; also without the map key; default: all of the state"
    )
    watch.add_argument("--prefix", metavar="KEY", help="in place of keys: those that begin so, of a text or of bytes")
    watch.add_argument("--from", dest="start", metavar="KEY", help="in place of keys: from one on; default: all")
    watch.add_argument("--to", dest="stop", metavar="KEY", help="exclusive; as --from")
    _add_selection(watch)
    watch.add_argument("--after", metavar="TOKEN", help="go on behind what an earlier watch of these keys has printed")
    watch.add_argument("--no-rows", dest="rows", action="store_false", help="without the rows that are there")
    watch.add_argument("--before", action="store_true", help="with what was there before, as far as it is known")
    watch.add_argument(
        "--latest-only", action="store_true", help="of each key the last change alone, where they come too fast"
    )
    watch.add_argument("--count", type=count, metavar="N", help="so many lines; default: until it is interrupted")
    sql = commands.add_parser(
        "sql",
        parents=[_common(proxy, 60.0)],
        help="run one SELECT over states, by DuckDB in this process",
    )
    sql.add_argument("query", metavar="QUERY", help="states are named 'APP/STATE', in quotes; - reads standard input")
    sql.add_argument("--application", type=name, metavar="APP", help="of states that are named without one")
    sql.add_argument("--savepoint", metavar="DIR", help="over the states of this savepoint, with nothing that runs")
    sql.add_argument("--explain", action="store_true", help="in place of the rows: what the servers were asked")
    sql.add_argument("--memory", default="1GB", metavar="SIZE", help="the most that DuckDB may take (%(default)s)")
    sql.set_defaults(run=tool_commands.run_sql)
    explain = commands.add_parser(
        "explain", parents=[common], help="say how keys are read: who is asked, how long each takes, who holds them"
    )
    explain.add_argument("state", type=state, metavar="APP/STATE", help=AS_LISTED)
    explain.add_argument("keys", nargs="+", metavar="KEY", help="as for get")
    for command in (get, scan):
        command.add_argument(
            "--latest",
            action="store_true",
            help="also what is staged on the owners and not committed, which may be undone",
        )
    for command in (get, scan, explain):
        command.add_argument(
            "--stale",
            choices=("never", "when_needed", "always"),
            default="when_needed",
            help="whether another copy than the owner's may answer (%(default)s: while the owner can't)",
        )
        command.add_argument(
            "--max-staleness", type=age, metavar="SECONDS", help="the oldest answer that will do; default: any"
        )
        command.add_argument(
            "--min-epoch", type=whole, default=0, metavar="EPOCH", help="the first epoch that will do; default: any"
        )
        command.add_argument(
            "--as-of", type=count, metavar="EPOCH", help="as of this very epoch, which servers keep for a while"
        )
    status = commands.add_parser("status", parents=[common], help="show the servers, and how far restores are")
    status.add_argument("--watch", action="store_true", help="again and again, until Ctrl-C")
    top = commands.add_parser(
        "top", parents=[common], help="show rates and ages of states and servers, again and again"
    )
    top.set_defaults(run=tool_commands.run_top)
    for command in (status, top):
        command.add_argument(
            "--interval",
            type=seconds,
            metavar="SECONDS",
            help=f"between two looks ({read_commands.LOOK_SECONDS})",
        )
        command.add_argument("--count", type=count, metavar="N", help="end after so many looks; default: at Ctrl-C")
    status.add_argument(
        "--pods",
        nargs="?",
        const=read_commands.RELEASES,
        metavar="SELECTOR",
        help="also ask Kubernetes which pods wait, and which containers were killed or failed; default: %(const)s",
    )
    status.add_argument("--namespace", help="of these pods; default: the one that this runs in, or KUBECONFIG's")
    codegen = commands.add_parser("codegen", parents=[common], help="write types for the values of states")
    codegen.add_argument("application", type=name, metavar="APP", help="whose states")
    codegen.add_argument("states", type=name, nargs="*", metavar="STATE", help="default: all of them")
    codegen.add_argument(
        "--language", choices=("python", "typescript"), default="python", help="typescript: for HTTP (%(default)s)"
    )
    reads = {"states": states, "describe": describe, "get": get, "scan": scan, "status": status, "codegen": codegen}
    reads["watch"] = watch
    for read, command in (reads | {"explain": explain}).items():
        command.set_defaults(run=read_commands.read, read=read)


def _add_selection(command: argparse.ArgumentParser) -> None:
    """Of which entries, and what of each."""
    command.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="COMPARISON",
        help="such entries alone, as 'max > 30', 'city in Bern,Basel', 'city is null'; several: all of them must hold",
    )
    command.add_argument("--fields", type=named_fields, metavar="FIELD,...", help="of the values; default: all")


def _common(proxy: str, timeout_seconds: float) -> argparse.ArgumentParser:
    """What all reads take. One of its own for each default: parsers that have it share its options."""
    common = argparse.ArgumentParser(add_help=False)
    add_proxy(common, proxy)
    common.add_argument(
        "--timeout",
        type=seconds,
        default=timeout_seconds,
        metavar="SECONDS",
        help="to wait for the answer (%(default)s)",
    )
    common.add_argument("--format", choices=("table", "json"), default="table", help="for people, or for programs")
    common.add_argument("--json", action="store_const", const="json", dest="format", help="as --format json")
    add_credentials(common)
    return common


def add_proxy(command: argparse.ArgumentParser, proxy: str) -> None:
    """Which client proxies are asked."""
    command.add_argument(
        "--proxy",
        default=proxy,
        metavar="HOST:PORT,...",
        help=f"the client proxies to ask; default: {PROXY_VARIABLE}, that of `keyhole up` in this folder, or "
        f"127.0.0.1:{DEFAULT_PROXY_PORT}",
    )
