"""What a call is refused with: as it came over the wire, and as a client tells it at a deadline."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import grpc
import pytest

from keyhole.errors import DeadlineExceeded, KeyholeError
from keyhole.rpc import status

_CAUSE = "cause"
"""Of an error at a deadline: what has been in the way of an answer."""


def longer_and_longer(seconds: float) -> tuple[float, ...]:
    """Deadlines, in seconds: short, and longer where the machine is so slow that nothing was done within the first."""
    return seconds, 4 * seconds, 20 * seconds


async def refusal_of(call: Callable[[float], Awaitable[object]], seconds: float) -> KeyholeError:
    """What ends a call, which is given its deadline in seconds.

    Whoever is asked answers before the deadline, and says why nobody could. On a machine so slow that the deadline
    passes on the way, to the proxy or behind it, the call is made again with a longer one.
    """
    for deadline in longer_and_longer(seconds):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(deadline)
        error = status.from_rpc_error(caught.value)
        if not isinstance(error, DeadlineExceeded) or _CAUSE in error.facts:
            break
    return error


async def told_at_deadline(
    read: Callable[[float], Awaitable[object]], seconds: float, kind: type[KeyholeError], says: str
) -> KeyholeError:
    """What ends a client's read, which is given its deadline in seconds: an error of this kind, whose message says so.

    On a machine so slow that the deadline passes before anybody has said why, the read is made again with a longer one.
    """
    for deadline in longer_and_longer(seconds):
        with pytest.raises(KeyholeError) as caught:
            await read(deadline)
        error = caught.value
        if isinstance(error, kind) and re.search(says, error.message):
            return error
        if not isinstance(error, DeadlineExceeded):
            break
    raise AssertionError(f"it ended with {error.reason}: {error.message}")
