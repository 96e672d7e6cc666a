"""What a call is refused with: as it came over the wire, and as a client tells it at a deadline."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import grpc
import pytest

from keyhole.errors import DeadlineExceeded, KeyholeError
from keyhole.rpc import status

_LAST_SECONDS = 60.0

_CAUSE = "cause"
"""Of an error at a deadline: what has been in the way of an answer."""


def longer_and_longer(seconds: float) -> tuple[float, ...]:
    """Deadlines, in seconds: short, and longer where the machine is so slow that nothing was done within the first. The
    last one is a minute at least.
    """
    return seconds, 4 * seconds, max(20 * seconds, _LAST_SECONDS)


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


async def raised_at_deadline(
    read: Callable[[float], Awaitable[object]], seconds: float, kind: type[KeyholeError], says: str
) -> KeyholeError:
    """What ends a client's read, which is given its deadline in seconds: an error of this kind, whose message says so.

    On a machine so slow that the deadline passes before anybody has said why, the read is made again with a longer one.
    """
    for deadline in longer_and_longer(seconds):
        with pytest.raises(KeyholeError) as caught:
            await read(deadline)
        if _says_so(caught.value, (kind,), says):
            return caught.value
    raise AssertionError(f"it ended with {caught.value.reason}: {caught.value.message}")


def raised_in_a_batch(read: Callable[[float], object], seconds: float, says: str, *kinds: type[KeyholeError]) -> None:
    """The same of a read that blocks, as in a batch of a job: an error of one of these kinds."""
    for deadline in longer_and_longer(seconds):
        with pytest.raises(KeyholeError) as caught:
            read(deadline)
        if _says_so(caught.value, kinds, says):
            return
    raise AssertionError(f"it ended with {caught.value.reason}: {caught.value.message}")


def _says_so(error: KeyholeError, kinds: tuple[type[KeyholeError], ...], says: str) -> bool:
    """False: nobody has said why yet. An AssertionError: it is another reason."""
    if isinstance(error, kinds) and re.search(says, error.message):
        return True
    assert isinstance(error, DeadlineExceeded), f"it ended with {error.reason}: {error.message}"
    return False
