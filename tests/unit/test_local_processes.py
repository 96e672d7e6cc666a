"""Supervised children. They are shell and Python one-liners."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from keyhole.errors import MachineError
from keyhole.local.ports import accepts, free_ports, is_free
from keyhole.local.processes import Child, last_words
from tests.support.waiting import LONG_SECONDS, until

SLEEP = ["/bin/sleep", "60"]


def child(tmp_path: Path, *command: str) -> Child:
    return Child("the child", command, tmp_path / "child.log", os.environ)


def group(pid: int) -> list[int]:
    """The processes of a group that still do something."""
    alive = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process.pid)
        except (psutil.NoSuchProcess, ProcessLookupError):
            continue
    return alive


def test_the_child_is_the_program_itself_in_a_session_of_its_own(tmp_path: Path) -> None:
    sleeping = child(tmp_path, *SLEEP)
    until(lambda: psutil.Process(sleeping.pid).name() == "sleep")
    assert os.getsid(sleeping.pid) == sleeping.pid != os.getsid(0)
    assert sleeping.exit_code is None
    assert sleeping.terminate() == -signal.SIGTERM
    until(lambda: group(sleeping.pid) == [])


def test_output_goes_to_the_log_after_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "child.log").write_text("of an earlier run\n")
    echoing = child(tmp_path, "/bin/sh", "-c", "echo out; echo err >&2")
    assert echoing.wait(LONG_SECONDS) == 0
    assert echoing.output() == "out\nerr\n"
    assert (tmp_path / "child.log").read_text().startswith("of an earlier run\n")
    echoing.kill()


def test_of_a_crash_the_last_words_begin_with_the_stack_of_the_fault_however_many_threads_there_are(
    tmp_path: Path,
) -> None:
    crash = """
import ctypes, threading, time
from keyhole.logs import tell_crashes

def reads_where_nothing_is():
    time.sleep(0.5)
    ctypes.string_at(0)

tell_crashes()
for _ in range(20):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
threading.Thread(target=reads_where_nothing_is).start()
time.sleep(60)
"""
    crashing = child(tmp_path, sys.executable, "-c", crash)
    assert crashing.wait(LONG_SECONDS) == -signal.SIGSEGV
    words = last_words(crashing.output()).splitlines()
    assert words[0] == "Fatal Python error: Segmentation fault"
    assert words[1].startswith("Current thread")
    assert any("reads_where_nothing_is" in line for line in words[2:6])
    crashing.kill()


def test_an_early_end_is_told_with_its_exit_code_and_the_end_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "child.log").write_text("of an earlier run\n")
    failing = child(tmp_path, "/bin/sh", "-c", "echo no such setting; exit 3")
    with pytest.raises(MachineError, match="the child ended with exit code 3") as caught:
        failing.wait_healthy(lambda: False, LONG_SECONDS)
    assert "no such setting" in caught.value.message
    assert "earlier run" not in caught.value.message
    failing.kill()


def test_a_child_that_does_not_become_healthy_is_told_and_still_runs(tmp_path: Path) -> None:
    sleeping = child(tmp_path, *SLEEP)
    with pytest.raises(MachineError, match="was not healthy within 0 s"):
        sleeping.wait_healthy(lambda: False, 0.1)
    assert sleeping.exit_code is None
    sleeping.kill()


def test_a_healthy_child_is_waited_for(tmp_path: Path) -> None:
    touching = child(tmp_path, "/bin/sh", "-c", f"touch {tmp_path / 'ready'}; sleep 60")
    touching.wait_healthy((tmp_path / "ready").exists, LONG_SECONDS)
    touching.kill()


def test_a_child_that_ignores_sigterm_is_killed_with_all_its_own_children(tmp_path: Path) -> None:
    stubborn = child(tmp_path, "/bin/sh", "-c", f"trap '' TERM; sleep 60 & touch {tmp_path / 'ready'}; sleep 60")
    stubborn.wait_healthy((tmp_path / "ready").exists, LONG_SECONDS)
    assert len(group(stubborn.pid)) > 1
    assert stubborn.terminate(timeout_seconds=0.2) == -signal.SIGKILL
    until(lambda: group(stubborn.pid) == [])


def test_grandchildren_do_not_outlive_a_child_that_ends_by_itself(tmp_path: Path) -> None:
    parent = child(tmp_path, "/bin/sh", "-c", "sleep 60 & exit 0")
    assert parent.wait(LONG_SECONDS) == 0
    until(lambda: group(parent.pid) == [])


def test_ending_a_child_twice_is_no_error_and_leaves_no_zombie(tmp_path: Path) -> None:
    sleeping = child(tmp_path, *SLEEP)
    assert sleeping.kill() == -signal.SIGKILL
    assert sleeping.kill() == -signal.SIGKILL
    assert sleeping.terminate() == -signal.SIGKILL
    assert sleeping.pid not in [process.pid for process in psutil.Process().children()]


def test_the_child_and_its_children_die_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, time\n"
        "from keyhole.local.processes import Child\n"
        f"log = pathlib.Path({str(tmp_path / 'log')!r})\n"
        "c = Child('x', ['/bin/sh', '-c', 'sleep 60 & sleep 60'], log, os.environ)\n"
        "print(c.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        until(lambda: len(group(pid)) >= 3)
        parent.kill()
    until(lambda: group(pid) == [])


def test_a_program_that_is_not_there_is_an_early_end_that_names_it(tmp_path: Path) -> None:
    missing = child(tmp_path, "/nonexistent/program")
    with pytest.raises(MachineError, match="/nonexistent/program"):
        missing.wait_healthy(lambda: False, LONG_SECONDS)
    missing.kill()


def test_free_ports_are_different_and_free() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert all(is_free(port) and not accepts(port) for port in ports)
