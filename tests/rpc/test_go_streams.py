"""The client in Go scans and watches, through a proxy: filtered, by a range of keys, and behind a token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from keyhole.model.state import KeyType, StateDescriptor, StateKind
from tests.support import go_client, needs
from tests.support.entries import APPLICATION, STATE, hourly, hours, row
from tests.support.proxies import proxy_of
from tests.support.state_servers import RunningServer, state_server
from tests.support.waiting import LONG_SECONDS, eventually

# Go's compiler takes minutes for gRPC, once.
pytestmark = [pytest.mark.platform, pytest.mark.timeout(1500)]

READINGS = {f"sensor-{number}": row(float(number)) for number in range(20)} | {"other": row(99.0)}


class Program:
    """The client, of the state that a proxy's only server has."""

    def __init__(self, path: str, proxy: str, server: RunningServer) -> None:
        self.server = server
        self._command = [path, "-proxy", proxy, "-state", f"{APPLICATION}/{STATE}", "-timeout", f"{LONG_SECONDS:g}s"]

    async def run(self, method: str, *arguments: str) -> tuple[int, str, str]:
        """Exit code, output, errors."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self._command, "-method", method, *arguments, stdout=pipe, stderr=pipe
        )
        async with asyncio.timeout(LONG_SECONDS):
            out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()

    async def lines(self, method: str, *arguments: str) -> list[Any]:
        code, out, err = await self.run(method, *arguments)
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]

    @asynccontextmanager
    async def watching(self, *arguments: str) -> AsyncIterator[asyncio.StreamReader]:
        """A watch, killed at the end."""
        process = await asyncio.create_subprocess_exec(
            *self._command, "-method", "watch", "-for", "1h", *arguments, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.kill()
            await process.wait()


@asynccontextmanager
async def serving(of: StateDescriptor, rows: Any) -> AsyncIterator[Program]:
    needs.go()
    built = await asyncio.to_thread(go_client.binary)
    async with state_server("server-a") as server, proxy_of(server.address) as proxy:
        await server.own(of)
        await server.commit(rows)
        await eventually(lambda: len(proxy._directory.tables) == 1)
        yield Program(str(built), proxy.address, server)


async def next_of(lines: asyncio.StreamReader, count: int) -> tuple[dict[str, Any], str]:
    """What is told next of so many keys: value, and whether it was there at the beginning; and the token behind it."""
    changes: dict[str, Any] = {}
    async with asyncio.timeout(LONG_SECONDS):
        while True:
            line = json.loads(await lines.readline())
            if "token" not in line:
                (key,) = line["key"]
                changes[key] = line["value"] and line["value"]["celsius"], line.get("snapshot", False)
            elif len(changes) >= count:
                return changes, line["token"]


async def test_it_scans_all_keys_or_those_of_a_predicate_or_a_prefix() -> None:
    async with serving(hourly(kind=StateKind.VALUE), READINGS) as program:
        everything = await program.lines("scan")
        assert sorted(one["key"][0] for one in everything) == sorted(READINGS)
        assert {(one["epoch"], one["server"]) for one in everything} == {(1, "server-a")}
        assert {one["value"]["celsius"] for one in everything} == {*map(float, range(20)), 99.0}

        async def keys(*arguments: str) -> list[str]:
            return sorted(one["key"][0] for one in await program.lines("scan", *arguments))

        assert await keys("-where", "celsius>=18") == ["other", "sensor-18", "sensor-19"]
        assert await keys("-prefix", "sensor-1") == sorted(f"sensor-{n}" for n in (1, *range(10, 20)))
        assert await keys("-prefix", "sensor-1", "-where", "celsius<11") == ["sensor-1", "sensor-10"]
        assert len(await keys("-limit", "5")) == 5
        assert await keys("-where", "celsius>1000") == []
        for arguments, said in (
            (("-where", "kelvin>3"), 'have no field "kelvin"'),
            (("-where", "celsius>hot"), "compare it with a number"),
            (("-where", "celsius"), "write a comparison"),
        ):
            code, out, err = await program.run("scan", *arguments)
            assert (code, out) == (1, "")
            assert said in err


async def test_it_scans_the_entries_of_a_map() -> None:
    rows = hours("sensor-7", range(-2, 3)) | hours("sensor-8", [7])
    async with serving(hourly(KeyType.INT), rows) as program:
        found = {(*one["key"], *one["map_key"]): one["value"]["celsius"] for one in await program.lines("scan")}
        assert found == {key: float(key[1]) for key in rows}


async def test_it_watches_what_is_selected_and_goes_on_behind_its_token() -> None:
    async with serving(hourly(kind=StateKind.VALUE), READINGS) as program:
        asked = ("-where", "celsius>=18")
        async with program.watching(*asked) as lines:
            by_key, _ = await next_of(lines, 3)
            assert by_key == {"sensor-18": (18.0, True), "sensor-19": (19.0, True), "other": (99.0, True)}
            changes: Any = {"sensor-18": row(50.0), "sensor-19": row(1.0), "sensor-3": row(20.0), "other": None}
            await program.server.commit(changes | {"sensor-4": row(5.0)})
            by_key, token = await next_of(lines, 4)
            assert by_key == {
                "sensor-18": (50.0, False),
                "sensor-19": (None, False),
                "sensor-3": (20.0, False),
                "other": (None, False),
            }
        await program.server.commit({"sensor-18": row(51.0), "sensor-5": row(2.0)})
        missed = await program.lines("watch", *asked, "-token", token, "-changes", "1")
        assert [(one["key"], one["value"]["celsius"], one["epoch"]) for one in missed if "key" in one] == [
            (["sensor-18"], 51.0, 3)
        ]
        (one,) = [line for line in await program.lines("watch", "-changes", "1", "sensor-5") if "key" in line]
        assert (one["key"], one["value"]["celsius"], one["snapshot"]) == (["sensor-5"], 2.0, True)
        code, _, err = await program.run("watch", "-token", token, "-changes", "1")
        assert (code, err.partition(":")[0]) == (1, "MALFORMED_REQUEST")
