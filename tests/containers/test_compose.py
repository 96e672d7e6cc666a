"""compose.yaml is started and read from, as docs/compose.md says: all but Grafana, whose image is none of ours."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from keyhole import Client
from keyhole.errors import KeyholeError
from keyhole.local.ports import free_ports
from tests.support import images, needs
from tests.support.waiting import LONG_SECONDS, until

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "compose.md").read_text()
OURS = ("kafka", "state-server", "client-proxy", "metrics-exporter")
STARTED = (*OURS, "prometheus")
# Of images that are there already.
_UP_SECONDS, _DOWN_SECONDS = 900.0, 300.0

pytestmark = pytest.mark.timeout(3000, func_only=True)


class Composed:
    """A project of its own, at ports of its own: what a person has started of the same file goes on."""

    def __init__(self, directory: Path, command: list[str], prometheus: str) -> None:
        ports = dict(zip(("grpc", "http", "server", "kafka", "prometheus"), free_ports(5), strict=True))
        self.proxy, self.http = f"127.0.0.1:{ports['grpc']}", f"http://127.0.0.1:{ports['http']}"
        self.prometheus = f"http://127.0.0.1:{ports['prometheus']}"
        kafka = f"127.0.0.1:{ports['kafka']}"
        self.environ = os.environ | {
            "KEYHOLE_TAG": images.tag(),
            "KEYHOLE_JOB_SERVERS": f"127.0.0.1:{ports['server']}",
            "KEYHOLE_JOB_BOOTSTRAP_SERVERS": kafka,
        }
        other = directory / "ports.yaml"
        other.write_text(
            f"""services:
  kafka: {{environment: {{KEYHOLE_KAFKA_OUTSIDE: "{kafka}"}}, ports: !override ["{kafka}:9094"]}}
  state-server: {{ports: !override ["127.0.0.1:{ports["server"]}:7410"]}}
  client-proxy: {{ports: !override ["{self.proxy}:7400", "127.0.0.1:{ports["http"]}:7402"]}}
  prometheus: {{image: {prometheus}, ports: !override ["127.0.0.1:{ports["prometheus"]}:9090"]}}
"""
        )
        files = ["--file", str(ROOT / "compose.yaml"), "--file", str(other)]
        self._command = [*command, *files, "--project-name", f"keyhole-test-{uuid.uuid4().hex[:8]}"]

    def up(self) -> None:
        """Returns once all is well, as Docker's health checks find it."""
        self._run(["up", "--no-build", "--pull", "never", "--wait", *STARTED], _UP_SECONDS)

    def down(self, *options: str) -> None:
        self._run(["down", *options], _DOWN_SECONDS)

    def asked(self, url: str) -> Any:
        """The JSON of an answer."""
        with urllib.request.urlopen(url, timeout=LONG_SECONDS) as answer:
            return json.loads(answer.read())

    def series(self, query: str) -> list[float]:
        """What Prometheus has of it now."""
        found = self.asked(f"{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
        return [float(one["value"][1]) for one in found["data"]["result"]]

    def _run(self, words: list[str], seconds: float) -> None:
        done = subprocess.run(
            [*self._command, *words], env=self.environ, capture_output=True, text=True, timeout=seconds
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def composed(tmp_path: Path) -> Iterator[Composed]:
    command = needs.compose()
    for target in OURS:
        images.image(target)
    made = Composed(tmp_path, command, images.prometheus())
    try:
        yield made
    finally:
        made.down("--volumes")


def test_a_state_is_fed_read_and_measured_and_goes_on_after_the_next_start(composed: Composed, tmp_path: Path) -> None:
    composed.up()
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    send = tmp_path / "send.py"
    send.write_text(code)
    subprocess.run([sys.executable, str(send)], env=composed.environ, check=True, timeout=5 * LONG_SECONDS)
    with feeding(composed, tmp_path / "feed.log"):
        until(lambda: amount(composed) == 34.5, 5 * LONG_SECONDS, 0.2)
    assert composed.asked(f"{composed.http}/v1/shop/totals/c1")["value"] == {"amount": 34.5}
    with urllib.request.urlopen(f"{composed.http}/console/", timeout=LONG_SECONDS) as page:
        assert b"<script" in page.read()

    # As the mounted files say: it scrapes the exporter, which has asked the server, and has the chart's alerts.
    until(lambda: composed.series('up{job="keyhole"}') == [1.0], 5 * LONG_SECONDS, 0.5)
    readable = 'sum(keyhole_state_server_readable_key_groups{application="shop",state="totals"})'
    until(lambda: (composed.series(readable) or [0.0])[0] > 0, 5 * LONG_SECONDS, 0.5)
    (group,) = composed.asked(f"{composed.prometheus}/api/v1/rules")["data"]["groups"]
    assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
    assert len(group["rules"]) > 10

    composed.down()
    composed.up()
    # Who feeds it says so again to the servers; it reads no record twice.
    with feeding(composed, tmp_path / "again.log"):
        until(lambda: amount(composed) == 34.5, 5 * LONG_SECONDS, 0.2)


@contextmanager
def feeding(composed: Composed, log: Path) -> Iterator[None]:
    """The page's command, from when it says that the state can be read."""
    (words,) = re.findall(r"^    keyhole (feed .*)$", PAGE, re.MULTILINE)
    command = [sys.executable, "-m", "keyhole", *words.split()]
    with log.open("wb") as out:
        feeder = subprocess.Popen(command, env=composed.environ, stdout=out, stderr=out)
    try:
        until(lambda: "it can be read now" in log.read_text(), 5 * LONG_SECONDS, 0.2, log.read_text)
        yield
    finally:
        feeder.terminate()
        feeder.wait(5 * LONG_SECONDS)


def amount(composed: Composed) -> float | None:
    """What c1 has spent, as a client on this machine reads it; None: not yet."""
    try:
        with Client(composed.proxy, timeout=LONG_SECONDS) as client:
            answer = client.get("shop", "totals", "c1")
    except KeyholeError:
        return None
    return float(answer.value.amount) if answer.found else None
