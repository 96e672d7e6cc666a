"""`keyhole top` and `keyhole status --watch` in a pipe, against a real server and proxy, which are lost meanwhile."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any

import pytest

from keyhole import AsyncClient
from keyhole.cli.main import main
from keyhole.cli.top.looks import SILENT, ClusterLooks
from keyhole.config import CliConfig, load
from tests.support.proxies import proxy_of
from tests.support.readings import APPLICATION, STATE, descriptor, row
from tests.support.state_servers import state_server
from tests.support.waiting import LONG_SECONDS

PATH = f"{APPLICATION}/{STATE}"


async def test_top_and_watch_show_rates_and_a_server_that_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    async with state_server("a") as server:
        await server.own(descriptor())
        async with proxy_of(server.address) as proxy, AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:

            async def rounds(*command: str) -> list[dict[str, Any]]:
                given = [*command, "--proxy", proxy.address, "--json", "--timeout", "30", "--interval", "0.01"]
                assert await asyncio.to_thread(main, given) == 0
                return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

            await client.get(APPLICATION, STATE, "sensor-1")
            top = asyncio.create_task(rounds("top", "--count", "8"))
            epoch = 0
            while not top.done():
                epoch += 1
                await server.commit({"sensor-1": row(float(epoch))})
                await client.get(APPLICATION, STATE, "sensor-1")
            lines = await top
            assert len(lines) == 8
            (state,) = lines[-1]["states"]
            (seen,) = lines[-1]["servers"]
            assert (state["state"], state["is"], state["key_groups"]) == (PATH, "ok", 16)
            assert (seen["server"], seen["is"], seen["owns"], seen["follows"]) == ("a", "ok", 16, 0)
            assert seen["memory_bytes"] > 0
            for name in ("rows_per_second", "reads_per_second"):
                assert max(one["states"][0][name] or 0 for one in lines) > 0, name
                assert max(one["servers"][0][name] or 0 for one in lines) > 0, name

            (watched,) = await rounds("status", "--watch", "--count", "1")
            assert (watched["error"], watched["servers"][0]["unreachable"]) == (None, None)
            assert watched["holdings"][0]["state"] == PATH

            # Two that take connections and say nothing: a proxy, and a server.
            with socket.create_server(("127.0.0.1", 0)) as deaf:
                mute = f"127.0.0.1:{deaf.getsockname()[1]}"
                looks = ClusterLooks([mute, proxy.address], load(CliConfig, {}).credentials, LONG_SECONDS, 0.5)
                with looks:
                    began = time.monotonic()
                    seen_now = await asyncio.to_thread(looks.look)
                    assert time.monotonic() - began < LONG_SECONDS
                    assert [one.server for one in seen_now.servers] == ["a"]
                    assert seen_now.silent[mute] == SILENT
                    assert (seen_now.error, len(seen_now.states)) == (None, 1)

            await server.server.stop()
            (lost,) = await rounds("top", "--count", "1")
            assert server.address in lost["servers"][0]["is"]
            assert "key groups" in lost["states"][0]["is"]
            (lost,) = await rounds("status", "--watch", "--count", "1")
            assert server.address in lost["servers"][0]["unreachable"]

            await proxy.stop(0)
            (away,) = await rounds("top", "--count", "1")
            assert proxy.address in away["error"]
            assert (away["servers"], away["states"]) == ([], [])
            given = ["status", "--watch", "--count", "1", "--timeout", "1"]
            assert await asyncio.to_thread(main, [*given, "--proxy", proxy.address]) == 0
            assert "can't be reached" in capsys.readouterr().out
