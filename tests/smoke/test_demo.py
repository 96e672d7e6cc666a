"""`keyhole demo --verify`, as a person runs it: all of it starts, shows answers, agrees with a recount, and ends."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from keyhole.demo.command import SHOWN
from keyhole.demo.described_jobs import described
from tests.support.embedded import KEYHOLE, assert_nothing_is_left, environ, ports_in

SENSORS = 50
# Beside those: two cities, and the probe. Of twelve there are thresholds.
MORE_SENSORS, WATCHED = 3, 12


def test_the_demo_shows_answers_agrees_with_the_recount_and_leaves_nothing(tmp_path: Path) -> None:
    command = [*KEYHOLE, "demo", "--seconds", "5", "--sensors", str(SENSORS), "--rate", "100", "--verify", "--json"]
    settings = environ(
        tmp_path, KEYHOLE_READINGS_MALFORMED="0.02", KEYHOLE_TEMPERATURE_MONITOR_DEFAULT_THRESHOLD="1.03"
    )
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=1400, check=False)
    assert done.returncode == 0, done.stderr
    # A row of the table begins with the key, and ends with the answer's age and who gave it.
    rows = re.findall(r"^ *(\S+) .* \d+\.\d s +\S+ *$", done.stderr, re.MULTILINE)
    assert rows == list(SHOWN), done.stderr
    # A slow machine has no second epoch within the seconds.
    assert re.search(r"first shown \d+(\.\d s| ms) after it was sent|no new reading of the probe", done.stderr), (
        done.stderr
    )
    assert "all agree" in done.stderr
    result = json.loads(done.stdout)
    # Of each sensor its reading and its log of alerts; of some a threshold; and what all batches have read of these.
    keys = 2 * (SENSORS + MORE_SENSORS) + WATCHED + 1
    assert (result["keys"], result["agreed"], result["mismatches"]) == (keys, keys, 0)
    assert all(result["rejected_by_topic"][topic] > 0 for topic in ("readings", "thresholds"))
    assert sorted(result["states"]) == list(described("temperature_monitor").states)
    assert all(entries > 0 for entries in result["states"].values()), result["states"]
    assert result["events"] > SENSORS
    if result["freshness_p50_ms"] is not None:
        assert 0 < result["freshness_p50_ms"] <= result["freshness_p99_ms"]
    assert len(ports_in(done.stderr)) == 4
    assert_nothing_is_left(tmp_path, done.stderr)
