"""The commands that look after states (savepoint, verify, move, drain, retire, drop), make a token or fetch jars."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from keyhole.cli.read_commands import TO_READ, credentials
from keyhole.installing import require

_TO_VERIFY = (*TO_READ, "confluent_kafka", "lmdb")
_TO_DROP = (*TO_READ, "confluent_kafka")
_TO_FETCH = ("jgo", "rich")
_TO_SAVE = (*TO_READ, "confluent_kafka", "fsspec", "lmdb", "pyarrow")


def run_savepoint(options: argparse.Namespace) -> int:
    """`keyhole savepoint`: the function of the module `savepoint` that `options.verb` names. Raises KeyholeError."""
    require("keyhole savepoint", "savepoint", _TO_SAVE)
    from keyhole.cli import reads, savepoint

    run: Callable[[argparse.Namespace, reads.OutputFormat], int] = getattr(savepoint, options.verb)
    return run(options, reads.OutputFormat(as_json=options.format == "json"))


def run_verify(options: argparse.Namespace) -> int:
    """Runs `keyhole verify`; returns the exit code. Raises KeyholeError."""
    require("keyhole verify", "savepoint", _TO_VERIFY)
    from keyhole.cli import reads, verify_state

    return verify_state.run(options, credentials(options), reads.OutputFormat(as_json=options.format == "json"))


def run_drain(options: argparse.Namespace) -> int:
    """Runs `keyhole drain`; returns the exit code. Raises KeyholeError."""
    require("keyhole drain", "cli", TO_READ)
    from keyhole.cli import drain_command

    return drain_command.run(options, credentials(options), as_json=options.format == "json")


def run_move(options: argparse.Namespace) -> int:
    """Runs `keyhole move`; returns the exit code. Raises KeyholeError."""
    require("keyhole move", "cli", TO_READ)
    from keyhole.cli import move_command

    return move_command.run(options, credentials(options), as_json=options.format == "json")


def run_retire(options: argparse.Namespace) -> int:
    """Runs `keyhole retire`; returns the exit code. Raises KeyholeError."""
    require("keyhole retire", "cli", TO_READ)
    from keyhole.cli import reads, retire

    return retire.run(options, credentials(options), reads.OutputFormat(as_json=options.format == "json"))


def run_drop(options: argparse.Namespace) -> int:
    """Runs `keyhole drop`; returns the exit code. Raises KeyholeError."""
    require("keyhole drop", "cli,kafka", _TO_DROP)
    from keyhole.cli import drop, reads

    return drop.run(options, credentials(options), reads.OutputFormat(as_json=options.format == "json"))


def run_doctor(options: argparse.Namespace) -> int:
    """Runs `keyhole doctor`; returns the exit code. Raises KeyholeError."""
    require("keyhole doctor", "cli", TO_READ)
    from keyhole.cli.doctor import examination

    return examination.run(options, credentials(options))


def run_top(options: argparse.Namespace) -> int:
    """Runs `keyhole top` until it is ended; returns the exit code. Raises KeyholeError."""
    require("keyhole top", "cli", TO_READ)
    from keyhole.cli import reads
    from keyhole.cli.top import screen

    return screen.run(options, credentials(options), reads.OutputFormat(as_json=options.format == "json"))


def run_sql(options: argparse.Namespace) -> int:
    """Runs `keyhole sql`; returns the exit code. Raises KeyholeError."""
    require("keyhole sql", "cli,sql", ("duckdb", "grpc", "pyarrow", "rich"))
    if options.savepoint is not None:
        require("keyhole sql --savepoint", "cli,sql,savepoint", ("fsspec",))
    from keyhole.cli import sql_command

    return sql_command.run(options, credentials(options))


def run_token(options: argparse.Namespace) -> int:
    """Runs `keyhole token`; returns the exit code. Raises KeyholeError."""
    from keyhole.cli import token

    return token.run(options.name, Path(options.to), options.days)


def run_completion(options: argparse.Namespace) -> int:
    """Runs `keyhole completion`; returns the exit code. Raises KeyholeError."""
    require("keyhole completion", "cli", ("shtab",))
    from keyhole.cli import completion

    print(completion.script(options.of_all, options.shell))
    return 0


def run_jars(options: argparse.Namespace) -> int:
    """Runs `keyhole jars`; returns the exit code. Raises KeyholeError."""
    require("keyhole jars", "cli,jars", _TO_FETCH)
    from keyhole.cli import connectors

    connectors.run(s3=options.s3)
    return 0


def run_size(options: argparse.Namespace) -> int:
    """Runs `keyhole size`; returns the exit code. Raises WrongUsage."""
    require("keyhole size", "cli", ("msgspec", "rich"))
    from keyhole.cli.size import size_command

    return size_command.run(options, as_json=options.format == "json")


def run_new(options: argparse.Namespace) -> int:
    """Runs `keyhole new`; returns the exit code. Raises KeyholeError."""
    from keyhole.cli.project import new_command

    new_command.run(options.directory, options.name)
    return 0
