"""Processes that were forked beside gRPC: whether it can be used in them.

Of gRPC's threads a child has none. Where its asyncio API is in use when a process forks, calls in the child wait for
ever, or gRPC ends the process (grpcio 1.85). While gRPC's support of forks is off, the same holds for its synchronous
API. So a client in such a child raises Unsupported, and doesn't call. Where gRPC has no threads left at the fork,
clients work in the child. A fork waits up to half a second for threads that end. Without /proc a connection of the
synchronous API isn't seen.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from grpc._cython import cygrpc

from keyhole.errors import Unsupported

_log = logging.getLogger(__name__)

# How the name of the thread ends that grpc.aio has while it has a channel or a server.
_POLLER = "(_poll_wrapper)"


# Of gRPC's threads, as Linux names them: those that it has while anybody is connected, and `grpc_shutdown`. That one
# ends last, and may hold gRPC's lock at a fork: the child would wait for the lock for ever. The thread of its timers is
# left out: whoever has no more than a server's credentials has it, and a child of theirs can call.
_THREADS = (b"event_engine", b"lifeguard", b"grpc_shutdown")
_TASKS = Path("/proc/self/task")
# How long a fork waits for the threads of what was closed just now, and how often it looks.
_END_SECONDS, _LOOK_SECONDS = 0.5, 0.005


class Process:
    """This one, and how it came to be.

    Attributes:
        cut_off: Calls would hang: it was forked beside gRPC, or one that it descends from was.
        cuts_off: Set just before a fork: what `cut_off` is in the child.
    """

    cut_off = False
    cuts_off = False


process = Process()


def polling() -> bool:
    """Whether gRPC's asyncio API is in use, by anybody in this process."""
    return any(thread.name.endswith(_POLLER) for thread in threading.enumerate())


def fork_support() -> bool:
    """Whether gRPC starts its threads again in children: its default, which importing keyhole.rpc turns off."""
    core: Any = cygrpc
    return bool(core.is_fork_support_enabled())


def check() -> None:
    """Passes where gRPC can be used in this process. Raises Unsupported where it can't."""
    if process.cut_off:
        raise Unsupported(
            "this process was forked from one that had a connection of gRPC open, and gRPC does not work in it. Close "
            "all clients before the process forks, or make them there and use them in the child first (gunicorn: in "
            "post_fork; Celery: in worker_process_init), or start processes by spawn in place of fork",
            process=os.getpid(),
        )


def _before() -> None:
    process.cuts_off = polling()
    if process.cuts_off:
        # What is closed may be left in cycles, of a user's exceptions for example.
        gc.collect()
        process.cuts_off = polling()
    if not fork_support():
        if not process.cuts_off and _goes_on():
            # So may be a channel that nobody has any more, which keeps its threads.
            gc.collect()
            process.cuts_off = _goes_on()
    elif process.cuts_off:
        _log.warning(
            "this process forks while a connection of gRPC is open, and gRPC's support of forks is on: it may end the "
            "child, also one that doesn't use it. Close all clients first, or set GRPC_ENABLE_FORK_SUPPORT=0"
        )


def _goes_on() -> bool:
    """Whether gRPC has threads; those that end in a moment are waited for. Always no without /proc."""
    until = time.monotonic() + _END_SECONDS
    while has_threads():
        if time.monotonic() > until:
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def has_threads() -> bool:
    """Whether gRPC has threads in this process; yes also where one has just ended."""
    try:
        return any((task / "comm").read_bytes().startswith(_THREADS) for task in _TASKS.iterdir())
    except OSError:
        # Not Linux; or one has ended meanwhile.
        return _TASKS.exists()


def _in_child() -> None:
    process.cut_off = process.cut_off or process.cuts_off


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_before, after_in_child=_in_child)
