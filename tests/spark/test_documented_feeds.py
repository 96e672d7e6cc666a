"""What docs/up.md, docs/compose.md and docs/feed.md have a person type without Spark, word for word: records, their
feed, and a program's own writes beside it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from keyhole import Client, KeyholeError
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.local.processes import Child
from tests.support.embedded import KEYHOLE
from tests.support.snippets import ROOT, blocks
from tests.support.streams import Service
from tests.support.waiting import LONG_SECONDS, until

_STEPS = {
    "docs/up.md": ["keyhole up --topic orders", 'eval "$(keyhole env)"'],
    "docs/compose.md": ["export KEYHOLE_JOB_SERVERS=127.0.0.1:7410 KEYHOLE_JOB_BOOTSTRAP_SERVERS=127.0.0.1:9094"],
}


@pytest.mark.parametrize("page", _STEPS)
def test_the_records_of_the_page_become_the_state_that_it_reads(
    page: str, kafka: str, service: Service, application: str, tmp_path: Path
) -> None:
    (sends,) = blocks(page)
    text = (ROOT / page).read_text().partition("\n## A state of your own\n")[2]
    typed = re.findall(r"^ {4}(\S.*)$", text, re.MULTILINE)
    (feeds,) = (line for line in typed if line.startswith("keyhole feed "))
    steps = [*_STEPS[page], "python send.py", feeds]
    at = typed.index(steps[0])
    assert typed[at : at + len(steps)] == steps
    assert "keyhole get shop/totals c1" in typed[at + len(steps) :]

    topic = f"orders-{application}"
    if "keyhole up --topic orders" in steps:
        make_topics(kafka, {topic: 1}, LONG_SECONDS)
    (tmp_path / "send.py").write_text(sends.replace('"orders"', f'"{topic}"'))
    environ = os.environ | {"KEYHOLE_JOB_SERVERS": service.server, "KEYHOLE_JOB_BOOTSTRAP_SERVERS": kafka}
    command = [sys.executable, "send.py"]
    sent = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, timeout=LONG_SECONDS, check=False)
    assert (sent.returncode, sent.stderr) == (0, b"")

    of_ours = feeds.replace("shop/", f"{application}/").replace("--topic orders", f"--topic {topic}")
    words = [*KEYHOLE, *shlex.split(of_ours)[1:]]
    feeder = Child("feed", words, tmp_path / "feed.log", environ)
    try:
        with Client(service.proxy, timeout=LONG_SECONDS) as client:
            until(lambda: _spent(client, application, feeder) == 34.5, 5 * LONG_SECONDS, 0.2, feeder.output)
            _writes_of_a_program(kafka, service, application)
            assert _spent(client, application, feeder) == 47.0
    finally:
        feeder.terminate(LONG_SECONDS)


def _writes_of_a_program(kafka: str, service: Service, application: str) -> None:
    """What docs/feed.md shows beside the feed, whose last read waits for the write."""
    (code,) = blocks("docs/feed.md")
    for of, by in {
        '"kafka:9092"': f'"{kafka}"',
        '"proxy:7400"': f'"{service.proxy}", timeout={LONG_SECONDS}',
        '"shop/totals"': f'"{application}/totals"',
        '"shop",': f'"{application}",',
    }.items():
        assert of in code
        code = code.replace(of, by)
    exec(compile(code, "docs/feed.md", "exec"), {})


def _spent(client: Client, application: str, feeder: Child) -> float | None:
    """What the page's last command shows; None while it is not there."""
    assert feeder.exit_code is None, feeder.output()
    try:
        answer = client.get(application, "totals", "c1")
    except KeyholeError:
        return None
    return answer.value.amount if answer.found else None
