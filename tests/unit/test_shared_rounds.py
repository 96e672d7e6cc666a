"""The console's rounds of questions: one at a time, whose answers all share who ask for the same."""

from __future__ import annotations

import asyncio

import pytest

from keyhole.errors import ServerLost
from keyhole.testing.clock import ManualClock
from services.client_proxy.console.shared_rounds import FRESH_SECONDS, SharedRounds


class Servers:
    """Counts who asks them; a round ends once it may."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may = asyncio.Event()
        self.may.set()
        self.fail = False

    async def ask(self, name: str) -> str:
        self.asked.append(name)
        await self.may.wait()
        if self.fail:
            raise ServerLost("away")
        return f"{name} {len(self.asked)}"


async def test_all_who_ask_for_the_same_share_a_round_and_its_answers_until_they_are_old() -> None:
    clock, servers = ManualClock(), Servers()
    rounds = SharedRounds(clock, servers.ask)
    assert await asyncio.gather(*(rounds.of("a") for _ in range(3))) == ["a 1"] * 3
    assert await rounds.of("b") == "b 2"
    clock.advance(FRESH_SECONDS / 2)
    assert await rounds.of("a") == "a 1"
    clock.advance(FRESH_SECONDS)
    assert await rounds.of("a") == "a 3"


async def test_a_round_that_takes_long_is_not_waited_for_where_the_last_one_is_young_enough() -> None:
    clock, servers = ManualClock(), Servers()
    rounds = SharedRounds(clock, servers.ask, old_seconds=10.0)
    assert await rounds.of("a") == "a 1"
    servers.may.clear()
    clock.advance(2 * FRESH_SECONDS)
    assert await rounds.of("a") == "a 1"
    clock.advance(10.0)
    waits = asyncio.ensure_future(rounds.of("a"))
    await asyncio.sleep(0)
    servers.may.set()
    assert await waits == "a 2"
    assert servers.asked == ["a", "a"]


async def test_a_round_that_fails_says_so_to_all_who_wait_and_the_next_is_a_new_one() -> None:
    servers = Servers()
    rounds = SharedRounds(ManualClock(), servers.ask)
    servers.fail = True
    outcomes = await asyncio.gather(rounds.of("a"), rounds.of("a"), return_exceptions=True)
    assert [type(of) for of in outcomes] == [ServerLost, ServerLost]
    servers.fail = False
    assert await rounds.of("a") == "a 2"


async def test_who_goes_away_ends_no_round_and_closing_does() -> None:
    servers = Servers()
    rounds = SharedRounds(ManualClock(), servers.ask)
    servers.may.clear()
    first, second = (asyncio.ensure_future(rounds.of("a")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    assert not second.done()
    await rounds.close()
    with pytest.raises(asyncio.CancelledError):
        await second
