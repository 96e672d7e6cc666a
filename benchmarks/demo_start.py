"""The first minutes of `keyhole demo`, as who typed it sees them: from the prompt to the first answer, until what had
waited for it is shown, and how old readings are when they are first shown from then on.

    uv run python -m benchmarks.demo_start [--seconds 60] [--repeats 3] [--slower 3]

One line of JSON per run, and a summary. `--slower 3` gives the demo, with all its processes, a third of the processors
(a control group of Linux's, for which it takes root): what a machine three times slower does to it. The caches are as
they are: run it twice, and the second one has them warm. `p50_ms` is of the readings of the probe, as in
benchmarks.monitor; `by_minute_ms` has the same of each minute since the first answer: Spark is compiled meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.control_group import processor_group
from benchmarks.freshness import spread
from benchmarks.monitor import LOOK_SECONDS, new_readings
from keyhole import Client
from keyhole.demo.command import APPLICATION

_COMMAND = ("uv", "run", "keyhole", "demo")
_READY = re.compile(r"ready after .* s\..*--proxy (\S+:\d+)", re.DOTALL)
_PATIENCE_SECONDS = 900.0


def main() -> None:
    """Prints one line of JSON per run, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for which it is looked at, from its first answer")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--slower", type=float, default=1.0, help="how many times")
    options = parser.parse_args()
    runs = []
    with slowed(options.slower) as prefix:
        for _ in range(options.repeats):
            runs.append(measure(prefix, options.seconds))
            print(json.dumps(runs[-1]), flush=True)
    names = ("first_answer_s", "caught_up_s", "p50_ms", "p99_ms")
    medians = {name: statistics.median(run[name] for run in runs) for name in names}
    print(json.dumps({"benchmark": "demo_start", "slower": options.slower, **medians}))


@contextlib.contextmanager
def slowed(times: float) -> Iterator[Sequence[str]]:
    """What goes before a command that is to run so many times slower."""
    if times == 1:
        yield ()
        return
    with processor_group(len(os.sched_getaffinity(0)) / times) as processes:
        yield ("/bin/sh", "-c", f'echo $$ > {processes} && exec "$@"', "sh")


def measure(prefix: Sequence[str], seconds: float) -> dict[str, Any]:
    """One run of the demo, which is ended by Ctrl-C.

    Returns:
        `caught_up_s`: from the first answer to the first that shows a reading which was sent after it.
    """
    with tempfile.TemporaryDirectory(prefix="keyhole-demo-start-") as directory:
        log = Path(directory) / "demo.log"
        began = time.monotonic()
        with log.open("wb") as output:
            demo = subprocess.Popen([*prefix, *_COMMAND], stdout=output, stderr=output)
        try:
            proxy = ready(demo, log)
            first = time.monotonic()
            return {"first_answer_s": round(first - began, 1), **shown(proxy, seconds)}
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait()


def ready(demo: subprocess.Popen[bytes], log: Path) -> str:
    """The proxy's address, as soon as the demo tells it."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while not (match := _READY.search(log.read_text(errors="replace"))):
        if demo.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"the demo did not come up:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(LOOK_SECONDS)
    return match[1]


def shown(proxy: str, seconds: float) -> dict[str, Any]:
    """When the backlog was shown, and how old readings were from then on, by answers for the probe."""
    ages: list[float] = []
    by_minute: dict[int, list[float]] = {}
    caught_up: float | None = None
    began_ms = time.time() * 1000
    with Client(proxy) as client:
        for now_ms, sent in new_readings(client, APPLICATION, seconds):
            if caught_up is not None:
                found = [now_ms - sent_ms for sent_ms in sent]
                ages += found
                by_minute.setdefault(int((now_ms - began_ms) / 60_000), []).extend(found)
            elif sent[0] > began_ms:
                caught_up = (now_ms - began_ms) / 1000
    if caught_up is None or not ages:
        raise SystemExit(f"what had waited for the first answer was not shown in {seconds:g} s: give more --seconds")
    minutes = [round(statistics.median(of)) for of in by_minute.values()]
    return {"caught_up_s": round(caught_up, 1), "readings": len(ages), **spread(ages), "by_minute_ms": minutes}


if __name__ == "__main__":
    main()
