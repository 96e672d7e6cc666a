"""The command line's words: what each command takes, and which function runs it. Nothing is run here."""

from __future__ import annotations

import argparse
import functools
import os

from keyhole.changelog.settings import MIN_COMPACTION_LAG_MS
from keyhole.cli import run_commands, tool_commands
from keyhole.cli.argument_values import (
    Version,
    add_pairs,
    addresses,
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
from keyhole.cli.read_arguments import AS_LISTED, add_proxy, add_reads
from keyhole.cli.size.arguments_of_size import add_size
from keyhole.cli.up_arguments import add_up
from keyhole.cli.wrong_usage import OneLineParser
from keyhole.demo.described_jobs import job_names
from keyhole.up.exports import proxy_here


def parser_of_all() -> argparse.ArgumentParser:
    """The parser of all commands. What it gives has `run`: a function of what it gave, which returns the exit code."""
    parser: argparse.ArgumentParser = OneLineParser(
        prog="keyhole", description="Queryable state for Spark.", epilog="keyhole COMMAND --help says more of each."
    )
    parser.add_argument("--version", action=Version, nargs=0, help="print Keyhole's version")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    # Once: it looks at what runs here.
    proxy = proxy_here(os.environ)
    add_reads(commands, proxy)
    _add_savepoint(commands)
    _add_verify(commands, proxy)
    _add_move(commands, proxy)
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
    add_size(commands)
    _add_jars(commands)
    completion = commands.add_parser("completion", help="print what a shell needs to complete commands by Tab")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    completion.set_defaults(run=tool_commands.run_completion, of_all=parser)
    return parser


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
    restore.add_argument(
        "--real-time",
        action="append",
        default=[],
        metavar="QUERY",
        help="the query goes on in the real-time lane; may be repeated",
    )
    for command, verb in ((create, "create"), (listed, "list_"), (restore, "restore")):
        command.set_defaults(run=tool_commands.run_savepoint, verb=verb)


def _add_verify(commands: argparse._SubParsersAction[argparse.ArgumentParser], proxy: str) -> None:
    verify = commands.add_parser("verify", help="compare all copies of a state with its changelog, record by record")
    verify.add_argument("state", type=state, metavar="APP/STATE", help=AS_LISTED)
    verify.add_argument("--bootstrap-servers", type=kafka, required=True, metavar="HOST:PORT", help="Kafka")
    add_proxy(verify, proxy)
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


def _add_move(commands: argparse._SubParsersAction[argparse.ArgumentParser], proxy: str) -> None:
    move = commands.add_parser("move", help="have a state server own key groups of a state, and keep them")
    move.add_argument("state", type=state, metavar="APP/STATE", help=AS_LISTED)
    move.add_argument(
        "key_groups",
        type=whole,
        nargs="+",
        metavar="KEY-GROUP",
        help="its number, from 0; `keyhole explain` says which one a key is in",
    )
    where = move.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", metavar="SERVER", help="its id or its address, as `keyhole status` has them")
    where.add_argument("--undo", action="store_true", help="they may be on any server again")
    _add_wait(move, "until the server owns them")
    _add_answer(move, proxy)
    move.set_defaults(run=tool_commands.run_move)


def _add_wait(parser: argparse.ArgumentParser, until: str) -> None:
    parser.add_argument(
        "--wait",
        type=seconds_or_none,
        default=60.0,
        metavar="SECONDS",
        help=f"{until} (%(default)s); 0: not at all",
    )


def _add_answer(parser: argparse.ArgumentParser, proxy: str) -> None:
    add_proxy(parser, proxy)
    parser.add_argument(
        "--timeout", type=seconds, default=5.0, metavar="SECONDS", help="to wait for an answer (%(default)s)"
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="for people, or for programs")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="as --format json")
    add_credentials(parser)


def _add_drain(commands: argparse._SubParsersAction[argparse.ArgumentParser], proxy: str) -> None:
    drain = commands.add_parser("drain", help="have a state server give its key groups to others, and take no more")
    drain.add_argument("server", metavar="SERVER", help="its id or its address, as `keyhole status` has them")
    drain.add_argument("--undo", action="store_true", help="it may be given key groups again")
    _add_wait(drain, "until it owns no key group")
    _add_answer(drain, proxy)
    drain.set_defaults(run=tool_commands.run_drain)


def _add_retire(commands: argparse._SubParsersAction[argparse.ArgumentParser], proxy: str) -> None:
    retire = commands.add_parser("retire", help="have all state servers forget a query whose job is over for good")
    retire.add_argument("application", type=name, metavar="APP")
    retire.add_argument("query", type=name, metavar="QUERY", nargs="?", help="default: all of the application")
    add_proxy(retire, proxy)
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
    add_proxy(drop, proxy)
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
    add_proxy(doctor, proxy)
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
