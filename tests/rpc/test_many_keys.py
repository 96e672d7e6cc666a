"""Reads of more keys than a connection has under way at once."""

from __future__ import annotations

import pytest

from keyhole import AsyncClient
from keyhole.errors import DeadlineExceeded, KeyMismatch
from tests.support.readings import APPLICATION, STATE, descriptor, rows
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS

_MANY = 70_000


async def test_any_number_of_keys_is_answered_in_their_order() -> None:
    async with state_server("a") as server:
        await server.own(descriptor())
        await server.commit(rows(10))
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            stored = sorted(rows(10))
            keys = [stored[number % 10] if number % 7 == 0 else f"absent-{number}" for number in range(_MANY)]
            answers = await client.get_many(APPLICATION, STATE, keys)
            of_each = {name: await client.get(APPLICATION, STATE, name) for name in stored}
    assert len(answers) == _MANY
    for key, answer in zip(keys, answers, strict=True):
        assert answer.found == (key in of_each)
        assert not answer.found or answer.value == of_each[key].value


async def test_one_that_fits_no_key_fails_the_call_wherever_it_stands() -> None:
    async with state_server("a") as server:
        await server.own(descriptor())
        await server.commit(rows(1))
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            with pytest.raises(KeyMismatch):
                await client.get_many(APPLICATION, STATE, [*(f"absent-{number}" for number in range(_MANY)), 7])


async def test_the_timeout_is_that_of_all_of_them() -> None:
    async with state_server("a") as server:
        await server.own(descriptor())
        await server.commit(rows(1))
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            await client.get(APPLICATION, STATE, "known by now")
            keys = [f"absent-{number}" for number in range(5 * _MANY)]
            with pytest.raises(DeadlineExceeded):
                await client.get_many(APPLICATION, STATE, keys, timeout=0.05)
