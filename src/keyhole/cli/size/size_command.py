"""`keyhole size`: prints what the model makes of a load, Keyhole beside Redis."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator

from rich.console import Console

from keyhole.changelog.settings import MAX_ROW_BYTES
from keyhole.cli.size.constants import BENCHMARK, Constants, constants
from keyhole.cli.size.model import Prices, SideNeeds, Workload, in_keyhole, in_redis, least_key_groups
from keyhole.cli.wrong_usage import WrongUsage, as_usage
from keyhole.model.state import MAX_KEY_GROUPS
from keyhole.terminal import tables
from keyhole.terminal.byte_counts import bytes_said
from keyhole.terminal.json_output import print_json


def _cores(need: float) -> str:
    return f"{need:,.2f}"


def _per_second(need: float) -> str:
    return f"{bytes_said(need)}/s"


_ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("cores: handing over, in the job", "writer_cores", _cores),
    ("cores: owners, or primaries", "owner_cores", _cores),
    ("cores: standbys, or replicas", "copies_cores", _cores),
    ("cores: Kafka", "kafka_cores", _cores),
    ("cores: proxies", "proxy_cores", _cores),
    ("cores: all, with room", "cores", _cores),
    ("processes: servers, copies included", "servers", "{:,}".format),
    ("processes: proxies", "proxies", "{:,}".format),
    ("memory", "memory_bytes", bytes_said),
    ("disk of the stores", "disk_bytes", bytes_said),
    ("disk of Kafka", "kafka_disk_bytes", bytes_said),
    ("Kafka, written", "kafka_bytes_per_second", _per_second),
    ("network, all hops together", "network_bytes_per_second", _per_second),
)
"""What a line of the table says, the attribute of `SideNeeds`, and how it is written."""


def run(options: argparse.Namespace, *, as_json: bool) -> int:
    """Returns 0.

    Raises:
        WrongUsage: As `workload` says, or the file of constants can't be one.
    """
    load = workload(options)
    by = as_usage(lambda: constants(options.constants))
    prices = Prices(options.price_core, options.price_memory, options.price_disk, options.price_traffic)
    ours, theirs = in_keyhole(load, by), in_redis(load, by)
    if as_json:
        sides = {
            name: dataclasses.asdict(side) | {"price_per_month": side.month(prices)}
            for name, side in (("keyhole", ours), ("redis", theirs))
        }
        workload_ = dataclasses.asdict(load) | {"rows_per_second": load.rows}
        sides["keyhole"]["least_key_groups"] = least_key_groups(load, by)
        print_json({"workload": workload_, **sides, "constants": dataclasses.asdict(by)})
        return 0
    rows = [{"what": what, "Keyhole": keyhole, "Redis": redis} for what, keyhole, redis in _said(ours, theirs, prices)]
    title = (
        f"{load.keys:,.0f} keys, {load.updates:,.0f} updates/s in {load.rows:,.0f} rows/s, {load.reads:,.0f} reads/s"
    )
    tables.show(Console(), rows, title)
    if too_few := _too_few_key_groups(load, by):
        print(too_few)
    whose = "measured on two loaded cores" if options.constants is None else f"of {options.constants}"
    print(f"Constants: {whose}; `{BENCHMARK}` measures yours. docs/sizing-reference.md says what is counted.")
    return 0


def workload(options: argparse.Namespace) -> Workload:
    """As it was typed.

    Raises:
        WrongUsage: A batch can't write more keys than there are, or no changelog takes rows that large.
    """
    written = options.keys if options.written_keys is None else options.written_keys
    if written > options.keys:
        raise WrongUsage(f"--written-keys {written:,.0f} are more than --keys {options.keys:,.0f}; give fewer")
    if (row := options.key_bytes + options.value_bytes) > MAX_ROW_BYTES:
        raise WrongUsage(
            f"--key-bytes and --value-bytes are {row:,.0f} together; a row has at most {MAX_ROW_BYTES:,}, so give less"
        )
    return Workload(
        keys=options.keys,
        updates=options.updates,
        reads=options.reads,
        written_keys=written,
        standbys=options.standbys,
        changelog_copies=options.changelog_copies,
        redis_replicas=options.redis_replicas,
        key_bytes=options.key_bytes,
        value_bytes=options.value_bytes,
        batch_seconds=options.batch,
        key_groups=options.key_groups,
        in_memory=options.in_memory,
        store=options.store,
        busy=options.busy,
    )


def _said(ours: SideNeeds, theirs: SideNeeds, prices: Prices) -> Iterator[tuple[str, str, str]]:
    """The rows of the table, but for those that are nothing on both sides."""
    for what, name, said in _ROWS:
        needs = [getattr(side, name) for side in (ours, theirs)]
        if any(needs):
            keyhole, redis = (said(need) if need else "-" for need in needs)
            yield what, keyhole, redis
    costs = (ours.month(prices), theirs.month(prices))
    if costs[0] is not None and costs[1] is not None:
        yield "a month, by the prices given", f"{costs[0]:,.0f}", f"{costs[1]:,.0f}"


def _too_few_key_groups(load: Workload, by: Constants) -> str | None:
    """What to say where the owners need more cores than key groups can have; None: they don't."""
    least = least_key_groups(load, by)
    if least > MAX_KEY_GROUPS:
        return (
            f"Keyhole can't do this with one state, which has at most {MAX_KEY_GROUPS:,} key groups; its owners need "
            f"{least:,}. Make several states of it, or give a longer --batch."
        )
    if least > load.key_groups:
        return (
            f"Keyhole needs at least {least:,} key groups: give --key-groups {least}. Each has one owner, which is one "
            f"core's worth, and {load.key_groups:,} are too few for that."
        )
    return None
