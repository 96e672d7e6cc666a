"""`keyhole demo`, as a person runs it: it counts right even while it is being killed, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.integration

KEYHOLE = [sys.executable, "-m", "keyhole.cli.main"]


def environ(tmp_path: Path) -> dict[str, str]:
    """A temporary folder of the test's own, to see what is left in it."""
    return {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "120"}


def processes_below(tmp_path: Path) -> list[str]:
    """All processes that mention the folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ", "status"]):
        command = " ".join(process.info["cmdline"] or ())
        if str(tmp_path) in command and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(command)
    return found


@pytest.mark.timeout(280)
def test_every_key_agrees_though_server_and_driver_are_killed(tmp_path: Path) -> None:
    command = [*KEYHOLE, "demo", "--seconds", "45", "--sensors", "300", "--verify", "--chaos", "--json"]
    done = subprocess.run(command, env=environ(tmp_path), capture_output=True, text=True, timeout=270, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["keys"], result["agreed"], result["mismatches"]) == (303, 303, 0)
    assert result["events"] > 1000
    assert result["epochs"] > 3
    assert result["freshness_p50_ms"] > 0
    assert done.stderr.count("chaos: kill -9") == 2
    assert not processes_below(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("keyhole-")]


@pytest.mark.timeout(200)
def test_ctrl_c_ends_it_within_ten_seconds_and_leaves_nothing(tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    with log.open("w") as output:
        demo = subprocess.Popen(
            [*KEYHOLE, "demo", "--sensors", "50"], env=environ(tmp_path), stdout=output, stderr=output
        )
        try:
            until = time.monotonic() + 150
            while "ready after" not in log.read_text():
                assert demo.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.2)
            demo.send_signal(signal.SIGINT)
            began = time.monotonic()
            assert demo.wait(20) == 0
            assert time.monotonic() - began < 10
        finally:
            demo.kill()
            demo.wait()
    assert not processes_below(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["demo.log"]
