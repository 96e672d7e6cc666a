"""The command `keyhole`. Each command imports what it needs when it runs: reading needs neither Spark nor Kafka."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keyhole import installing
from keyhole.changelog.settings import MIN_COMPACTION_LAG_MS
from keyhole.config import DEFAULT_PROXY_PORT, CliConfig, load
from keyhole.demo.jobs import JobDescription, described, job_names
from keyhole.errors import InvalidConfiguration, KeyholeError
from keyhole.security.credentials import Credentials
from keyhole.terminal.written_out import written_out


class Program(NamedTuple):
    """What a command runs by module name, and which extra brings the modules that it can't do without."""

    module: str
    extra: str
    needs: tuple[str, ...]


SERVICES = {
    "state-server": Program("services.state_server", "server,kafka", ("grpc_health", "lmdb", "confluent_kafka")),
    "client-proxy": Program("services.client_proxy", "server", ("grpc_health", "uvloop")),
}
_OF_JOBS = ("pyspark", "confluent_kafka")

_AS_LISTED = "as `keyhole states` lists them"

_TO_READ = ("grpc", "rich")
_TO_VERIFY = (*_TO_READ, "confluent_kafka", "lmdb")
_TO_SAVE = (*_TO_READ, "confluent_kafka", "fsspec", "lmdb", "pyarrow")
_FOR_THE_DEMO = (*_TO_READ, "grpc_health", "pyspark", "confluent_kafka", "lmdb", "jgo", "vega_datasets")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 for an error (its message on standard error), 2 for wrong usage."""
    parser = _parser()
    given = sys.argv[1:] if arguments is None else arguments
    if not given:
        parser.print_help(sys.stderr)
        raise SystemExit(2)
    options = parser.parse_args(given)
    try:
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except KeyholeError as error:
        # Lines and tabs are those of a log that is quoted.
        print("keyhole:", written_out(error.message, but="\n\t"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has had enough. What is left must not be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="keyhole", description="Queryable state for Spark.", epilog="keyhole COMMAND --help tells more of each."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="tell which Keyhole this is")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_reads(commands)
    _add_savepoint(commands)
    _add_verify(commands)
    _add_retire(commands)
    _add_token(commands)
    for name, program in SERVICES.items():
        service = commands.add_parser(name, help=f"run a {name} here, configured by the environment")
        service.set_defaults(run=functools.partial(_become, program))
        if name == "state-server":
            service.add_argument("--role", choices=("owner", "replica"), help="default: KEYHOLE_STATE_SERVER_ROLE")
            service.add_argument("--applications", metavar="APP,...", help="what a replica follows")
    _add_jobs(commands)
    return parser


def _add_reads(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    common = argparse.ArgumentParser(add_help=False)
    _add_proxy(common)
    common.add_argument(
        "--timeout", type=_seconds, default=5.0, metavar="SECONDS", help="to wait for the answer (%(default)s)"
    )
    common.add_argument("--format", choices=("table", "json"), default="table", help="for people, or for programs")
    common.add_argument("--json", action="store_const", const="json", dest="format", help="as --format json")
    _add_credentials(common)
    states = commands.add_parser("states", parents=[common], help="list the states that can be read")
    describe = commands.add_parser("describe", parents=[common], help="tell what a state is and who holds it")
    describe.add_argument("state", metavar="APP/STATE", help=_AS_LISTED)
    get = commands.add_parser("get", parents=[common], help="look keys up")
    get.add_argument("state", metavar="APP/STATE", help=_AS_LISTED)
    get.add_argument(
        "keys",
        nargs="+",
        metavar="KEY",
        help="several columns: a JSON array, or separated by commas; of a map state the key's, then the map key's",
    )
    scan = commands.add_parser("scan", parents=[common], help="list the entries of a key of a map or list state")
    scan.add_argument("state", metavar="APP/STATE", help=_AS_LISTED)
    scan.add_argument(
        "key", nargs="?", metavar="KEY", help="as for get, without the map key; none of a broadcast state"
    )
    scan.add_argument(
        "--from", dest="start", metavar="MAPKEY", help="inclusive, its first columns will do; default: all"
    )
    scan.add_argument("--to", dest="stop", metavar="MAPKEY", help="exclusive; as --from")
    scan.add_argument("--descending", action="store_true", help="from the last one on")
    scan.add_argument("--limit", type=_count, metavar="N", help="default: all")
    for command in (get, scan):
        command.add_argument(
            "--stale",
            choices=("never", "when_needed", "always"),
            default="when_needed",
            help="whether another copy than the owner's may answer (%(default)s: while the owner can't)",
        )
        command.add_argument(
            "--max-staleness", type=_seconds, metavar="SECONDS", help="the oldest answer that will do; default: any"
        )
        command.add_argument(
            "--min-epoch", type=int, default=0, metavar="EPOCH", help="the first epoch that will do; default: any"
        )
    status = commands.add_parser("status", parents=[common], help="show the servers, and how far restores are")
    reads = {"states": states, "describe": describe, "get": get, "scan": scan, "status": status}
    for name, command in reads.items():
        command.set_defaults(run=_read, read=name)


def _add_proxy(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--proxy",
        default=f"127.0.0.1:{DEFAULT_PROXY_PORT}",
        metavar="HOST:PORT,...",
        help="the client proxies to ask (%(default)s)",
    )


def _add_servers(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--servers", type=lambda text: text.split(","), metavar="HOST:PORT,...", help="in place of those a proxy knows"
    )


def _add_credentials(command: argparse.ArgumentParser) -> None:
    of = command.add_argument_group("who asks (or KEYHOLE_CLI_TLS, KEYHOLE_CLI_TOKEN_FILE and so on)")
    of.add_argument("--tls", action="store_const", const="on", help="speak TLS")
    of.add_argument("--tls-ca", metavar="FILE", help="whose certificates count; default: the operating system's")
    of.add_argument("--tls-certificate", metavar="FILE", help="to show to servers that ask for one")
    of.add_argument("--tls-key", metavar="FILE", help="that certificate's key")
    of.add_argument("--tls-server-name", metavar="NAME", help="the name in the servers' certificates")
    of.add_argument("--token-file", metavar="FILE", help="with a bearer token; never give the token itself")
    of.add_argument("--plaintext", choices=("allow",), help="send the token without TLS, beyond this machine")


def _credentials(options: argparse.Namespace) -> Credentials:
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(CliConfig)}
    if given["tls"] is None and any(value for name, value in given.items() if name.startswith("tls_")):
        given["tls"] = "on"
    return load(CliConfig, os.environ, **given).credentials


def _add_token(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    token = commands.add_parser("token", help="make a bearer token, and the entry by which servers know it")
    token.add_argument("name", metavar="NAME", help="of whom it is for: the policy knows it as token:NAME")
    token.add_argument("--to", metavar="FILE", required=True, help="the token: a new file, for its owner only")
    token.add_argument("--days", type=_count, metavar="N", help="until it expires; default: never")
    token.set_defaults(run=_token)


def _token(options: argparse.Namespace) -> int:
    from keyhole.cli import token

    return token.run(options.name, Path(options.to), options.days)


def _add_savepoint(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    savepoint = commands.add_parser("savepoint", help="copy all states of an application to files, and back")
    verbs = savepoint.add_subparsers(required=True, metavar="VERB")
    shown = argparse.ArgumentParser(add_help=False)
    shown.add_argument("--format", choices=("table", "json"), default="table")
    shown.add_argument("--json", action="store_const", const="json", dest="format", help="as --format json")
    kafka = argparse.ArgumentParser(add_help=False)
    kafka.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT", help="Kafka")
    kafka.add_argument(
        "--timeout", type=_seconds, default=30.0, metavar="SECONDS", help="of one call to Kafka (%(default)s)"
    )

    create = verbs.add_parser("create", parents=[kafka, shown], help="take one, while the job runs")
    create.add_argument("application", metavar="APP")
    create.add_argument("--to", required=True, metavar="PATH", help="a new folder, local or any that fsspec reaches")
    _add_pairs(create, "--checkpoint", "QUERY=DIR", "Spark's checkpoint of a query; needed where Spark keeps state")
    create.add_argument(
        "--compaction-lag",
        type=_seconds,
        default=MIN_COMPACTION_LAG_MS / 1000,
        metavar="SECONDS",
        help="min.compaction.lag.ms of the changelog topics, if it was raised (%(default)s)",
    )

    listed = verbs.add_parser("list", parents=[shown], help="show the savepoints in a folder")
    listed.add_argument("path", metavar="PATH")
    listed.add_argument("--check", action="store_true", help="read all files, and compare their checksums")

    restore = verbs.add_parser("restore", parents=[kafka, shown], help="make an application of one")
    restore.add_argument("path", metavar="PATH")
    restore.add_argument("--application", metavar="NAME", help="a new name; default: the old one")
    _add_pairs(restore, "--key-groups", "STATE=N", "another number of key groups", _count)
    _add_pairs(restore, "--rename", "OLD=NEW", "another name for a state")
    _add_pairs(restore, "--rename-query", "OLD=NEW", "another name for a query")
    _add_pairs(restore, "--checkpoint", "QUERY=DIR", "an empty folder for Spark's checkpoint of the query")
    for command, verb in ((create, "create"), (listed, "list_"), (restore, "restore")):
        command.set_defaults(run=_savepoint, verb=verb)


def _add_verify(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verify = commands.add_parser("verify", help="compare all copies of a state with its changelog, record by record")
    verify.add_argument("state", metavar="APP/STATE", help=_AS_LISTED)
    verify.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT", help="Kafka")
    _add_proxy(verify)
    _add_servers(verify)
    verify.add_argument(
        "--show", type=int, default=0, metavar="N", help="also the first N storage keys of each kind, in hexadecimal"
    )
    verify.add_argument("--timeout", type=_seconds, default=30.0, metavar="SECONDS", help="of one call (%(default)s)")
    verify.add_argument(
        "--dump-timeout", type=_seconds, default=3600.0, metavar="SECONDS", help="to read one server (%(default)s)"
    )
    verify.add_argument("--format", choices=("table", "json"), default="table")
    verify.add_argument("--json", action="store_const", const="json", dest="format", help="as --format json")
    _add_credentials(verify)
    verify.set_defaults(run=_verify)


def _add_retire(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    retire = commands.add_parser("retire", help="have all state servers forget a query whose job is over for good")
    retire.add_argument("application", metavar="APP")
    retire.add_argument("query", metavar="QUERY", nargs="?", default="", help="default: all of the application")
    _add_proxy(retire)
    _add_servers(retire)
    retire.add_argument(
        "--timeout",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="of each server; a job that has just ended counts as running for 3 s (%(default)s)",
    )
    retire.add_argument("--format", choices=("table", "json"), default="table")
    retire.add_argument("--json", action="store_const", const="json", dest="format", help="as --format json")
    _add_credentials(retire)
    retire.set_defaults(run=_retire)


class _Version(argparse.Action):
    """Looked up only where it is asked for."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        from keyhole.metrics.families import version

        print(f"keyhole {version()}")
        parser.exit()


class _Pairs(argparse.Action):
    """NAME=VALUE, any number of them, as a dict; each name once."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        pairs = dict(getattr(namespace, self.dest))
        name, of = value
        if name in pairs:
            parser.error(f"{option} names {name} twice")
        setattr(namespace, self.dest, pairs | {name: of})


def _add_pairs(
    command: argparse.ArgumentParser, option: str, metavar: str, text: str, parse: Callable[[str], Any] = str
) -> None:
    def pair(given: str) -> tuple[str, Any]:
        name, equals, value = given.partition("=")
        if not (name and equals and value):
            raise argparse.ArgumentTypeError(f"{given!r} is not {metavar}")
        return name, parse(value)

    command.add_argument(option, type=pair, action=_Pairs, default={}, metavar=metavar, help=f"{text}; may be repeated")


def _add_jobs(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    running = argparse.ArgumentParser(add_help=False)
    running.add_argument("--seconds", type=_seconds, metavar="S", help="end by itself; default: at Ctrl-C")
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
    job.set_defaults(run=_job)
    demo = commands.add_parser("demo", parents=[running], help="run the main job so, and show live answers")
    demo.add_argument("--sensors", type=_count, default=1000, metavar="N", help="of the synthetic fleet (%(default)s)")
    demo.add_argument("--rate", type=_count, default=1000, metavar="R", help="its events per second (%(default)s)")
    demo.set_defaults(run=_demo)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no time that can pass; give seconds above 0")
    return seconds


def _count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text} is too few; give 1 or more")
    return count


def _require(what: str, extra: str, modules: Sequence[str]) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidConfiguration(f"{what} needs {', '.join(missing)}: install {installing.with_extra(extra)}")


def _read(options: argparse.Namespace) -> int:
    _require(f"keyhole {options.read}", "cli", _TO_READ)
    from keyhole import Client
    from keyhole.cli import reads

    output = reads.Output(as_json=options.format == "json")
    with Client(options.proxy, timeout=options.timeout, credentials=_credentials(options)) as client:
        if options.read == "states":
            reads.states(client, output)
        elif options.read == "describe":
            reads.describe(client, output, options.state)
        elif options.read == "get":
            bounds = reads.Bounds(options.stale, options.max_staleness, options.min_epoch)
            reads.get(client, output, options.state, options.keys, bounds)
        elif options.read == "scan":
            bounds = reads.Bounds(options.stale, options.max_staleness, options.min_epoch)
            within = reads.Range(options.start, options.stop, options.descending, options.limit)
            reads.scan(client, output, options.state, options.key, within, bounds)
        else:
            reads.status(client, output)
    return 0


def _savepoint(options: argparse.Namespace) -> int:
    _require("keyhole savepoint", "savepoint", _TO_SAVE)
    from keyhole.cli import reads, savepoint

    run: Callable[[argparse.Namespace, reads.Output], int] = getattr(savepoint, options.verb)
    return run(options, reads.Output(as_json=options.format == "json"))


def _verify(options: argparse.Namespace) -> int:
    _require("keyhole verify", "savepoint", _TO_VERIFY)
    from keyhole.cli import reads, verify_state

    return verify_state.run(options, _credentials(options), reads.Output(as_json=options.format == "json"))


def _retire(options: argparse.Namespace) -> int:
    _require("keyhole retire", "cli", _TO_READ)
    from keyhole.cli import reads, retire

    return retire.run(options, _credentials(options), reads.Output(as_json=options.format == "json"))


def _become(program: Program, options: argparse.Namespace) -> int:
    _require(program.module, program.extra, program.needs)
    for name in ("role", "applications"):
        if getattr(options, name, None) is not None:
            os.environ[f"KEYHOLE_STATE_SERVER_{name.upper()}"] = getattr(options, name)
    # In place of this process, so that signals and exit codes are the program's own. -P: a folder `services` or `jobs`
    # where the command was typed is none of ours.
    os.execv(sys.executable, [sys.executable, "-P", "-m", program.module])  # noqa: S606 - a module of ours


def program_of(job: JobDescription) -> Program:
    """The job's own process."""
    return Program(job.module, job.extra if job.needs else "spark", (*_OF_JOBS, *job.needs))


def _job(options: argparse.Namespace) -> int:
    if options.external or "KEYHOLE_JOB_SERVERS" in os.environ:
        if options.verify or options.chaos or options.json or options.seconds is not None:
            raise InvalidConfiguration(
                "--seconds, --verify, --chaos and --json are of a run with all that the job needs. Here it is only the "
                "job's own process, as --external or KEYHOLE_JOB_SERVERS says: leave them out, or that"
            )
        return _become(program_of(described(options.name)), options)
    _require("a job on this machine", "demo", _FOR_THE_DEMO)
    from keyhole.demo.job import run_job
    from keyhole.demo.runner import RunOptions

    job = described(options.name)
    _require(f"the job {job.name}", f"demo,{job.extra}", (*job.needs, *job.source_needs))
    return run_job(options.name, RunOptions(options.seconds, options.verify, options.json, options.chaos))


def _demo(options: argparse.Namespace) -> int:
    _require("the demo", "demo", _FOR_THE_DEMO)
    from keyhole.demo.command import run_demo
    from keyhole.demo.runner import RunOptions

    chosen = RunOptions(options.seconds, options.verify, options.json, options.chaos)
    return run_demo(chosen, sensors=options.sensors, rate=options.rate)


if __name__ == "__main__":
    sys.exit(main())
