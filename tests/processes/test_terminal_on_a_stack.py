"""The commands that look, on what `keyhole up` runs: explain, doctor, top and status --watch, with a fault made and
mended, and ended by Ctrl-C.
"""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keyhole.config import PROXY_VARIABLE
from keyhole.local.processes import Child
from tests.processes.test_up_and_down import START_SECONDS, STATE, Here, written
from tests.support.embedded import KEYHOLE, assert_none_lives, environ
from tests.support.topics import alter_topic
from tests.support.waiting import LONG_SECONDS, until

TOPIC = "keyhole.shop.totals"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    here = Here(tmp_path)
    yield here
    here.typed("down", "--delete")
    assert_none_lives(tmp_path)


def test_what_is_looked_at_on_a_running_stack_is_told_as_it_is(here: Here) -> None:
    here.did("up", "--servers", "2", "--topic", "orders")
    exported = here.exported()
    kafka, proxy = exported["KEYHOLE_JOB_BOOTSTRAP_SERVERS"], {PROXY_VARIABLE: exported[PROXY_VARIABLE]}

    def printed_by(*words: str, code: int = 0) -> Any:
        done = here.typed(*words, "--json", "--timeout", str(LONG_SECONDS), **proxy)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    words = ["feed", STATE, "--topic", "orders", "--key", "customer", "--reduce", "amount:bigint=sum"]
    feeder = Child(
        "feed", [*KEYHOLE, *words, "--key-groups", "4"], here.path / "feed.log", environ(here.path, **exported)
    )
    try:
        until(lambda: written(kafka, feeder), START_SECONDS, 0.2, feeder.output)
        # No state, then no key of it: for a moment there is neither.
        until(
            lambda: '"found": true' in here.typed("get", STATE, "c1", "--json", **proxy).stdout,
            START_SECONDS,
            0.2,
            feeder.output,
        )

        (explained,) = printed_by("explain", STATE, "c1")
        assert (explained["value"], explained["role"], explained["error"]) == ({"amount": 12}, "owner", None)
        (hop,) = explained["hops"]
        assert 0 < hop["in_server_seconds"] < hop["took_seconds"] < explained["seconds"]["read"]
        assert [copy["role"] for copy in explained["copies"]] == ["owner"]

        # Kafka's address is that of `keyhole up`; what else this machine has is its own business.
        findings = printed_by("doctor")["findings"]
        assert not [one for one in findings if one["level"] == "fault"], findings
        about = {one["about"]: one["level"] for one in findings}
        for topic in (TOPIC, f"{TOPIC}.updates", "keyhole.shop.control"):
            assert about[f"topic {topic}"] == "ok"
        assert about[f"state {STATE}"] == about[f"Kafka {kafka}"] == about["versions"] == about["clocks"] == "ok"
        alter_topic(kafka, TOPIC, {"cleanup.policy": "delete"})
        assert policy_fault(printed_by("doctor", code=1))
        alter_topic(kafka, TOPIC, {"cleanup.policy": "compact"})

        drained_and_back(here, printed_by)
        moved_and_back(printed_by)

        # A look waits for figures no longer than until the next one.
        top = printed_by("top", "--count", "2", "--interval", "5")
        assert [server["is"] for server in top["servers"]] == ["ok", "ok"]
        assert top["states"][0]["rows_per_second"] is not None
        for command in (["top"], ["status", "--watch"]):
            shown, code = broken_off([*KEYHOLE, *command, "--interval", "0.1"], here, proxy)
            assert code == 0, shown
            assert shown.rindex("\x1b[?1049l") > shown.index("\x1b[?1049h"), "the terminal is as it was"
            assert "shop/totals" in shown[shown.rindex("\x1b[?1049l") :]
    finally:
        feeder.kill()
    until(lambda: "unconfirmed" in str(printed_by("explain", STATE, "c1")[0]["why"]), START_SECONDS, 0.2)
    assert "its job is not heard of on" in str(printed_by("doctor")["findings"])


def drained_and_back(here: Here, printed_by: Any) -> None:
    """Each server in turn gives all it owns to the other, while every read is answered."""

    def owned() -> dict[str, int]:
        return {
            server["server"]: sum(of["key_groups"] for of in server["holdings"] if of["role"] == "owner")
            for server in printed_by("status")
        }

    until(lambda: sorted(owned().values()) == [2, 2], START_SECONDS, 0.2, owned)
    first, second = sorted(owned())
    assert printed_by("drain", first, "--wait", str(START_SECONDS)) == {
        "server": first,
        "draining": True,
        "owns": False,
    }
    until(lambda: owned() == {first: 0, second: 4}, START_SECONDS, 0.2, owned)
    assert printed_by("get", STATE, "c1")[0]["found"]
    printed_by("drain", first, "--undo")
    until(lambda: sorted(owned().values()) == [2, 2], START_SECONDS, 0.2, owned)
    refused = here.typed("drain", "server-9", **{PROXY_VARIABLE: here.exported()[PROXY_VARIABLE]})
    assert refused.returncode == 1
    assert f"there is no state server server-9; there are {first}, {second}" in refused.stderr


def moved_and_back(printed_by: Any) -> None:
    """All key groups to one server, one of them back, and all as they were, while every read is answered."""

    def owned() -> dict[str, int]:
        return {
            server["server"]: sum(of["key_groups"] for of in server["holdings"] if of["role"] == "owner")
            for server in printed_by("status")
        }

    first, second = sorted(owned())
    every = [str(group) for group in range(4)]
    assert printed_by("move", STATE, *every, "--to", first, "--wait", str(START_SECONDS))["owned"] == [0, 1, 2, 3]
    until(lambda: owned() == {first: 4, second: 0}, START_SECONDS, 0.2, owned)
    assert printed_by("get", STATE, "c1")[0]["found"]
    assert printed_by("move", STATE, "3", "--to", second, "--wait", str(START_SECONDS))["owned"] == [3]
    until(lambda: owned() == {first: 3, second: 1}, START_SECONDS, 0.2, owned)
    assert printed_by("move", STATE, *every, "--undo")["owned"] is None
    until(lambda: sorted(owned().values()) == [2, 2], START_SECONDS, 0.2, owned)
    assert printed_by("get", STATE, "c1")[0]["found"]


def policy_fault(report: dict[str, Any]) -> bool:
    """Whether it is told, and how it is mended."""
    found = [one for one in report["findings"] if one["about"] == f"topic {TOPIC}"]
    return [
        "cleanup.policy is 'delete', it must be 'compact'" in one["says"] and "kafka-configs --alter" in one["todo"]
        for one in found
    ] == [True]


def broken_off(command: list[str], here: Here, settings: dict[str, str]) -> tuple[str, int]:
    """What it has shown in a terminal of 60 columns until Ctrl-C, and its exit code."""
    terminal, of_command = pty.openpty()
    given = {**environ(here.path, **settings), "COLUMNS": "60", "LINES": "20", "TERM": "xterm"}
    process = subprocess.Popen(
        command, cwd=here.path, env=given, stdout=of_command, stderr=of_command, stdin=of_command
    )
    os.close(of_command)
    shown, deadline = b"", time.monotonic() + START_SECONDS

    def more() -> bytes:
        """What has come since; nothing: the other side is closed."""
        while not select.select([terminal], [], [], 1.0)[0]:
            assert time.monotonic() < deadline, shown
        try:
            return os.read(terminal, 65_536)
        except OSError:
            return b""

    try:
        # Three rounds and more, each of which writes all of it.
        while shown.count(b"shop/totals") < 3:
            read = more()
            assert read, shown
            shown += read
        process.send_signal(signal.SIGINT)
        while read := more():
            shown += read
        return shown.decode(errors="replace"), process.wait(LONG_SECONDS)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
