"""The command line's words: what each command takes, and which function runs it. Nothing is run here."""

from __future__ import annotations

import argparse
import functools
import os

from keyhole.changelog.settings import MIN_COMPACTION_LAG_MS
from keyhole.cli import read_commands, run_commands, tool_commands
from keyhole.cli.argument_values import (
    Version,
    add_pairs,
    addresses,
    age,
    count,
    days,
    kafka,
    name,
    seconds,
    seconds_or_none,
    state,
    whole,
)
from keyhole.cli.credential_arguments import add_credentials
from keyhole.cli.feed_arguments import add_feed
from keyhole.cli.project_arguments import add_new
from keyhole.cli.up_arguments import add_up
from keyhole.cli.wrong_usage import OneLineParser
from keyhole.config import DEFAULT_PROXY_PORT, PROXY_VARIABLE
from keyhole.demo.jobs import job_names
from keyhole.up.exports import proxy_here

_AS_LISTED = "as `keyhole states` lists them"


def parser_of_all() -> argparse.ArgumentParser:
    """The parser of all commands. What it gives has `run`: a function of what it gave, which returns the exit code."""
    parser: argparse.ArgumentParser = OneLineParser(
        prog="keyhole", description="Queryable state for Spark.", epilog="keyhole COMMAND --help says more of each."
    )
    parser.add_argument("--version", action=Version, nargs=0, help="print Keyhole's version")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    # Once: it looks at what runs here.
    proxy = proxy_here(os.environ)
    _add_reads(commands, proxy)
    _add_savepoint(commands)
    _add_verify(commands, proxy)
    _add_drain(commands, proxy)
    _add_retire(commands, proxy)
    _add_drop(commands, proxy)
    _add_doctor(commands, proxy)
    _add_token(commands)
    for of, program in run_commands.SERVICES.items():
        service = commands.add_parser(of, help=f"run a {of} here, configured by the environment")
        service.set_defaults(run=functools.partial(run_commands.become, program))
        if of == "state-server":
            service.add_argument("--role", choices=("owner", "replica"), help="default: KEYHOLE_STATE_SERVER_ROLE")
            service.add_argument("--applications", metavar="APP,...", help="what a replica follows")
    _add_jobs(commands)
    add_feed(commands)
    add_up(commands)
    add_new(commands)
    _add_jars(commands)
    completion = commands.add_parser("completion", help="print what a shell needs to complete commands by Tab")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    completion.set_defaults(run=tool_commands.run_completion)
    return parser


def _add_reads(commands: argparse._SubParsersAction[argparse.ArgumentParser], proxy: str) -> None:
    common = _common(proxy, 5.0)
    states = commands.add_parser("states", parents=[common], help="list the states that can be read")
    describe = commands.add_parser("describe", parents=[common], help="show what a state is and who holds it")
    describe.add_argument("state", type=state, metavar="APP/STATE", help=_AS_LISTED)
    get = commands.add_parser("get", parents=[common], help="look keys up")
    get.add_argument("state", type=state, metavar="APP/STATE", help=_AS_LISTED)
    get.add_argument(
        "keys",
        nargs="+",
        metavar="KEY",
        help="several columns: a JSON array, or separated by commas; of a map state the key's, then the map key's",
    )
    scan = commands.add_parser("scan", parents=[common], help="list all keys of a state, or the entries of one key")
    scan.add_argument("state", type=state, metavar="APP/STATE", help=_AS_LISTED)
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
        help="in place of all entries: count, sum(FIELD), min(FIELD), max(FIELD), avg(FIELD), top(N,FIELD), ...",
    )
    scan.add_argument("--keys-only", action="store_true", help="no values")
    scan.add_argument("--limit", type=count, metavar="N", help="default: all of one key, 1,000 of all keys")
    scan.add_argument("--after", metavar="TOKEN", help="of all keys: go on behind what an earlier scan has listed")
    watch = commands.add_parser("watch", parents=[common], help="print each change of keys, or of a state, as it comes")
    watch.add_argument("state", type=state, metavar="APP/STATE", help=_AS_LISTED)
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
    explain.add_argument("state", type=state, metavar="APP/STATE", help=_AS_LISTED)
    explain.add_argument("keys", nargs="+", metavar="KEY", help="as for get")
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
    command.add_argument(
        "--fields", type=lambda text: text.split(","), metavar="FIELD,...", help="of the values; default: all"
    )


def _common(proxy: str, timeout_seconds: float) -> argparse.ArgumentParser:
    """What all reads take. One of its own for each default: parsers that have it share its options."""
    common = argparse.ArgumentParser(add_help=False)
    _add_proxy(common, proxy)
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


def _add_proxy(command: argparse.ArgumentParser, proxy: str) -> None:
    command.add_argument(
        "--proxy",
        default=proxy,
        metavar="HOST:PORT,...",
        help=f"the client proxies to ask; default: {PROXY_VARIABLE}, that of `keyhole up` in this folder, or "
        f"127.0.0.1:{DEFAULT_PROXY_PORT}",
    )


def _add_servers(command: argparse._ActionsContainer) -> None:
    command.add_argument("--servers", type=addresses, metavar="HOST:PORT,...", help="in place of those a proxy knows")


def _add_token(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    token = commands.add_parser("token", help="make a bearer token, and the entry by which servers know it")
    token.add_argument("name", metavar="NAME", help="of whom it is for: the policy knows it as token:NAME")
    token.add_argument("--to", metavar="FILE", required=True, help="the token: a new file, for its owner only")
    token.add_argument("--days", type=days, metavar="N", help="until it expires; default: never")
    token.set_defaults(run=tool_commands.run_token)


def _add_savepoint(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    savepoint = commands.add_parser("savepoint", help="copy all states of an application to files, and back")
    verbs = savepoint.add_subparsers(required=True, metavar="VERB")
    shown = argparse.ArgumentParser(add_help=False)
    shown.add_argument("--format", choices=("table", "json"), default="table")
    shown.add_argument("--json", action="store_const", const="json", dest="format", help="as --format json")
    of_kafka = argparse.ArgumentParser(add_help=False)
    of_kafka.add_argument("--bootstrap-servers", type=kafka, required=True, metavar="HOST:PORT", help="Kafka")
    of_kafka.add_argument(
        "--timeout", type=seconds, default=30.0, metavar="SECONDS", help="of one call to Kafka (%(default)s)"
    )

    create = verbs.add_parser("create", parents=[of_kafka, shown], help="take one, while the job runs")
    create.add_argument("application", type=name, metavar="APP")
    create.add_argument("--to", required=True, metavar="PATH", help="a new folder, local or any that fsspec reaches")
    add_pairs(create, "--checkpoint", "QUERY=DIR", "Spark's checkpoint of a query; needed where Spark keeps state")
    create.add_argument(
        "--compaction-lag",
        type=seconds,
        default=MIN_COMPACTION_LAG_MS / 1000,
        metavar="SECONDS",
        help="min.compaction.lag.ms of the changelog topics, if it was raised (%(default)s)",
    )

    listed = verbs.add_parser("list", parents=[shown], help="show the savepoints in a folder")
    listed.add_argument("path", metavar="PATH")
    listed.add_argument("--check", action="store_true", help="read all files, and compare their checksums")

    restore = verbs.add_parser("restore", parents=[of_kafka, shown], help="make an application of one")
    restore.add_argument("path", metavar="PATH")
    restore.add_argument("--application", type=name, metavar="NAME", help="a new name; default: the old one")
    add_pairs(restore, "--key-groups", "STATE=N", "another number of key groups", count)
    add_pairs(restore, "--rename", "OLD=NEW", "another name for a state")
    add_pairs(restore, "--rename-query", "OLD=NEW", "another name for a query")
    add_pairs(restore, "--checkpoint", "QUERY=DIR", "an empty folder for Spark's checkpoint of the query")
    for command, verb in ((create, "create"), (listed, "list_"), (restore, "restore")):
        command.set_defaults(run=tool_commands.run_savepoint, verb=verb)


def _add_verify(commands: argparse._SubParsersAction[argparse.ArgumentParser], proxy: str) -> None:
    verify = commands.add_parser("verify", help="compare all copies of a state with its changelog, record by record")
    verify.add_argument("state", type=state, metavar="APP/STATE", help=_AS_LISTED)
    verify.add_argument("--bootstrap-servers", type=kafka, required=True, metavar="HOST:PORT", help="Kafka")
    _add_proxy(verify, proxy)
    _add_servers(verify)
    verify.add_argument(
        "--show", type=whole, default=0, metavar="N", help="also the first N storage keys of each kind, in hexadecimal"
    )
    verify.add_argument("--timeout", type=seconds, default=30.0, metavar="SECONDS", help="of one call (%(default)s)")
    verify.add_argument(
        "--dump-timeout", type=seconds, default=3600.0, metavar="SECONDS", help="to read one server (%(default)s)"
    )
    verify.add_argument("--format", choices=("table", "json"), default="table")
    verify.add_argument("--json", action="store_const", const="json", dest="format", help="as --format json")
    add_credentials(verify)
    verify.set_defaults(run=tool_commands.run_verify)


def _add_drain(commands: argparse._SubParsersAction[argparse.ArgumentParser], proxy: str) -> None:
    drain = commands.add_parser("drain", help="have a state server give its key groups to others, and take no more")
    drain.add_argument("server", metavar="SERVER", help="its id or its address, as `keyhole status` has them")
    drain.add_argument("--undo", action="store_true", help="it may be given key groups again")
    drain.add_argument(
        "--wait",
        type=seconds_or_none,
        default=60.0,
        metavar="SECONDS",
        help="until it owns no key group (%(default)s); 0: not at all",
    )
    _add_proxy(drain, proxy)
    drain.add_argument(
        "--timeout", type=seconds, default=5.0, metavar="SECONDS", help="to wait for an answer (%(default)s)"
    )
    drain.add_argument("--format", choices=("table", "json"), default="table", help="for people, or for programs")
    drain.add_argument("--json", action="store_const", const="json", dest="format", help="as --format json")
    add_credentials(drain)
    drain.set_defaults(run=tool_commands.run_drain)


def _add_retire(commands: argparse._SubParsersAction[argparse.ArgumentParser], proxy: str) -> None:
    retire = commands.add_parser("retire", help="have all state servers forget a query whose job is over for good")
    retire.add_argument("application", type=name, metavar="APP")
    retire.add_argument("query", type=name, metavar="QUERY", nargs="?", help="default: all of the application")
    _add_proxy(retire, proxy)
    _add_servers(retire)
    retire.add_argument(
        "--timeout",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="of each server; a job that has just ended counts as running for 3 s (%(default)s)",
    )
    retire.add_argument("--format", choices=("table", "json"), default="table")
    retire.add_argument("--json", action="store_const", const="json", dest="format", help="as --format json")
    add_credentials(retire)
    retire.set_defaults(run=tool_commands.run_retire)


def _add_drop(commands: argparse._SubParsersAction[argparse.ArgumentParser], proxy: str) -> None:
    drop = commands.add_parser("drop", help="delete a query that is over: its states, their topics and its records")
    drop.add_argument("application", type=name, metavar="APP")
    drop.add_argument(
        "query", type=name, metavar="QUERY", help="of a state that `keyhole feed` feeds: the state's name"
    )
    drop.add_argument("--yes", action="store_true", help="else what would go is shown, and nothing goes")
    drop.add_argument("--bootstrap-servers", type=kafka, required=True, metavar="HOST:PORT", help="Kafka")
    _add_proxy(drop, proxy)
    servers = drop.add_mutually_exclusive_group()
    _add_servers(servers)
    servers.add_argument(
        "--no-servers", action="store_true", help="there are none any more that would have to forget it"
    )
    drop.add_argument(
        "--timeout",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="of each server and of one call to Kafka; a job that has just ended counts as running for 3 s "
        "(%(default)s)",
    )
    drop.add_argument("--format", choices=("table", "json"), default="table")
    drop.add_argument("--json", action="store_const", const="json", dest="format", help="as --format json")
    add_credentials(drop)
    drop.set_defaults(run=tool_commands.run_drop)


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser], proxy: str) -> None:
    doctor = commands.add_parser("doctor", help="look at all that reads and jobs need, and say what is wrong")
    _add_proxy(doctor, proxy)
    doctor.add_argument(
        "--bootstrap-servers",
        type=kafka,
        metavar="HOST:PORT",
        help="Kafka; default: KEYHOLE_JOB_BOOTSTRAP_SERVERS, or that of `keyhole up`; else it is not looked at",
    )
    doctor.add_argument("--strict", action="store_true", help="exit code 1 for warnings, too")
    doctor.add_argument("--timeout", type=seconds, default=5.0, metavar="SECONDS", help="of one look (%(default)s)")
    doctor.add_argument("--format", choices=("table", "json"), default="table")
    doctor.add_argument("--json", action="store_const", const="json", dest="format", help="as --format json")
    add_credentials(doctor)
    doctor.set_defaults(run=tool_commands.run_doctor)


def _add_jobs(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    running = argparse.ArgumentParser(add_help=False)
    running.add_argument("--seconds", type=seconds, metavar="S", help="end by itself; default: at Ctrl-C")
    running.add_argument("--verify", action="store_true", help="count everything again at the end, and compare")
    running.add_argument("--chaos", action="store_true", help="kill -9 the state server and the driver once each")
    running.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    job = commands.add_parser("job", parents=[running], help="run a job with all that it needs on this machine")
    job.add_argument("name", choices=job_names())
    job.add_argument(
        "--external",
        action="store_true",
        help="only the job's own process, configured by the environment; also where KEYHOLE_JOB_SERVERS is set",
    )
    job.set_defaults(run=run_commands.start_job)
    demo = commands.add_parser("demo", parents=[running], help="run the main job so, and show live answers")
    demo.add_argument("--sensors", type=count, default=1000, metavar="N", help="of the synthetic fleet (%(default)s)")
    demo.add_argument("--rate", type=count, default=1000, metavar="R", help="its events per second (%(default)s)")
    demo.add_argument(
        "--realtime",
        action="store_true",
        help="feed the state in Spark's real-time mode: readings are shown some milliseconds after they were sent; "
        "there are no alerts",
    )
    demo.set_defaults(run=run_commands.start_demo)


def _add_jars(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    jars = commands.add_parser("jars", help="print Spark's Kafka connector, for spark-submit --jars; fetched once")
    jars.add_argument("--s3", action="store_true", help="and what Spark needs for checkpoints at s3a://")
    jars.set_defaults(run=tool_commands.run_jars)
