"""How a process of Keyhole's begins and ends: its settings, its log, what it serves, and its exit code."""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from keyhole import logs
from keyhole.config import ClientProxyConfig, MetricsExporterConfig, StateServerConfig, load
from keyhole.errors import KeyholeError
from keyhole.rpc.server import run

_Config = TypeVar("_Config", StateServerConfig, ClientProxyConfig, MetricsExporterConfig)


def run_deployable(
    name: str,
    kind: type[_Config],
    serve: Callable[[_Config, asyncio.Event], Coroutine[Any, Any, None]],
    environ: Mapping[str, str],
) -> int:
    """Serves until SIGTERM or SIGINT ends it. Blocks; in the main thread.

    Args:
        name: As it calls itself on stderr, where it can't serve.
        kind: Of its settings, which are in `environ`.
        serve: Starts, and ends well once the event is set: it may be before it has started.

    Returns:
        The process's exit code.
    """
    logs.tell_crashes()
    try:
        config = load(kind, environ)
        logs.configure(config.log_level)
        run(until_signal(functools.partial(serve, config)))
    except KeyholeError as error:
        print(f"{name}: {error.message}", file=sys.stderr)  # noqa: T201 - for a person, where logs may not be set up
        return 1
    return 0


async def until_signal(serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Serves until SIGTERM or SIGINT; in the main thread's loop."""
    stopping = asyncio.Event()
    # Before anything is started: who reads in the log that it has may send one at once, and it must not end undrained.
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await serve(stopping)
