"""A state server that is suspended holds nobody up for long, and counts again once it goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

import pytest

from keyhole.coordinator.fleet import Fleet
from keyhole.errors import KeyholeError, UnavailableError
from keyhole.model.epoch import Run
from keyhole.protocol.membership import Sighting
from keyhole.protocol.receipts import Target
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, until

# A state server over a Kafka in memory; prints its address.
SERVER = """
import asyncio, sys
from keyhole.clock import SystemClock
from keyhole.config import StateServerConfig
from keyhole.protocol.failpoints import NoObserver
from keyhole.stores.memory import MemoryEngine
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from services.state_server.app import StateServer

async def main():
    kafka = MemoryKafka()
    config = StateServerConfig(bootstrap_servers="memory", id=sys.argv[1], port=0)
    server = StateServer(config, MemoryEngine(), lambda app: MemoryChangelog(kafka, app), SystemClock(), NoObserver())
    await server.start()
    print(server.address, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def processes() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """By address."""
    started = [
        subprocess.Popen([sys.executable, "-c", SERVER, name], stdout=subprocess.PIPE, text=True) for name in "ab"
    ]
    try:
        yield {process.stdout.readline().strip(): process for process in started if process.stdout is not None}
    finally:
        for process in started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def fleet(processes: dict[str, subprocess.Popen[str]]) -> Iterator[Fleet]:
    made = Fleet(lambda: list(processes))
    yield made
    made.close()


def both(fleet: Fleet) -> Mapping[str, Sighting]:
    """What both of them say, by name. One that is too slow to be seen is asked again."""
    found: dict[str, Sighting] = {}

    def have_answered() -> bool:
        found.update(fleet.observe())
        return set(found) == {"a", "b"}

    until(have_answered, LONG_SECONDS)
    return found


def test_it_is_waited_for_once_and_counts_again_when_it_goes_on(
    fleet: Fleet, processes: dict[str, subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    both(fleet)
    suspended = next(iter(processes.values()))
    suspended.send_signal(signal.SIGSTOP)
    until(lambda: set(fleet.observe()) == {"b"}, LONG_SECONDS)
    # Who waits for it from now on does so for longer than all of it may take.
    monkeypatch.setattr("keyhole.coordinator.server_link._ASK_SECONDS", 2 * LONG_SECONDS)
    begun = time.monotonic()
    for _ in range(10):
        assert set(fleet.observe()) == {"b"}
    assert time.monotonic() - begun < LONG_SECONDS
    suspended.send_signal(signal.SIGCONT)
    until(lambda: set(fleet.observe()) == {"a", "b"}, LONG_SECONDS)


def test_a_call_under_way_to_it_ends_long_before_its_deadline(
    fleet: Fleet, processes: dict[str, subprocess.Popen[str]]
) -> None:
    target = both(fleet)["a"].target
    processes[target.address].send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    with pytest.raises(UnavailableError):
        fleet.link(target).release(Run("app", "main", 1, "run"), "counts", [0], 1, timeout=LONG_SECONDS)
    assert time.monotonic() - begun < LONG_SECONDS / 2


def test_a_server_at_the_same_address_is_another_incarnation(
    fleet: Fleet, processes: dict[str, subprocess.Popen[str]]
) -> None:
    target = both(fleet)["a"].target
    with pytest.raises(KeyholeError, match="restarted"):
        fleet.link(target).open_run(
            Run("app", "main", 1, "run"), Target("a", target.address, "before"), "grant", PATIENCE_SECONDS
        )
