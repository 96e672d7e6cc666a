"""Waits for what takes long, and says in between that it waits: a watch is never silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TypeVar

_Item = TypeVar("_Item")
_LEAST_SECONDS = 0.01


async def or_none(items: AsyncIterator[_Item], left: Callable[[], float]) -> AsyncGenerator[_Item | None]:
    """The same items; None where the next one takes longer than is left. Close it; the items are not closed.

    Args:
        left: In how many seconds something is to be sent. Asked again after each None.
    """
    while True:
        following = asyncio.ensure_future(anext(items, None))
        try:
            while not (await asyncio.wait({following}, timeout=max(_LEAST_SECONDS, left())))[0]:
                yield None
        finally:
            if not following.done():
                following.cancel()
                await asyncio.wait({following})
        item = following.result()
        if item is None:
            return
        yield item
