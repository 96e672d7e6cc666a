"""Spark's JVM as the driver finds it: its classes, without asking for the same one again and again, and its compiler.

PySpark names a class of the JVM for nearly everything that it does with columns, functions and sessions. Py4J asks the
JVM for it each time, and the JVM looks for it in all packages that are imported there: 280 jars for each that has no
class of that name. That was a sixth of the time that the driver's thread took for a small batch.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from py4j.java_gateway import JavaClass, JVMView
from pyspark.sql import SparkSession


class _RememberingView(JVMView):  # type: ignore[misc]  # py4j has no types
    """Asks once for each class. What is no class, a package that may have more tomorrow, it asks for each time."""

    def __getattr__(self, name: str) -> object:
        found = super().__getattr__(name)
        if isinstance(found, JavaClass):
            self.__dict__[name] = found
        return found


def remember_classes(session: SparkSession) -> None:
    """For all that is done with this JVM from now on, by Keyhole and by PySpark itself. Driver only. Idempotent."""
    jvm = session._jvm
    if type(jvm) is JVMView:
        jvm.__class__ = _RememberingView


def java_class(session: SparkSession, name: str) -> JavaClass:
    """A class by its full name, which the JVM isn't asked for: who makes one of it, or calls it, finds out."""
    jvm = session._jvm
    assert jvm is not None
    return JavaClass(name, jvm._gateway_client)


# As Linux cuts the name of HotSpot's C2.
_OPTIMISING_COMPILER = "C2 CompilerThre"
# Others have ten times its share of a busy processor. With less it would hold locks for long that they wait for.
_NICE = 10
_LOOK_SECONDS = 0.05


def put_compiler_back(session: SparkSession) -> None:
    """The optimising compiler of this session's JVM works with the processor time that nobody else wants.

    Code that runs often is compiled all the same, only later, and the first batches have the processors. Nothing is
    done where this isn't Linux, or where the JVM isn't one that PySpark has started here. Idempotent.
    """
    started = getattr(session.sparkContext._gateway, "proc", None)
    if sys.platform == "linux" and started is not None:
        put_threads_back(started.pid, _OPTIMISING_COMPILER)


@contextlib.contextmanager
def compiler_put_back_early() -> Iterator[None]:
    """The same for a JVM that is started within the block, from its beginning and not from the block's end.

    A third of the processor time that a session's start takes is this compiler's. Does nothing where this isn't Linux.
    """
    if sys.platform != "linux":
        yield
        return
    over, before = threading.Event(), set(_children())

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            if any(put_threads_back(child, _OPTIMISING_COMPILER) for child in set(_children()) - before):
                return

    looking = threading.Thread(target=look, name="keyhole-compiler", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


def _children() -> list[int]:
    """The processes that this one has started; none where Linux was built without telling."""
    found: list[int] = []
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            found += map(int, (thread / "children").read_text().split())
    return found


def put_threads_back(pid: int, name: str) -> bool:
    """Threads of a process whose names begin so get processor time when others leave some. Linux only.

    Returns:
        Whether there was one.
    """
    found = False
    with contextlib.suppress(FileNotFoundError):  # the process has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                if (thread / "comm").read_text().startswith(name):
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), _NICE)
                    found = True
    return found
