"""The words of `keyhole size`. Nothing is run here."""

from __future__ import annotations

import argparse
from pathlib import Path

from keyhole.cli import tool_commands
from keyhole.cli.argument_values import count, seconds, whole
from keyhole.cli.size.quantities import price, quantity, rate, rate_or_none, share, size
from keyhole.model.state import DEFAULT_KEY_GROUPS


def add_size(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command `size` to the others."""
    sized = commands.add_parser("size", help="say what cores, memory, disk and Kafka a load takes, beside Redis")
    sized.add_argument("--keys", type=quantity, required=True, metavar="N", help="that are stored: 100M")
    sized.add_argument(
        "--updates", type=rate, required=True, metavar="RATE", help="records that the job takes in: 1.2M/s, 71M/min"
    )
    sized.add_argument(
        "--reads", type=rate_or_none, default=0.0, metavar="RATE", help="keys looked up: 200k/s; 0: none"
    )
    sized.add_argument(
        "--written-keys", type=quantity, metavar="N", help="that a batch's updates fall on, each alike; default: all"
    )
    sized.add_argument("--standbys", type=whole, default=1, metavar="N", help="copies beside the owner's (%(default)s)")
    sized.add_argument(
        "--changelog-copies", type=count, default=3, metavar="N", help="Kafka's replication factor (%(default)s)"
    )
    sized.add_argument(
        "--redis-replicas", type=whole, default=1, metavar="N", help="copies beside the primary's (%(default)s)"
    )
    sized.add_argument("--key-bytes", type=size, default=16.0, metavar="SIZE", help="of a key, encoded (%(default).0f)")
    sized.add_argument(
        "--value-bytes", type=size, default=40.0, metavar="SIZE", help="of a value, encoded (%(default).0f)"
    )
    sized.add_argument(
        "--batch", type=seconds, default=10.0, metavar="SECONDS", help="between two micro-batches (%(default).0f)"
    )
    sized.add_argument(
        "--key-groups", type=count, default=DEFAULT_KEY_GROUPS, metavar="N", help="of the state (%(default)s)"
    )
    sized.add_argument("--store", choices=("lmdb", "rocksdb"), default="lmdb", help="default: lmdb")
    sized.add_argument(
        "--in-memory", type=share, default=1.0, metavar="SHARE", help="of each copy, to have in memory (%(default).0f)"
    )
    sized.add_argument(
        "--busy", type=share, default=0.7, metavar="SHARE", help="of each core, to be used at most (%(default)s)"
    )
    for what, of in (("core", "a core"), ("memory", "a GiB of memory"), ("disk", "a GiB of disk")):
        sized.add_argument(f"--price-{what}", type=price, metavar="PRICE", help=f"of {of} for a month")
    sized.add_argument("--price-traffic", type=price, metavar="PRICE", help="of a GiB that is sent")
    sized.add_argument(
        "--constants", type=Path, metavar="FILE", help="your own machine's: what `benchmarks.sizing` prints"
    )
    sized.add_argument("--format", choices=("table", "json"), default="table")
    sized.add_argument("--json", action="store_const", const="json", dest="format", help="as --format json")
    sized.set_defaults(run=tool_commands.run_size)
