"""What a reader may ask for, and sessions that never go backwards."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from keyhole import AsyncClient, Client, Stale
from keyhole.client.bounds import bounds_of
from keyhole.client.options import ReadOptions
from keyhole.client.session_epochs import Seen
from keyhole.errors import EpochNotReached, MalformedRequest
from keyhole.model.read import ReadBounds
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import APPLICATION, STATE, descriptor, rows
from tests.support.waiting import LONG_SECONDS, eventually


async def test_an_answer_is_true_where_the_key_was_found_and_has_no_value_where_not() -> None:
    async with fake_servers("a") as (server,):
        server.host(descriptor(), rows(1))
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            there, absent = await client.get_many(APPLICATION, STATE, ["sensor-0", "sensor-1"])
    assert (bool(there), there.found, there.value.celsius) == (True, True, 0.0)
    assert (bool(absent), absent.found, absent.value) == (False, False, None)


def test_staleness_counts_in_whole_milliseconds_rounded_up() -> None:
    assert bounds_of("always", timedelta(microseconds=1), 7) == ReadBounds(7, Stale.ALWAYS, 1)
    assert bounds_of(Stale.NEVER, timedelta(seconds=2), 0) == ReadBounds(0, Stale.NEVER, 2000)
    assert bounds_of("when_needed", None, 0) == ReadBounds()
    assert bounds_of("always", timedelta.max, 0).max_staleness_ms == 2**32 - 1


@pytest.mark.parametrize(
    ("stale", "max_staleness", "min_epoch", "says"),
    [
        ("sometimes", None, 0, "never, when_needed, always"),
        ("always", timedelta(0), 0, "no answer can be that fresh"),
        ("always", None, -1, "whole numbers from 1 on"),
    ],
)
def test_what_cant_be_asked_for_is_refused_with_what_can(
    stale: str, max_staleness: timedelta | None, min_epoch: int, says: str
) -> None:
    with pytest.raises(MalformedRequest, match=says):
        bounds_of(stale, max_staleness, min_epoch)  # type: ignore[arg-type]


async def test_an_option_that_there_is_not_is_refused_by_name_with_those_that_there_are() -> None:
    async with fake_servers("a") as (server,):
        server.host(descriptor(), rows(1))
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            for reads in (client, client.session()):
                with pytest.raises(
                    TypeError, match=r"'max_age'.* stale, max_staleness, min_epoch, as_of, timeout, consistency$"
                ):
                    reads.get(APPLICATION, STATE, "sensor-0", max_age=5)  # type: ignore[call-arg]
                with pytest.raises(
                    TypeError, match=r"'limit'.* stale, max_staleness, min_epoch, as_of, timeout, consistency$"
                ):
                    await reads.get_many(APPLICATION, STATE, [], limit=5)  # type: ignore[call-arg]
                with pytest.raises(
                    TypeError, match=r"'from'.* min_epoch, as_of, timeout, .*start, stop, descending, limit$"
                ):
                    await reads.scan(APPLICATION, STATE, "sensor-0", **{"from": 5})  # type: ignore[arg-type]

        def read() -> None:
            with Client(server.address, timeout=LONG_SECONDS) as client:
                for reads in (client, client.session()):
                    with pytest.raises(TypeError, match="'max_age'"):
                        reads.get(APPLICATION, STATE, "sensor-0", max_age=5)  # type: ignore[call-arg]

        await asyncio.to_thread(read)


async def test_a_session_asks_for_what_it_has_seen_of_each_state() -> None:
    async with fake_servers("a") as (server,):
        readings = server.host(descriptor(), rows(3))
        alarms = server.host(descriptor("alarms"), rows(3))
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            session = client.session()
            readings.epoch, alarms.epoch = 7, 3
            assert (await session.get(APPLICATION, STATE, "sensor-1")).epoch == 7
            assert (await session.get_many(APPLICATION, "alarms", ["sensor-1", "sensor-2"]))[0].epoch == 3
            assert session.epochs == {(APPLICATION, STATE): 7, (APPLICATION, "alarms"): 3}
            readings.epoch = 6
            with pytest.raises(EpochNotReached, match="at epoch 6"):
                await session.get(APPLICATION, STATE, "sensor-1")
            assert (await session.get(APPLICATION, "alarms", "sensor-1")).epoch == 3
            assert (await client.get(APPLICATION, STATE, "sensor-1")).epoch == 6
            resumed = client.session(session.epochs)
            with pytest.raises(EpochNotReached):
                await resumed.get_many(APPLICATION, STATE, ["sensor-1"])


def test_an_older_answer_that_comes_after_a_newer_one_takes_nothing_back() -> None:
    """Reads that are under way at the same time come back in any order."""
    seen = Seen({})
    for epoch in (7, 5):
        seen.note((APPLICATION, STATE), [("sensor-1", epoch)], None)
    seen.note((APPLICATION, STATE), [], None)
    assert seen.epochs == {(APPLICATION, STATE): 7}
    for given, held in ((8, 8), (3, 7)):
        options = ReadOptions(min_epoch=given)
        seen.hold((APPLICATION, STATE), options, ["sensor-1"], None)
        assert options["min_epoch"] == held


async def test_a_session_of_threads_does_the_same() -> None:
    async with fake_servers("a") as (server,):
        readings = server.host(descriptor(), rows(3))

        def read() -> object:
            with Client(server.address, timeout=LONG_SECONDS) as client:
                session = client.session()
                session.get(APPLICATION, STATE, "sensor-1")
                readings.epoch = 4
                assert session.get_many(APPLICATION, STATE, ["sensor-2"])[0].epoch == 4
                readings.epoch = 1
                with pytest.raises(EpochNotReached):
                    session.get(APPLICATION, STATE, "sensor-1")
                return session.epochs[APPLICATION, STATE]

        assert await asyncio.to_thread(read) == 4


async def test_a_session_goes_on_with_a_state_that_was_made_anew_whose_epochs_begin_anew() -> None:
    async with fake_servers("a") as (server,), proxy_of(server.address) as proxy:
        server.host(descriptor(), rows(10)).epoch = 7
        server.changed()
        async with AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
            session = client.session()
            assert (await session.get(APPLICATION, STATE, "sensor-1")).epoch == 7
            server.host(descriptor(topic_id="topic-2"), rows(10, 100.0)).epoch = 1
            server.changed()
            await eventually(
                lambda: proxy._directory.tables[APPLICATION, STATE].descriptor.topic_id == "topic-2", LONG_SECONDS
            )
            assert (await client.get(APPLICATION, STATE, "sensor-1")).epoch == 1
            assert (await session.get(APPLICATION, STATE, "sensor-1")).epoch == 1
            assert session.epochs == {(APPLICATION, STATE): 1}
