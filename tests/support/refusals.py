"""What a call is refused with, as it came over the wire."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import grpc
import pytest

from keyhole.errors import DeadlineExceeded, KeyholeError
from keyhole.rpc import status


async def refusal_of(call: Callable[[float], Awaitable[object]], seconds: float) -> KeyholeError:
    """What ends a call, which is given its deadline in seconds.

    Whoever is asked answers before the deadline. On a machine so slow that the deadline passes on the way, the call is
    made again with a longer one.
    """
    for deadline in (seconds, 4 * seconds, 20 * seconds):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(deadline)
        error = status.from_rpc_error(caught.value)
        # gRPC's own status is among the facts only where nobody has sent an error.
        if not (isinstance(error, DeadlineExceeded) and "status" in error.facts):
            break
    return error
