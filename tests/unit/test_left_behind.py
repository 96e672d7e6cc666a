"""What the tests of whole commands look for at their end: what a command has left, and not what dies, nor others'."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import embedded, waiting
from tests.support.embedded import assert_none_lives, ran, still_there

LISTENS = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


def test_a_port_is_still_there_where_who_listens_is_of_the_folder_and_not_where_another_test_has_it(
    tmp_path: Path,
) -> None:
    for folder, found in ((tmp_path / "ours", 2), (tmp_path / "others", 0)):
        environ = {**os.environ, "TMPDIR": str(folder)}
        with subprocess.Popen(
            [sys.executable, "-c", LISTENS], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            said = f"HTTP on http://127.0.0.1:{int(process.stdout.readline())}"
            assert len(still_there(tmp_path / "ours", said)) == found, "the process and its port"
            process.kill()


def test_what_dies_is_waited_for_and_what_lives_on_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dying = [["java"], ["java"], []]
    monkeypatch.setattr(embedded, "processes_of", lambda _: dying.pop(0))
    assert_none_lives(tmp_path)
    assert dying == []

    clock = iter(range(1000))
    monkeypatch.setattr(embedded, "processes_of", lambda _: ["java"])
    monkeypatch.setattr(waiting.time, "monotonic", lambda: 10.0 * next(clock))
    with pytest.raises(TimeoutError, match=r"there is: \['java'\]"):
        assert_none_lives(tmp_path)


def test_of_a_command_that_does_not_end_it_is_told_what_it_has_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 7, b"starting Kafka", b"waiting")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(AssertionError, match="not ended within 7 s, and has said:\nstarting Kafka\nwaiting"):
        ran(["keyhole", "demo"], {}, 7)
