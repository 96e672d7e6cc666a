"""`uv run python -m tests.fuzz --seconds 600 [--seed N]`: garbage against the ports of a proxy and of a state server.

The two are real processes. Connections send random bytes, HTTP/2 frames of a valid conversation with bits of them
changed, calls with random and with mutated messages, and calls that break off; to the reads over HTTP and to /metrics,
requests that are made up, changed bit by bit, or never whole; to the lookup port messages of all these kinds, and more
of them than are read; some with a reader's token. All the time, good lookups and requests must be answered. Prints, as
JSON, what was sent and what the processes weighed at the beginning, after a tenth and after half of the time, and at
the end. Exit code 1: one ended, grew in the second half, or no longer answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from tests.fuzz.run import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="keyhole-fuzz-") as directory:
        report = asyncio.run(fuzz(options.seconds, options.seed, Path(directory)))
    print(json.dumps(report, indent=2))
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
