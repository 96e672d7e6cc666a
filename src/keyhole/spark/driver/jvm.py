"""Spark's JVM as the driver finds it: its classes, without asking for the same one again and again, and its compiler.

PySpark names a class of the JVM for nearly everything that it does with columns, functions and sessions. Py4J asks the
JVM for it each time, and the JVM looks for it in all packages that are imported there: 280 jars for each that has no
class of that name. That was a sixth of the time that the driver's thread took for a small batch.
"""

from __future__ import annotations

import contextlib
import os
import sys
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


def put_compiler_back(session: SparkSession) -> None:
    """The optimising compiler of this session's JVM works with the processor time that nobody else wants.

    Code that runs often is compiled all the same, only later, and the first batches have the processors. Nothing is
    done where this isn't Linux, or where the JVM isn't one that PySpark has started here. Idempotent.
    """
    started = getattr(session.sparkContext._gateway, "proc", None)
    if sys.platform == "linux" and started is not None:
        put_threads_back(started.pid, _OPTIMISING_COMPILER)


def put_threads_back(pid: int, name: str) -> None:
    """Threads of a process whose names begin so get processor time when others leave some. Linux only."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if (thread / "comm").read_text().startswith(name):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), _NICE)
