"""`keyhole up` with all that it starts: it stays, is found by other commands, outlives a SIGKILL, and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from keyhole import feed
from keyhole.config import PROXY_VARIABLE
from keyhole.errors import KeyholeError
from keyhole.local.ports import Reservations
from keyhole.local.processes import Child
from keyhole.up.home import Home, Recorded
from tests.support.embedded import KEYHOLE, assert_none_lives, environ, processes_of, ran
from tests.support.waiting import LONG_SECONDS, until

# Kafka and three services, on a busy machine.
START_SECONDS = 900.0
STATE = "shop/totals"


class Here:
    """A folder in which a person types commands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.home = Home(path / ".keyhole")

    def typed(self, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
        return ran([*KEYHOLE, *words], environ(self.path, **settings), START_SECONDS, self.path)

    def did(self, *words: str, **settings: str) -> str:
        done = self.typed(*words, **settings)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def recorded(self) -> Recorded:
        found = self.home.read()
        assert found is not None
        return found

    def exported(self) -> dict[str, str]:
        """What a shell has after `eval`."""
        script = self.did("env") + "env"
        done = subprocess.run(["/bin/sh", "-c", script], env={}, capture_output=True, text=True, check=True)
        return dict(line.split("=", 1) for line in done.stdout.splitlines())


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    here = Here(tmp_path)
    yield here
    here.typed("down", "--delete")
    assert_none_lives(tmp_path)


def test_what_was_started_is_found_written_to_killed_and_started_again_with_its_data(here: Here) -> None:
    said = here.did("up", "--topic", "orders")
    first = here.recorded()
    assert first.serves
    for address in (first.kafka, first.servers, first.proxy, first.http, first.metrics):
        assert address in said
    assert {"kafka", "server-0", "proxy", "exporter"} == first.children.keys()

    again = here.did("up")
    assert first.supervisor is not None
    assert f"Keyhole runs here already, as process {first.supervisor.pid}." in again
    assert here.recorded() == first

    exported = here.exported()
    with ExitStack() as ending:
        words = ["feed", STATE, "--topic", "orders", "--key", "customer", "--reduce", "amount:bigint=sum"]
        log = here.path / "feed.log"
        feeder = Child("feed", [*KEYHOLE, *words, "--key-groups", "2"], log, environ(here.path, **exported))
        ending.callback(feeder.kill)
        until(lambda: written(exported["KEYHOLE_JOB_BOOTSTRAP_SERVERS"], feeder), START_SECONDS, 0.2, feeder.output)
        until(lambda: read(here, exported) == 12, START_SECONDS, 0.2, feeder.output)

        # As the kernel does it where memory is short.
        os.kill(first.supervisor.pid, signal.SIGKILL)
        until(lambda: not any(child.alive for child in first.children.values()), LONG_SECONDS)
        feeder.kill()
    until(lambda: processes_of(here.path) == [], LONG_SECONDS, 0.05, lambda: processes_of(here.path))
    with Reservations() as held:  # ports that any other stack may want, while nobody listens
        for port in ports_of(first):
            held.choose(port)
        lost = here.typed("get", STATE, "c1", "--timeout", "1", **exported)
    assert lost.returncode == 1
    assert "does not run now: `keyhole up` starts it again" in lost.stderr

    here.did("up")
    second = here.recorded()
    assert second.supervisor != first.supervisor
    assert len(ports_of(second)) == len(ports_of(first))
    with Reservations() as held:
        for before, after in zip(ports_of(first), ports_of(second), strict=True):
            assert before == after or held.choose(before) != before, "it is its own again, unless others have it by now"
    exported = here.exported()
    with ExitStack() as ending:
        feeder = Child("feed", [*KEYHOLE, *words, "--key-groups", "2"], log, environ(here.path, **exported))
        ending.callback(feeder.kill)
        until(lambda: read(here, exported) == 12, START_SECONDS, 0.2, feeder.output)

    assert here.did("down").startswith("ended; the data stay in .keyhole")
    assert_none_lives(here.path)
    assert here.did("down").startswith("nothing runs here; the data stay in .keyhole")
    assert "deleting .keyhole" in here.did("down", "--delete")
    assert not here.home.path.exists()


def ports_of(recorded: Recorded) -> list[int]:
    ports = recorded.ports
    return [ports.kafka, *ports.servers, ports.proxy, ports.http, ports.exporter]


def written(kafka: str, feeder: Child) -> bool:
    """Whether the feeder, which runs, feeds the state by now; then it has a row of ours, which is sent once."""
    assert feeder.exit_code is None, feeder.output()
    try:
        with feed.Producer(kafka, STATE) as producer:
            producer.add("c1", {"amount": 12})
            producer.flush(LONG_SECONDS)
    except KeyholeError:
        return False
    return True


def read(here: Here, exported: dict[str, str]) -> int | None:
    """By the command, which knows the proxy from the environment alone."""
    done = here.typed("get", STATE, "c1", "--json", **{PROXY_VARIABLE: exported[PROXY_VARIABLE]})
    if done.returncode != 0:
        return None
    (row,) = json.loads(done.stdout)
    return row["value"]["amount"] if row["found"] else None


def test_an_ephemeral_one_that_is_broken_off_or_ended_leaves_nothing(here: Here) -> None:
    command = [*KEYHOLE, "up", "--ephemeral", "--foreground", "--servers", "2"]
    log = here.path / "up.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=here.path, env=environ(here.path), stdout=output, stderr=output)
    try:
        until(lambda: "Next:" in log.read_text() or process.poll() is not None, START_SECONDS, 0.1, log.read_text)
        assert process.poll() is None, log.read_text()
        recorded = here.recorded()
        assert recorded.ephemeral
        assert len(recorded.ports.servers) == 2
        assert Path(recorded.data).is_relative_to(here.path)
        # Whoever ends by itself is started again.
        old = recorded.children["server-1"]
        os.kill(old.pid, signal.SIGKILL)
        until(lambda: here.recorded().children.get("server-1", old) != old, START_SECONDS, 0.05, log.read_text)
        assert psutil.Process(here.recorded().children["server-1"].pid).is_running()
        process.send_signal(signal.SIGINT)
        assert process.wait(START_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    assert_none_lives(here.path)
    assert not Path(recorded.data).exists()
    assert "no data are left" in here.did("down")
    assert [path.name for path in here.path.iterdir()] == ["up.log"]
