"""A state's handle, through both clients and their sessions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from keyhole import AsyncClient, Client
from keyhole.errors import InvalidConfiguration, KeyMismatch, NullKey, Unsupported, ValueMismatch
from keyhole.model.state import KeyType, StateKind
from tests.support.entries import hourly
from tests.support.proxies import fake_servers
from tests.support.readings import APPLICATION, STATE, descriptor, row, rows
from tests.support.waiting import LONG_SECONDS

_PATH = f"{APPLICATION}/{STATE}"


@dataclass(frozen=True)
class Reading:
    celsius: float


@dataclass(frozen=True)
class WrongReading:
    celsius: str


async def test_a_state_is_read_by_key_or_column_and_its_values_are_of_the_readers_type() -> None:
    async with fake_servers("a") as (server,):
        server.host(descriptor(), rows(3))
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            for reads in (client, client.session()):
                state = reads.state(_PATH, value=Reading)
                assert (await state.get("sensor-1")).value == Reading(1.0)
                assert (await state.get(sensor="sensor-2", stale="always")).value == Reading(2.0)
                one, absent = await state.get_many(["sensor-0", "sensor-7"])
                assert (one.value, absent.value) == (Reading(0.0), None)
                assert absent.value_or(Reading(-1.0)) == Reading(-1.0)
            assert (await client.state(_PATH).get("sensor-1")).value.count == 1


async def test_all_keys_of_a_state_come_with_values_of_the_readers_type() -> None:
    async with fake_servers("a") as (server,):
        server.host(descriptor(), rows(3))
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            state = client.state(_PATH, value=Reading)
            found = {entry.key: entry.value async for entry in state.scan_all()}
            assert found == {f"sensor-{number}": Reading(float(number)) for number in range(3)}
            assert len(await state.scan_all(limit=1).page()) == 1
            with pytest.raises(ValueMismatch, match="does not fit WrongReading"):
                await client.state(_PATH, value=WrongReading).scan_all().page()
            with pytest.raises(Unsupported, match="by the `state` of the client"):
                client.session().state(_PATH).scan_all()
        with Client(server.address, timeout=LONG_SECONDS) as blocking:
            typed = blocking.state(_PATH, value=Reading)
            assert {
                entry.key: entry.value for entry in await asyncio.to_thread(lambda: list(typed.scan_all()))
            } == found


async def test_what_is_known_of_a_state_comes_with_its_first_read_or_is_asked_for() -> None:
    async with fake_servers("a") as (server,):
        server.host(descriptor(), rows(1))
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            state = client.state(_PATH)
            assert state.known is None
            assert "not been read yet" in state._repr_html_()
            assert repr(state) == f"AsyncState('{_PATH}', value=Row)"
            assert (await state.describe()) == state.known == descriptor()
            assert "celsius" in state._repr_html_()
            other = client.state(_PATH, value=Reading)
            await other.get("sensor-0")
            assert other.known == descriptor()
            assert repr(other) == f"AsyncState('{_PATH}', value=Reading)"


async def test_the_columns_of_a_map_are_those_of_its_key_and_map_key_and_a_scan_takes_the_keys() -> None:
    of = hourly(KeyType.INT)
    path = f"{of.application}/{of.state}"
    names = [column.name for column in (*of.key, *of.map_key)]
    async with fake_servers("a") as (server,):
        server.host(of, {("sensor-1", 1): row(1.0), ("sensor-1", 2): row(2.0)})
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            state = client.state(path, value=Reading)
            assert (await state.get(**dict(zip(names, ("sensor-1", 2), strict=True)))).value == Reading(2.0)
            entries = await state.scan(**{names[0]: "sensor-1"}, descending=True)
            assert [(entry.map_key, entry.value) for entry in entries] == [(2, Reading(2.0)), (1, Reading(1.0))]
            assert (await state.scan("sensor-1", limit=1)).values == (Reading(1.0),)
            with pytest.raises(KeyMismatch, match=f"was given by {names[0]}; give {names[0]}, {names[1]}"):
                await state.get(**{names[0]: "sensor-1"})


async def test_a_broadcast_state_is_scanned_without_a_key() -> None:
    of = hourly(kind=StateKind.BROADCAST, key_groups=1)
    async with fake_servers("a") as (server,):
        server.host(of, {"sensor-1": row(1.0)})
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            state = client.state(f"{of.application}/{of.state}", value=Reading)
            assert (await state.scan()).values == (Reading(1.0),)
            with pytest.raises(KeyMismatch, match="give none: it is scanned whole"):
                await state.scan(sensor="sensor-1")


async def test_what_cant_be_meant_is_refused_with_what_can() -> None:
    async with fake_servers("a") as (server,):
        server.host(descriptor(), rows(1))
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            state = client.state(_PATH, value=WrongReading)
            with pytest.raises(KeyMismatch, match=r"was given by sensr; give sensor$"):
                await state.get(sensr="sensor-0")
            with pytest.raises(KeyMismatch, match=r"was given by no column; give sensor$"):
                await state.get()
            with pytest.raises(TypeError, match=r"'timeut'.* by position; the options are stale, max_staleness"):
                await state.get("sensor-0", timeut=1)
            with pytest.raises(NullKey, match="sensor is null"):
                await state.get(None)  # type: ignore[arg-type]
            with pytest.raises(ValueMismatch, match="does not fit WrongReading: Expected `str`, got `float`"):
                await state.get("sensor-0")
            with pytest.raises(InvalidConfiguration, match="write APPLICATION/STATE"):
                client.state(STATE)
            with pytest.raises(TypeError, match="give a dataclass"):
                client.state(_PATH, value=int)


async def test_the_client_of_threads_has_the_same_handle() -> None:
    of = hourly(KeyType.INT)
    async with fake_servers("a") as (server,):
        server.host(descriptor(), rows(2))
        server.host(of, {("sensor-1", 1): row(1.0)})

        def read() -> None:
            with Client(server.address, timeout=LONG_SECONDS) as client:
                sources: tuple[Any, ...] = (client, client.session())
                for reads in sources:
                    state = reads.state(_PATH, value=Reading)
                    assert state.get(sensor="sensor-1").value == Reading(1.0)
                    assert [answer.found for answer in state.get_many(["sensor-0", "sensor-7"])] == [True, False]
                    entries = reads.state(f"{of.application}/{of.state}", value=Reading)
                    assert entries.scan(sensor="sensor-1").values == (Reading(1.0),)
                assert client.state(_PATH).describe() == descriptor()
                assert repr(client.state(_PATH)) == f"State('{_PATH}', value=Row)"

        await asyncio.to_thread(read)
