"""Who looks at many entries has one turn of all in each pass of the event loop, so that lookups come in between."""

from __future__ import annotations

import asyncio

import pytest

from services.state_server.read.read_turns import ReadTurns
from tests.support.waiting import LONG_SECONDS


class Passes:
    """Counts the passes of the event loop, as a lookup that waits sees them."""

    def __init__(self) -> None:
        self.number = 0
        self._counting = asyncio.get_running_loop().create_task(self._count())

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.number += 1

    def end(self) -> None:
        self._counting.cancel()


async def test_of_many_who_look_at_entries_one_has_a_turn_in_a_pass_and_all_get_theirs() -> None:
    turns, passes, taken = ReadTurns(), Passes(), list[tuple[int, int]]()

    async def look(who: int) -> None:
        for _ in range(5):
            await turns.next()
            taken.append((passes.number, who))

    async with asyncio.timeout(LONG_SECONDS):
        await asyncio.gather(*map(look, range(64)))
    passes.end()
    assert len({number for number, _ in taken}) == len(taken) == 64 * 5
    # In the order in which they came.
    assert [who for _, who in taken] == [*range(64)] * 5


async def test_whoever_leaves_the_queue_holds_nobody_up() -> None:
    turns = ReadTurns()
    waiting = [asyncio.create_task(turns.next()) for _ in range(3)]
    await asyncio.sleep(0)
    for task in waiting[:2]:
        task.cancel()
    async with asyncio.timeout(LONG_SECONDS):
        await waiting[2]
    for task in waiting[:2]:
        with pytest.raises(asyncio.CancelledError):
            await task
