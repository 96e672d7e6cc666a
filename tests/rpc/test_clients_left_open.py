"""Clients that a program never closes: its end prints nothing, whatever they have under way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from keyhole.testing.served_states import ServedStates
from tests.support.waiting import LONG_SECONDS

_HEAD = """
import asyncio, atexit, sys, threading

joined = []
atexit.register(lambda: [thread.join() for thread in joined])  # runs behind what is registered later
import keyhole

address, routing = sys.argv[1:]
"""
# What each program does before it ends without having closed anything.
PROGRAMS = {
    "an AsyncClient, with a watch, a mirror and lookups under way": """
async def main():
    global client, mirror, watch, lookups
    client = keyhole.AsyncClient(address, routing=routing)
    mirror = await client.mirror("shop/totals").__aenter__()
    assert mirror.get("c1").found
    watch = client.watch("shop", "totals")
    async for _ in watch:
        break
    lookups = [client.get("shop", "totals", "c1") for _ in range(3)]
    many = asyncio.create_task(client.get_many("shop", "totals", ["c1"]))
    await asyncio.sleep(0)

asyncio.run(main())
""",
    "an AsyncClient that a task watches by": """
async def main():
    client = keyhole.AsyncClient(address, routing=routing)
    seen = asyncio.Event()

    async def follow():
        async for _ in client.watch("shop", "totals"):
            seen.set()

    task = asyncio.create_task(follow())
    await seen.wait()

asyncio.run(main())
""",
    "an AsyncClient of a loop that is open": """
loop = asyncio.new_event_loop()
client = keyhole.AsyncClient(address, routing=routing)
assert loop.run_until_complete(client.get_many("shop", "totals", ["c1"]))
""",
    "a Client, with a watch, a mirror and lookups under way": """
client = keyhole.Client(address, routing=routing)
mirror = client.mirror("shop/totals").__enter__()
assert mirror.get("c1").found
watch = client.watch("shop", "totals")
next(iter(watch))
lookups = [client.get_async("shop", "totals", "c1") for _ in range(3)]
""",
    "a Client that a daemon thread watches by": """
client = keyhole.Client(address, routing=routing)
seen = threading.Event()

def follow():
    for _ in client.watch("shop", "totals"):
        seen.set()

threading.Thread(target=follow, daemon=True).start()
assert seen.wait(60)
""",
    "a Client that a daemon thread reads by": """
client = keyhole.Client(address, routing=routing)
seen = threading.Event()

def read():
    while True:
        client.get("shop", "totals", "c1")
        seen.set()

threading.Thread(target=read, daemon=True).start()
assert seen.wait(60)
""",
    "a Client that a daemon thread reads by, for which the program waits at its end": """
client = keyhole.Client(address, routing=routing)
seen = threading.Event()

def read():
    try:
        while True:
            client.get("shop", "totals", "c1")
            seen.set()
    except keyhole.errors.ClientClosed:
        pass

joined.append(threading.Thread(target=read, daemon=True))
joined[0].start()
assert seen.wait(60)
""",
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ServedStates() as served:
        served.write("shop/totals", [{"customer": "c1", "n": 1}], key="customer")
        yield served.address


@pytest.mark.parametrize("routing", ["proxy", "direct"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_the_end_of_a_program_prints_nothing_of_it(program: str, routing: str, address: str) -> None:
    command = [sys.executable, "-W", "default", "-c", _HEAD + program, address, routing]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5 * LONG_SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
