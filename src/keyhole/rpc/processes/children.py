"""Child processes of one program: how one is started, what ends with it, and how it ended."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Mapping, Sequence

_log = logging.getLogger(__name__)


async def start_module(
    module: str, inherited: Sequence[int], environ: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Runs a module by this Python, with these descriptors, which are its arguments. Raises OSError: It can't be.

    Args:
        environ: None: this process's.
    """
    safe = ["-P"] if sys.flags.safe_path else []
    return await asyncio.create_subprocess_exec(
        *(sys.executable, *safe, "-m", module, *map(str, inherited)),
        stdin=asyncio.subprocess.DEVNULL,
        pass_fds=inherited,
        env=environ,
    )


async def stop(*tasks: asyncio.Task[None]) -> None:
    """Ends what is done for a process that has ended. What failed of it is logged: nobody else waits for it."""
    for task in tasks:
        task.cancel()
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(error, Exception):
            _log.error("what was done for a process has failed", exc_info=error)


def how_ended(code: int) -> str:
    """An exit code in words."""
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
