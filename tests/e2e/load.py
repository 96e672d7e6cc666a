"""Ten thousand lookups a second, in a pod of its own: `python load.py PROXY SECONDS`; prints how many there were.

Runs with nothing but the client library, as reader.py does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from keyhole import AsyncClient
from keyhole.errors import KeyholeError

_KEYS = [f"sensor-{number}" for number in range(100)]
_TICK_SECONDS = len(_KEYS) / 10_000
_MOST_UNDER_WAY = 20


async def main(proxy: str, seconds: float) -> None:
    """In frames of a hundred keys; what the machine can't keep up with is left out, and shows in the number."""
    failed = frames = 0
    seconds_each: list[float] = []  # of the frames that were answered

    async def ask(client: AsyncClient) -> None:
        nonlocal failed
        sent = time.monotonic()
        try:
            await client.get_many("temperature-monitor", "sensors", _KEYS)
        except KeyholeError:
            failed += 1
        else:
            seconds_each.append(time.monotonic() - sent)

    async with AsyncClient(proxy) as client:
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while (now := time.monotonic()) < began + seconds:
                # All that is due: this process may have waited for a processor for many ticks.
                while frames * _TICK_SECONDS <= now - began and frames - failed - len(seconds_each) < _MOST_UNDER_WAY:
                    group.create_task(ask(client))
                    frames += 1
                await asyncio.sleep(_TICK_SECONDS / 4)
        took = time.monotonic() - began
    each = sorted(seconds_each) or [0.0]
    figures = {
        "lookups_per_second": round(len(_KEYS) * len(seconds_each) / took),
        "failed_frames": failed,
        "frame_median_ms": round(each[len(each) // 2] * 1000),
        "frame_99_percent_ms": round(each[len(each) * 99 // 100] * 1000),
        "own_cores": round(time.process_time() / took, 2),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
