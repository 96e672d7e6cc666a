"""Lookups per second of one state server with one and with several reader processes, in turn, in one run: by clients
that ask its lookup port themselves, each a process with a connection of its own.

    uv run python -m benchmarks.readers [--readers 2] [--clients 4] [--outstanding 64] [--keys 100000] [--seconds 5]
        [--repeats 3]

Clients and servers share the machine's cores. Where those are few, readers have none of their own, and the ratio says
little; the processor time per lookup is then the figure to compare.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from typing import Any

import psutil

from benchmarks.cluster import Cluster, cluster
from benchmarks.lookups import BY_PORT, load
from keyhole.errors import MachineError


def main() -> None:
    """Prints one line of JSON per measurement, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--outstanding", type=int, default=64, help="of each client")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    try:
        with contextlib.ExitStack() as stack:
            running = [stack.enter_context(cluster(by_port=True, readers=of)) for of in (1, options.readers)]
            for of in running:
                load(of, BY_PORT, options.keys)
            found: dict[int, list[dict[str, Any]]] = {of.readers: [] for of in running}
            for _ in range(options.repeats):
                for of in running:
                    found[of.readers].append(measured(of, options))
                    print(json.dumps(found[of.readers][-1]), flush=True)
    except MachineError as error:
        sys.exit(error.message)
    rates = {of: [result["lookups_per_second"] for result in results] for of, results in found.items()}
    figures = {
        "clients": options.clients,
        "outstanding": options.outstanding,
        "cores": os.cpu_count(),
        **{f"lookups_per_second_{of}": [min(each), statistics.median(each), max(each)] for of, each in rates.items()},
        "ratio": round(statistics.median(rates[options.readers]) / statistics.median(rates[1]), 2),
    }
    print(json.dumps(figures))


def measured(of: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    """Keys a second of all clients together, and what the server took of processor time meanwhile."""
    server = psutil.Process(of.children[0].pid)
    command = [sys.executable, "-m", "benchmarks.lookups", "--client", of.proxy, "--system", BY_PORT]
    command += ["--routing", "direct", "--keys", str(options.keys), "--outstanding", str(options.outstanding)]
    command += ["--seconds", str(options.seconds)]
    before = _taken(server)
    clients = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(options.clients)]
    results = [json.loads(client.communicate()[0]) for client in clients]
    taken = _taken(server) - before
    for result in results:
        if not set(result["connected_to"]) & set(of.lookup_ports):
            sys.exit("a client has gone by gRPC, and not by the lookup port")
    per_second = sum(result["lookups_per_second"] for result in results)
    return {
        "readers": of.readers,
        "lookups_per_second": per_second,
        "p99_us": max(result["p99_us"] for result in results),
        # Of the server and its readers, what the clients did before and behind the measured seconds included.
        "server_processor_seconds": round(taken, 2),
    }


def _taken(server: psutil.Process) -> float:
    """Processor seconds of the server and its readers."""
    times = [of.cpu_times() for of in (server, *server.children())]
    return sum(of.user + of.system for of in times)


if __name__ == "__main__":
    main()
