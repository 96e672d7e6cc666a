"""Spark's Python workers, which run one task after the other."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import socket
import sys
from pathlib import Path

_imported = 0
_descriptors = Path("/proc/self/fd")
_ON = ctypes.c_int(1)


def spare_imports() -> None:
    """Called by a task, and before workers are forked: what has been imported by now is left out when Spark's worker
    collects garbage.

    It does so after each task (pyspark.daemon), over all that there is: with pandas, pyarrow and grpc that takes longer
    than many a task, and the next task of the worker waits for it. Modules stay anyhow. What a user's own code holds at
    this moment is freed as ever once nothing refers to it, unless it refers to itself.
    """
    global _imported
    if len(sys.modules) > _imported:
        _imported = len(sys.modules)
        gc.collect()
        gc.freeze()


def hasten_rows() -> None:
    """Called by a task before it takes its first rows: they come at once, and not 40 ms later.

    Spark writes what a task is to do, and then its rows, by a TCP connection which holds small pieces back until what
    went before is acknowledged. This side's system puts that off, in case there is something to send with it. Asking
    for quick acknowledgements sends what is due. The system forgets it again, so each task asks. Where this isn't Linux
    nothing is done, nor where Spark uses Unix sockets: they wait for nothing.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):  # nobody needs it
        for entry in _descriptors.iterdir():
            # Not by a socket object: where somebody has set a default timeout it would make Spark's own non-blocking.
            # Some are closed by now, and most are no connections: that it fails there is no matter.
            option = socket.IPPROTO_TCP, socket.TCP_QUICKACK, ctypes.byref(_ON), ctypes.sizeof(_ON)
            _libc().setsockopt(int(entry.name), *option)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
