"""Watches by the client library: typed changes, tokens between any two of them, proxies that go."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from keyhole import AsyncClient, ChangeKind, Client, StateChange, errors, field
from keyhole.cli.main import main
from keyhole.cli.reads import OutputFormat
from keyhole.cli.watch_command import WatchedLines, watch
from keyhole.encoding.key_text import parse_key
from keyhole.testing.served_states import ServedStates
from services.state_server.read.watch_parts import WatchLimits
from tests.support.entries import hourly
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import descriptor, row, rows
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS


async def first(changes: Any, count: int) -> list[StateChange]:
    found: list[StateChange] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for change in changes:
            found.append(change)
            if len(found) == count:
                break
    return found


@dataclass
class Reading:
    celsius: float


async def test_changes_come_typed_by_a_handle_and_by_the_blocking_client() -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(state_server("a"))
        await server.own_new(descriptor())
        await server.commit(rows(3))
        proxy = await stack.enter_async_context(proxy_of(server.address))
        client = await stack.enter_async_context(AsyncClient(proxy.address, timeout=LONG_SECONDS))
        state = client.state("weather/readings", value=Reading)
        async with state.watch("sensor-1", before=True) as changes:
            assert not changes.snapshot_done
            (was,) = await first(changes, 1)
            assert was[:4] == (ChangeKind.PUT, "sensor-1", None, Reading(1.0))
            assert (was.epoch, was.snapshot, was.before_known) == (1, True, False)
            while not changes.snapshot_done:
                await changes.page()
            await server.commit({"sensor-1": None, "sensor-2": row(9.0)})
            (gone,) = await first(changes, 1)
            assert gone[:7] == (ChangeKind.DELETE, "sensor-1", None, None, Reading(1.0), True, 2)
            assert gone.commit_time is not None
            assert gone.commit_time.timestamp() == 2.0
            while not await changes.page() and changes.epoch < 2:
                pass
            assert changes.as_of is not None
        assert await changes.page() == []

        def threaded() -> list[StateChange]:
            found = []
            with (
                Client(proxy.address, timeout=LONG_SECONDS) as blocking,
                blocking.state("weather/readings").watch() as watch,
            ):
                for change in watch:
                    found.append(change)
                    if len(found) == 2:
                        return found
            return found

        given = await asyncio.to_thread(threaded)
        assert {change.key: change.value.celsius for change in given} == {"sensor-0": 0.0, "sensor-2": 9.0}
        with pytest.raises(TypeError, match="unexpected keyword argument 'stale'"):
            client.watch("weather", "readings", stale="never")  # type: ignore[call-arg]
        with pytest.raises(errors.UnknownState):
            await first(client.watch("weather", "reading"), 1)
        with pytest.raises(errors.KeyMismatch):
            await first(client.watch("weather", "readings", 7), 1)
        session = client.session()
        with pytest.raises(errors.Unsupported):
            session.state("weather/readings").watch()


async def test_keyhole_watch_prints_a_line_for_each_change_and_where_it_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with state_server("a") as server, proxy_of(server.address) as proxy:
        await server.own_new(hourly())
        await server.commit({("s1", 1): row(1.0), ("s2", 2): row(2.0), ("s2", 3): row(3.0)})

        async def run(*arguments: str) -> int:
            of = ["watch", "weather/hourly", *arguments, "--proxy", proxy.address]
            return await asyncio.to_thread(main, of)

        assert await run("s2", "--count", "2") == 0
        shown = capsys.readouterr()
        assert [line.split()[:3] for line in shown.out.splitlines()] == [["row", "s2", "2"], ["row", "s2", "3"]]
        token = shown.err.split("--after ")[1].split()[0]
        await server.commit({("s2", 2): None, ("s1", 1): row(9.0)})
        assert await run("s2", "--count", "1", "--json", "--before", "--after", token) == 0
        (line,) = capsys.readouterr().out.splitlines()
        printed = json.loads(line)
        assert printed["kind"] == "delete"
        assert (printed["key"], printed["map_key"], printed["value"], printed["epoch"]) == ("s2", 2, None, 2)
        selected = ["--prefix", "s", "--where", "celsius > 2", "--where", "m0 > 1", "--fields", "celsius"]
        assert await run(*selected, "--count", "1", "--json") == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert (json.loads(line)["map_key"], json.loads(line)["value"]) == (3, {"celsius": 3.0})
        assert await run("--from", "s1", "--to", "s2", "--count", "1") == 0
        assert capsys.readouterr().out.split()[:3] == ["row", "s1", "1"]
        assert await run("s1", "--prefix", "s") == 2


async def test_a_watch_goes_on_behind_any_change_whether_a_row_or_one_of_an_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.state_server.servicers.watches.WatchLimits", lambda: WatchLimits(page_changes=4))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(state_server("a"))
        await server.own_new(hourly(key_groups=2))
        entries = {(f"s{sensor}", hour): row(float(hour)) for sensor in range(3) for hour in range(6)}
        await server.commit(entries)
        proxy = await stack.enter_async_context(proxy_of(server.address))
        client = await stack.enter_async_context(AsyncClient(proxy.address, timeout=LONG_SECONDS))
        token, seen = None, list[StateChange]()
        for size in [1, 2, 3, 4, 1, 5, 2]:
            changes = client.watch("weather", "hourly", after=token)
            seen += await first(changes, size)
            await changes.close()
            token = changes.token
        assert sorted((change.key, change.map_key) for change in seen) == sorted(entries)
        assert all(change.snapshot for change in seen)
        await server.commit({key: row(100.0 + key[1]) for key in entries})
        more: list[StateChange] = []
        for size in [1, 2, 3, 4, 1, 5, 2]:
            changes = client.watch("weather", "hourly", after=token)
            more += await first(changes, size)
            await changes.close()
            token = changes.token
        assert sorted((change.key, change.map_key, change.value.celsius) for change in more) == sorted(
            (*key, 100.0 + key[1]) for key in entries
        )


async def test_a_server_of_an_earlier_version_is_refused_where_it_would_give_what_was_not_asked_for() -> None:
    async with fake_servers("a") as (server,), proxy_of(server.address) as proxy:
        server.host(descriptor(), rows(3))
        server.selects = False
        for address in (server.address, proxy.address):
            async with AsyncClient(address, timeout=LONG_SECONDS) as client:
                for options in ({"where": field("celsius") > 1}, {"fields": ["celsius"]}, {"prefix": "s"}):
                    with pytest.raises(errors.Unsupported, match="where, fields, prefix and range"):
                        await first(client.watch("weather", "readings", **options), 1)
                assert len(await first(client.watch("weather", "readings"), 3)) == 3


async def test_a_watch_goes_on_by_itself_at_another_proxy_when_its_own_goes() -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(state_server("a"))
        await server.own_new(descriptor())
        await server.commit(rows(5))
        second = await stack.enter_async_context(proxy_of(server.address))
        async with AsyncExitStack() as going:
            proxy = await going.enter_async_context(proxy_of(server.address))
            client = await stack.enter_async_context(AsyncClient([proxy.address, second.address], timeout=LONG_SECONDS))
            changes = client.watch("weather", "readings")
            assert len(await first(changes, 5)) == 5
        await server.commit(rows(5, 50.0))
        assert {change.value.celsius for change in await first(changes, 5)} == {50.0, 51.0, 52.0, 53.0, 54.0}
        await server.retire()
        with pytest.raises((errors.UnknownApplication, errors.UnknownState)):
            await first(changes, 1)
        await changes.close()


def test_a_line_of_keyhole_watch_has_letters_as_they_are_and_keys_that_can_be_typed_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ServedStates() as served, Client(served.address, timeout=LONG_SECONDS) as client:
        served.write(
            "shop/visits",
            [{"city": "Zürich", "place": "北京", "hour": 7, "said": "größer"}],
            key=["city", "place"],
            map_key="hour",
        )
        watch(client, OutputFormat(as_json=False), "shop/visits", WatchedLines([], None, True, False, False, most=1))
        assert capsys.readouterr().out == 'row    ["Zürich", "北京"] 7  {"said": "größer"}  epoch 1\n'
        assert parse_key(client.describe_state("shop", "visits").key, '["Zürich", "北京"]') == ("Zürich", "北京")
