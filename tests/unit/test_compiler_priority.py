"""The optimising compiler of Spark's JVM comes behind all else on the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from keyhole.spark.driver.jvm import compiler_put_back_early, put_threads_back
from keyhole.spark.session import local_settings

pytestmark = pytest.mark.core


def test_the_threads_of_a_name_have_a_lower_priority_and_others_keep_theirs() -> None:
    named, done = threading.Event(), threading.Event()
    niceness: list[int] = []

    def compiler() -> None:
        thread = threading.get_native_id()
        Path(f"/proc/self/task/{thread}/comm").write_text("C2 CompilerThread0"[:15])
        named.set()
        assert done.wait(60)
        niceness.append(os.getpriority(os.PRIO_PROCESS, thread))

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    thread = threading.Thread(target=compiler)
    thread.start()
    try:
        assert named.wait(60)
        put_threads_back(os.getpid(), "C2 CompilerThre")
    finally:
        done.set()
        thread.join(60)
    assert niceness == [10]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


@pytest.mark.skipif(
    not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="this Linux does not tell a process's children"
)
def test_those_of_a_process_that_is_started_meanwhile_are_put_back_while_it_starts() -> None:
    program = """
import os, sys, threading
def compiler():
    open(f"/proc/self/task/{threading.get_native_id()}/comm", "w").write("C2 CompilerThre")
    while os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) != 10:
        pass
    print("put back", flush=True)
    sys.stdin.read()
threading.Thread(target=compiler).start()
"""
    with compiler_put_back_early():
        child = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "put back\n"
    child.communicate("", 60)
    assert "keyhole-compiler" not in {thread.name for thread in threading.enumerate()}


def test_compiler_threads_that_come_later_would_not_be_put_back_so_all_are_there_at_once(tmp_path: Path) -> None:
    quick = local_settings([], tmp_path, quick=True)["spark.driver.extraJavaOptions"]
    assert "-XX:-UseDynamicNumberOfCompilerThreads" in quick
    assert "-XX:-UseDynamic" not in local_settings([], tmp_path, quick=False)["spark.driver.extraJavaOptions"]
