"""`keyhole demo --verify`, as a person runs it: all of it starts, shows answers, agrees with a recount, and ends."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from keyhole.demo.command import SHOWN
from tests.support.embedded import KEYHOLE, assert_nothing_is_left, environ

SENSORS = 50


def test_the_demo_shows_answers_agrees_with_the_recount_and_leaves_nothing(tmp_path: Path) -> None:
    command = [*KEYHOLE, "demo", "--seconds", "5", "--sensors", str(SENSORS), "--rate", "100", "--verify", "--json"]
    done = subprocess.run(command, env=environ(tmp_path), capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    # A row of the table begins with the key, and ends with the answer's age and who gave it.
    rows = re.findall(r"^ *(\S+) .* \d+\.\d s +\S+ *$", done.stderr, re.MULTILINE)
    assert rows == list(SHOWN), done.stderr
    # A slow machine has no second epoch within the seconds.
    assert re.search(r"first shown \d+\.\d s after it was sent|no new reading of the probe", done.stderr), done.stderr
    assert "all agree" in done.stderr
    result = json.loads(done.stdout)
    assert result["keys"] == result["agreed"] > SENSORS
    assert result["mismatches"] == 0
    assert result["states"]["sensors"] >= SENSORS
    assert_nothing_is_left(tmp_path, done.stderr)
