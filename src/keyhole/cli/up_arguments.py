"""The words of `keyhole up`, `down`, `env` and `dev`. Nothing is run here."""

from __future__ import annotations

import argparse
from pathlib import Path

from keyhole.cli import up_commands
from keyhole.cli.argument_values import Pairs, count, topic
from keyhole.up.exports import SHELLS
from keyhole.up.home import DEFAULT_DIRECTORY

_UP = """\
keyhole up                              Kafka, a state server, a client proxy and metrics, in the background
eval "$(keyhole env)"                   jobs, and keyhole itself, find them from this shell
keyhole down                            ends them; the data stay
"""


def add_up(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the four commands to the others."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--dir",
        type=Path,
        default=DEFAULT_DIRECTORY,
        metavar="FOLDER",
        help="for data, logs and what runs where (%(default)s)",
    )
    up = commands.add_parser(
        "up",
        parents=[common],
        help="start all that serves states on this machine, in the background",
        epilog=_UP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_servers(up)
    up.add_argument(
        "--ephemeral", action="store_true", help="keep the data in a temporary folder, until `keyhole down`"
    )
    _add_topics(up)
    up.add_argument("--foreground", action="store_true", help="stay here until Ctrl-C")
    down = commands.add_parser("down", parents=[common], help="end what `keyhole up` has started")
    down.add_argument("--delete", action="store_true", help="also delete its folder, with all data in it")
    env = commands.add_parser("env", parents=[common], help="print where it runs, for eval by a shell")
    env.add_argument("--shell", choices=SHELLS, default="sh", help="%(default)s is for bash and zsh, too")
    _add_dev(commands)
    for name, command in {"up": up, "down": down, "env": env}.items():
        command.set_defaults(run=getattr(up_commands, f"run_{name}"))


def _add_dev(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    dev = commands.add_parser("dev", help="run a job with all that it needs here, again after each change of its file")
    dev.add_argument("job", type=Path, metavar="JOB.py", help="the job's file; it runs in its folder")
    dev.add_argument("--dir", type=Path, metavar="FOLDER", help="as of `keyhole up`; default: .keyhole beside the file")
    dev.add_argument(
        "--watch",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="start it again after a change of this file, too; may be repeated",
    )
    _add_topics(dev)
    _add_servers(dev)
    dev.add_argument(
        "--ephemeral", action="store_true", help="keep states and checkpoint in a temporary folder, until the end"
    )
    dev.add_argument(
        "--keep", action="store_true", help="leave what it has started, but for the job, running at the end"
    )
    dev.add_argument("--fresh", action="store_true", help="delete what is in the folder first, with all states in it")
    dev.set_defaults(run=up_commands.run_dev)


def _add_servers(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--servers", type=count, metavar="N", help="state servers; default: as many as last time, or 1"
    )


def _add_topics(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--topic",
        dest="topics",
        type=_topic,
        action=Pairs,
        default={},
        metavar="NAME[:PARTITIONS]",
        help="make this topic in Kafka, if it isn't there, with so many partitions (1); may be repeated",
    )


def _topic(text: str) -> tuple[str, int]:
    name, colon, partitions = text.partition(":")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME or NAME:PARTITIONS")
    return topic(name), count(partitions) if colon else 1
