"""The latest as services ask for it: by Python's clients, over HTTP and on the command line, of the shipped fake."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from keyhole import AsyncClient, Client, field
from keyhole import aggregates as agg
from keyhole.cli.main import main
from keyhole.errors import InvalidConfiguration, MalformedRequest, Unsupported
from keyhole.testing.served_states import ServedStates
from tests.support.proxies import proxy_of
from tests.support.waiting import PATIENCE_SECONDS

PATH = "shop/totals"
NAME = ("shop", "totals")


async def test_each_way_to_read_a_key_has_the_latest_and_says_that_it_is_not_committed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ServedStates() as served:
        served.write(PATH, [{"customer": name, "spent": 1.0} for name in ("c1", "c2")], key="customer")
        served.stage(PATH, [{"customer": "c1", "spent": 5.0}])
        day = {"customer": "c1", "day": "monday", "spent": 1.0}
        served.write("shop/daily", [day], key="customer", map_key="day")
        with pytest.raises(InvalidConfiguration, match="first rows"):
            served.stage("shop/others", [{"customer": "c1", "spent": 5.0}])
        async with (
            proxy_of(served.address, timeout_seconds=PATIENCE_SECONDS, http="127.0.0.1:0") as proxy,
            AsyncClient(proxy.address, timeout=PATIENCE_SECONDS) as client,
            aiohttp.ClientSession(f"http://{proxy.http_address}") as http,
        ):
            one = await client.get(*NAME, "c1", consistency="latest")
            assert (one.value.spent, one.epoch, one.source.staged_epoch, one.committed) == (5.0, 1, 2, False)
            assert "staged of epoch 2" in one._repr_html_()
            session = client.session()
            assert (await session.get(*NAME, "c1", consistency="latest")).value.spent == 5.0
            # A session keeps what is committed: what was staged may come to nothing.
            assert session.epochs == {NAME: 1}
            assert (await session.get(*NAME, "c1")).value.spent == 1.0
            many = await client.get_many(*NAME, ["c1", "nobody"], consistency="latest")
            assert [(answer.found, answer.epoch) for answer in many] == [(True, 1), (False, 1)]
            typed = await client.state(PATH).get(customer="c1", consistency="latest")
            assert (typed.value.spent, typed.committed) == (5.0, False)
            async with AsyncClient(proxy.address, timeout=PATIENCE_SECONDS, routing="direct") as direct:
                assert (await direct.get(*NAME, "c1", consistency="latest")).source.staged_epoch == 2
            plain = await client.get(*NAME, "c1")
            assert (plain.value.spent, plain.committed) == (1.0, True)
            await _refused(client)

            async with http.get(f"/v1/{PATH}/c1", params={"consistency": "latest"}) as response:
                body = await response.json()
                assert (body["value"], body["source"]["staged_epoch"]) == ({"spent": 5.0}, 2)
                tag = response.headers["ETag"]
                assert response.headers["Cache-Control"] == "no-cache"
            async with http.get(f"/v1/{PATH}/c1") as response:
                body = await response.json()
                assert (body["value"], body["source"]["staged_epoch"]) == ({"spent": 1.0}, None)
                assert response.headers["ETag"] != tag
            batch = {"keys": ["c1", "c2"]}
            async with http.post(f"/v1/{PATH}:batchGet", params={"consistency": "latest"}, json=batch) as response:
                values = [answer["value"] for answer in (await response.json())["answers"]]
                assert values == [{"spent": 5.0}, {"spent": 1.0}]
            for path, wrong, reason in (
                (f"/v1/{PATH}/c1", {"consistency": "snapshot"}, "MALFORMED_REQUEST"),
                (f"/v1/{PATH}/c1", {"consistency": "latest", "stale": "always"}, "MALFORMED_REQUEST"),
                (f"/v1/{PATH}:scan", {"consistency": "latest", "as_of": "1"}, "MALFORMED_REQUEST"),
                (f"/v1/{PATH}:aggregate", {"of": "count", "consistency": "snapshot"}, "MALFORMED_REQUEST"),
            ):
                async with http.get(path, params=wrong) as response:
                    assert (await response.json())["reason"] == reason

            command = ["get", PATH, "c1", "c2", "--json", "--proxy", proxy.address]
            assert await asyncio.to_thread(main, [*command, "--latest"]) == 0
            first, second = json.loads(capsys.readouterr().out)
            assert (first["value"], first["epoch"], first["staged_epoch"]) == ({"spent": 5.0}, 1, 2)
            assert second["value"] == {"spent": 1.0}
            assert await asyncio.to_thread(main, command) == 0
            first, _ = json.loads(capsys.readouterr().out)
            assert first["value"] == {"spent": 1.0}
            assert "staged_epoch" not in first

            def threads() -> None:
                with Client(proxy.address, timeout=PATIENCE_SECONDS) as blocking:
                    assert blocking.get(*NAME, "c1", consistency="latest").value.spent == 5.0
                    assert blocking.get_async(*NAME, "c1", consistency="latest").result().source.staged_epoch == 2

            await asyncio.to_thread(threads)
            # The next write commits what is staged.
            await asyncio.to_thread(lambda: served.write(PATH, [{"customer": "c2", "spent": 2.0}], key="customer"))
            later = await client.get_many(*NAME, ["c1", "c2"], consistency="latest")
            assert [(answer.value.spent, answer.epoch, answer.committed) for answer in later] == [
                (5.0, 2, True),
                (2.0, 2, True),
            ]


async def test_each_way_to_scan_has_the_latest_and_says_that_it_is_not_committed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ServedStates() as served:
        served.write(PATH, [{"customer": f"c{n}", "spent": float(n)} for n in range(3)], key="customer")
        days = [{"customer": "c1", "day": day, "spent": 1.0} for day in ("friday", "monday")]
        served.write("shop/daily", days, key="customer", map_key="day")
        served.stage(PATH, [{"customer": "c1", "spent": 5.0}])
        served.stage("shop/daily", [{"customer": "c1", "day": "sunday", "spent": 3.0}])
        async with (
            proxy_of(served.address, timeout_seconds=PATIENCE_SECONDS, http="127.0.0.1:0") as proxy,
            AsyncClient(proxy.address, timeout=PATIENCE_SECONDS) as client,
            aiohttp.ClientSession(f"http://{proxy.http_address}") as http,
        ):
            latest = [("c0", 0.0, 0), ("c1", 5.0, 2), ("c2", 2.0, 0)]
            committed = [("c0", 0.0, 0), ("c1", 1.0, 0), ("c2", 2.0, 0)]
            for options in ({}, {"ordered": True}, {"descending": True}):
                entries = [
                    (entry.key, entry.value.spent, entry.source.staged_epoch)
                    async for entry in client.scan_all(*NAME, consistency="latest", **options)  # type: ignore[misc]  # ways
                ]
                assert sorted(entries) == latest
            assert [
                (entry.key, entry.value.spent, entry.source.staged_epoch)
                async for entry in client.scan_all(*NAME, ordered=True, consistency="committed")
            ] == committed
            found = await client.aggregate(*NAME, {"most": agg.max("spent")}, consistency="latest")
            assert (found["most"], max(source.staged_epoch for source in found.sources)) == (5.0, 2)
            assert await client.count(*NAME, where=field("spent") > 2.0, consistency="latest") == 1
            assert await client.count(*NAME, where=field("spent") > 2.0) == 0
            day = await client.scan("shop", "daily", "c1", start="monday", consistency="latest")
            assert [entry.map_key for entry in day] == ["monday", "sunday"]
            assert (day.epoch, day.source.staged_epoch, day.committed) == (1, 2, False)
            assert "staged of epoch 2" in day._repr_html_()
            handle = client.state("shop/daily")
            assert len(await handle.scan("c1", consistency="latest")) == await handle.count(consistency="latest") == 3
            session = client.session()
            assert len(await session.scan("shop", "daily", "c1", consistency="latest")) == 3
            assert session.epochs == {("shop", "daily"): 1}

            for path, expected in (
                (f"/v1/{PATH}:scan", {"entries": 3}),
                ("/v1/shop/daily/c1", {"entries": 3}),
                (f"/v1/{PATH}:aggregate?of=max(spent)", {"values": {"max(spent)": 5.0}}),
            ):
                async with http.get(path, params={"consistency": "latest"}) as response:
                    body = await response.json()
                    sources = body["sources"] if "sources" in body else [body["source"]]
                    assert 2 in [source["staged_epoch"] for source in sources]
                    assert expected == {name: len(body[name]) if name == "entries" else body[name] for name in expected}

            def threads() -> None:
                with Client(proxy.address, timeout=PATIENCE_SECONDS) as blocking:
                    spent = {e.key: e.value.spent for e in blocking.scan_all(*NAME, consistency="latest")}
                    assert spent == {"c0": 0.0, "c1": 5.0, "c2": 2.0}
                    assert len(blocking.scan("shop", "daily", "c1", consistency="latest")) == 3
                    assert blocking.count("shop", "daily", consistency="latest") == 3

            await asyncio.to_thread(threads)
            scan = ["scan", "--json", "--proxy", proxy.address, "--latest"]
            printed = []
            for words in ([PATH, "--ordered"], ["shop/daily", "c1"], ["shop/daily", "--aggregate", "count"]):
                assert await asyncio.to_thread(main, [*scan, *words]) == 0
                printed.append(json.loads(capsys.readouterr().out))
            all_keys, of_one, figures = printed
            assert [(entry["key"], entry["staged_epoch"]) for entry in all_keys["entries"]] == [
                ("c0", None),
                ("c1", 2),
                ("c2", None),
            ]
            assert (len(of_one["entries"]), of_one["staged_epoch"]) == (3, 2)
            assert (figures["values"], figures["staged_epoch"]) == ({"count": 3}, 2)
            assert await asyncio.to_thread(main, ["scan", PATH, "--json", "--proxy", proxy.address]) == 0
            assert "staged_epoch" not in capsys.readouterr().out


async def _refused(client: AsyncClient) -> None:
    """What contradicts it, by the client itself."""
    with pytest.raises(MalformedRequest, match="as_of asks"):
        await client.get(*NAME, "c1", consistency="latest", as_of=1)
    with pytest.raises(MalformedRequest, match="stale=always"):
        await client.get(*NAME, "c1", consistency="latest", stale="always")
    with pytest.raises(MalformedRequest, match="by get_many"):
        await client.get(*NAME, "c1", consistency="snapshot")  # type: ignore[typeddict-item]  # what is refused
    with pytest.raises(MalformedRequest, match="committed, snapshot, latest"):
        await client.get_many(*NAME, ["c1"], consistency="newest")  # type: ignore[typeddict-item]  # what is refused
    with pytest.raises(MalformedRequest, match="as_of asks"):
        await client.scan(*NAME, "c1", consistency="latest", as_of=1)
    with pytest.raises(MalformedRequest, match="stale=always"):
        await client.count(*NAME, consistency="latest", stale="always")
    with pytest.raises(MalformedRequest, match="must be one of committed, latest"):
        client.scan_all(*NAME, consistency="snapshot")  # type: ignore[typeddict-item]  # what is refused
    wrong: Any = {"consistency": "latest"}
    snapshot = await client.snapshot(PATH)
    with pytest.raises(MalformedRequest, match="which is committed"):
        await snapshot.get(*NAME, "c1", consistency="latest")
    with pytest.raises(MalformedRequest, match="which is committed"):
        snapshot.scan_all(*NAME, consistency="latest")
    with pytest.raises((TypeError, Unsupported)):
        await client.mirror(PATH).fetch("c1", **wrong)
