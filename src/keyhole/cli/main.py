"""The command `keyhole`. Each command imports what it needs when it runs: reading needs neither Spark nor Kafka."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence

from keyhole import Client
from keyhole.config import DEFAULT_PROXY_PORT
from keyhole.errors import InvalidConfiguration, KeyholeError

SERVICES = {"state-server": "services.state_server", "client-proxy": "services.client_proxy"}
JOBS = {"temperature_monitor": "jobs.temperature_monitor"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 for an error (its message on standard error), 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except KeyholeError as error:
        print(f"keyhole: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has had enough. What is left must not be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="keyhole", description="Queryable state for Spark.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_reads(commands)
    for name, module in SERVICES.items():
        service = commands.add_parser(name, help=f"run a {name} here, configured by the environment")
        service.set_defaults(run=_module(module))
    job = commands.add_parser("job", help="run a job here, configured by the environment")
    job.add_argument("name", choices=sorted(JOBS))
    job.set_defaults(run=lambda options: _module(JOBS[options.name])(options))
    _add_demo(commands)
    return parser


def _add_reads(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--proxy", default=f"127.0.0.1:{DEFAULT_PROXY_PORT}", metavar="HOST:PORT", help="%(default)s")
    common.add_argument("--timeout", type=float, default=5.0, metavar="SECONDS", help="%(default)s")
    common.add_argument("--format", choices=("table", "json"), default="table")
    common.add_argument("--json", action="store_const", const="json", dest="format", help="as --format json")
    states = commands.add_parser("states", parents=[common], help="list the states that can be read")
    describe = commands.add_parser("describe", parents=[common], help="tell what a state is and who holds it")
    describe.add_argument("state", metavar="APP/STATE")
    get = commands.add_parser("get", parents=[common], help="look keys up")
    get.add_argument("state", metavar="APP/STATE")
    get.add_argument("keys", nargs="+", metavar="KEY", help="several columns: a JSON array, or separated by commas")
    status = commands.add_parser("status", parents=[common], help="show the servers, and how far restores are")
    for command, name in ((states, "states"), (describe, "describe"), (get, "get"), (status, "status")):
        command.set_defaults(run=_read, read=name)


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser("demo", help="run everything on this machine, and show live answers")
    demo.add_argument("--sensors", type=int, default=1000, metavar="N", help="of the synthetic fleet (%(default)s)")
    demo.add_argument("--rate", type=int, default=1000, metavar="R", help="its events per second (%(default)s)")
    demo.add_argument("--seconds", type=float, metavar="S", help="end by itself; default: at Ctrl-C")
    demo.add_argument("--verify", action="store_true", help="count everything again at the end, and compare")
    demo.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    demo.add_argument("--chaos", action="store_true", help="kill -9 the state server and the driver once each")
    demo.set_defaults(run=_demo)


def _read(options: argparse.Namespace) -> int:
    from keyhole.cli import reads

    output = reads.Output(as_json=options.format == "json")
    with Client(options.proxy, timeout=options.timeout) as client:
        if options.read == "states":
            reads.states(client, output)
        elif options.read == "describe":
            reads.describe(client, output, options.state)
        elif options.read == "get":
            reads.get(client, output, options.state, options.keys)
        else:
            reads.status(client, output)
    return 0


def _module(name: str) -> Callable[[argparse.Namespace], int]:
    def replace(_: argparse.Namespace) -> int:
        # In place of this process, so that signals and exit codes are the service's own.
        os.execv(sys.executable, [sys.executable, "-m", name])  # noqa: S606 - a module of ours

    return replace


def _demo(options: argparse.Namespace) -> int:
    for needed in ("pyspark", "confluent_kafka", "lmdb", "jgo", "vega_datasets"):
        if importlib.util.find_spec(needed) is None:
            raise InvalidConfiguration(f"the demo needs {needed}: install keyhole-spark[demo]")
    from keyhole.cli.demo import DemoOptions, run_demo

    if options.sensors < 1 or options.rate < 1:
        raise InvalidConfiguration("--sensors and --rate must be at least 1")
    return run_demo(
        DemoOptions(
            sensors=options.sensors,
            rate=options.rate,
            seconds=options.seconds,
            verify=options.verify,
            json=options.json,
            chaos=options.chaos,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
