"""`keyhole demo`, broken off or killed: it ends in time, and leaves nothing behind; one in real time agrees."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from keyhole.config import DEFAULT_PROXY_PORT, DEFAULT_STATE_SERVER_PORT
from keyhole.demo.command import SHOWN
from keyhole.local.ports import Reservations
from keyhole.temporary import remove_abandoned
from tests.support.embedded import KEYHOLE, assert_nothing_is_left, environ, ports_in, ran, still_there
from tests.support.waiting import LONG_SECONDS, until

START_SECONDS = 900.0
# What a person is promised, and what a busy machine may add to it.
END_SECONDS, GRACE_SECONDS = 10, 50


SENSORS = 50
# Beside those: two cities, and the probe.
MORE_SENSORS = 3


@contextlib.contextmanager
def demo(tmp_path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """It runs, and prints to the log; killed at the end where it still does."""
    log = tmp_path / "demo.log"
    with log.open("wb") as output:
        process = subprocess.Popen([*KEYHOLE, "demo", *options], env=environ(tmp_path), stdout=output, stderr=output)
    try:
        yield process, log
    finally:
        process.kill()
        process.wait()


def wait_for(text: str, process: subprocess.Popen[bytes], log: Path, seconds: float) -> None:
    latest = time.monotonic() + seconds
    while text not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < latest, log.read_text()
        time.sleep(0.05)


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> int:
    """The exit code, where it comes in time."""
    process.send_signal(number)
    return process.wait(END_SECONDS + GRACE_SECONDS)


@pytest.mark.parametrize("started", ["Kafka", "state server"])
def test_sigterm_breaks_off_the_start_in_time_and_leaves_nothing(tmp_path: Path, started: str) -> None:
    with demo(tmp_path) as (process, log):
        broken_off_in_time(started, process, log)
        assert_nothing_is_left(tmp_path, log.read_text())


def broken_off_in_time(started: str, process: subprocess.Popen[bytes], log: Path) -> None:
    wait_for(f"starting {started}", process, log, START_SECONDS)
    assert end(process, signal.SIGTERM) == 130
    assert "broken off" in log.read_text()


def test_the_default_ports_are_left_to_who_has_them_and_sigterm_breaks_off_the_last_start(tmp_path: Path) -> None:
    ours = set()
    with contextlib.ExitStack() as open_sockets:

        def take() -> bool:
            # Reserved while we bind it: a free port can be that of another demo's server, killed and not yet back.
            with Reservations() as reserved:
                for port in {DEFAULT_PROXY_PORT, DEFAULT_STATE_SERVER_PORT} - ours:
                    if reserved.choose(port) != port:
                        continue
                    with contextlib.suppress(OSError):  # somebody reserves nothing
                        open_sockets.enter_context(socket.create_server(("127.0.0.1", port)))
                        ours.add(port)
            return bool(ours)

        # Another demo has them, perhaps. Each ends at some time.
        with contextlib.suppress(TimeoutError):
            until(take, LONG_SECONDS, 0.5)
        with demo(tmp_path) as (process, log):
            broken_off_in_time("source", process, log)
            assert len(ports_in(log.read_text())) == 4
            assert not ours & set(ports_in(log.read_text()))
            assert_nothing_is_left(tmp_path, log.read_text())
    if not ours:
        pytest.skip("others have both default ports: that the start is broken off was shown, and no more")


def test_all_die_with_a_demo_that_is_killed_and_the_next_one_removes_what_it_left(tmp_path: Path) -> None:
    with demo(tmp_path) as (process, log):
        wait_for("starting source", process, log, START_SECONDS)
        # What it says it begins with it begins a moment later.
        until(lambda: list(tmp_path.glob("keyhole-*/source.log")), LONG_SECONDS)
        remove_abandoned(tmp_path)
        assert list(tmp_path.glob("keyhole-*/job.log")), "that of a demo that runs is let be"
        process.kill()
        process.wait()
        said = log.read_text()
        # A process that dies gives up its command line first, and its sockets a moment later.
        until(
            lambda: not still_there(tmp_path, said),
            END_SECONDS + GRACE_SECONDS,
            0.05,
            lambda: still_there(tmp_path, said),
        )
        remove_abandoned(tmp_path)
        assert_nothing_is_left(tmp_path, log.read_text())


def test_in_real_time_each_reading_counts_once_though_server_and_driver_are_killed(tmp_path: Path) -> None:
    options = ["--seconds", "20", "--sensors", str(SENSORS), "--rate", "100", "--verify", "--chaos", "--json"]
    settings = environ(
        tmp_path, KEYHOLE_READINGS_MALFORMED="0.02", KEYHOLE_TEMPERATURE_MONITOR_REALTIME_BATCH_SECONDS="5"
    )
    command = [*KEYHOLE, "demo", "--realtime", *options]
    done = ran(command, settings, 1400)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^ *(\S+) .* (?:\d+\.\d s|-) +\S+ *$", done.stderr, re.MULTILINE)
    assert rows == list(SHOWN), done.stderr
    assert re.search(r"first shown \d+(\.\d s| ms) after it was sent|no new reading of the probe", done.stderr)
    assert "chaos: kill -9 of the state server\nstarting server-0 again" in done.stderr
    assert "chaos: kill -9 of the driver\nstarting job again" in done.stderr
    assert "all agree" in done.stderr
    result = json.loads(done.stdout)
    keys = SENSORS + MORE_SENSORS
    assert (result["keys"], result["agreed"], result["mismatches"]) == (keys, keys, 0)
    assert result["states"] == {"sensors": keys}
    assert result["rejected_by_topic"]["readings"] > 0
    assert result["events"] > SENSORS
    assert_nothing_is_left(tmp_path, done.stderr)
