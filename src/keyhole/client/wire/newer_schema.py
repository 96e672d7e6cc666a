"""What a reader does that has met a row, or a refusal, which what it knows of the state does not explain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from keyhole.client.wire.links import Links, pause_seconds
from keyhole.encoding.codec import StateCodec
from keyhole.errors import KeyholeError, StaleDescriptor


async def await_newer(
    links: Links,
    described: Callable[[], Awaitable[StateCodec]],
    codec: StateCodec,
    error: KeyholeError,
    deadline: float,
) -> None:
    """Returns when it is time to try again: the state is described otherwise by now, or a moment has passed.

    Args:
        described: The state as it is described now.
        codec: Of what was known.
        error: What was met.
        deadline: On the event loop's clock.

    Raises:
        KeyholeError: The error itself: nothing is newer, and nothing newer is to come, or not in time.
    """
    if (await described()).descriptor != codec.descriptor:
        return
    # Who describes it may hear of a schema after its first row. All else no waiting makes right.
    until = asyncio.get_running_loop().time() + pause_seconds()
    if not isinstance(error, StaleDescriptor) or until >= deadline:
        raise error
    await links.pause(until)
