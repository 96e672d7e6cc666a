"""`keyhole size`: prints what the model makes of a load, Keyhole beside Redis."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator

from rich.console import Console

from keyhole.cli.size.constants import BENCHMARK, constants
from keyhole.cli.size.model import Prices, SideNeeds, Workload, in_keyhole, in_redis
from keyhole.cli.size.quantities import bytes_said
from keyhole.cli.wrong_usage import WrongUsage, as_usage
from keyhole.terminal import tables


def run(options: argparse.Namespace, *, as_json: bool) -> int:
    """Returns 0.

    Raises:
        WrongUsage: More keys are written than there are, or the file of constants can't be one.
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
        print(json.dumps({"workload": workload_, **sides, "constants": dataclasses.asdict(by)}))
        return 0
    rows = [{"what": what, "Keyhole": keyhole, "Redis": redis} for what, keyhole, redis in _said(ours, theirs, prices)]
    title = (
        f"{load.keys:,.0f} keys, {load.updates:,.0f} updates/s in {load.rows:,.0f} rows/s, {load.reads:,.0f} reads/s"
    )
    tables.show(Console(), rows, title)
    whose = "measured on two loaded cores" if options.constants is None else f"of {options.constants}"
    print(f"Constants: {whose}; `{BENCHMARK}` measures yours. docs/sizing.md says what is counted.")
    return 0


def workload(options: argparse.Namespace) -> Workload:
    """As it was typed.

    Raises:
        WrongUsage: A batch can't write more keys than there are.
    """
    written = options.keys if options.written_keys is None else options.written_keys
    if written > options.keys:
        raise WrongUsage(f"--written-keys {written:,.0f} are more than --keys {options.keys:,.0f}; give fewer")
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
    for what, name in (
        ("cores: handing over, in the job", "writer_cores"),
        ("cores: owners, or primaries", "owner_cores"),
        ("cores: standbys, or replicas", "copies_cores"),
        ("cores: Kafka", "kafka_cores"),
        ("cores: proxies", "proxy_cores"),
        ("cores: all, with room", "cores"),
    ):
        yield what, f"{getattr(ours, name):,.2f}", f"{getattr(theirs, name):,.2f}"
    yield "processes: servers, copies included", f"{ours.servers:,}", f"{theirs.servers:,}"
    yield "processes: proxies", f"{ours.proxies:,}", "-"
    for what, name in (
        ("memory", "memory_bytes"),
        ("disk of the stores", "disk_bytes"),
        ("disk of Kafka", "kafka_disk_bytes"),
    ):
        yield (
            what,
            bytes_said(getattr(ours, name)),
            bytes_said(getattr(theirs, name)) if name == "memory_bytes" else "-",
        )
    yield "Kafka, written", f"{bytes_said(ours.kafka_bytes_per_second)}/s", "-"
    network = [f"{bytes_said(side.network_bytes_per_second)}/s" for side in (ours, theirs)]
    yield "network, each hop", network[0], network[1]
    costs = [side.month(prices) for side in (ours, theirs)]
    if costs[0] is not None and costs[1] is not None:
        yield "a month, by the prices given", f"{costs[0]:,.0f}", f"{costs[1]:,.0f}"
