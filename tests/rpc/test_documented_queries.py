"""What the pages on indexes, mirrors, predicates, SQL, tests and watches show runs, word for word but for the proxy's
address and deadlines: docs/indexes.md, docs/mirror.md, docs/predicates.md, docs/security.md, docs/sql.md,
docs/testing.md, docs/watch.md.
So do all requests of curl that the pages show.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

import keyhole
from keyhole import Client, field
from keyhole.savepoint.create import create
from keyhole.savepoint.folder import Folder
from keyhole.spark import queryable
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.clock import ManualClock
from keyhole.testing.containers import ClientProxyContainer, KeyholeContainers
from tests.support.certificates import Authority
from tests.support.documented_reads import Enough, Reader, Scenes, reader
from tests.support.every_kind import MAIN, write_application
from tests.support.waiting import LONG_SECONDS

SCENES = Scenes(
    "docs/indexes.md",
    "docs/mirror.md",
    "docs/predicates.md",
    "docs/security.md",
    "docs/sql.md",
    "docs/testing.md",
    "docs/watch.md",
)


@pytest.mark.parametrize(("page", "code"), SCENES.shown, ids=SCENES.name)
async def test_what_a_page_shows_runs_and_reads_what_is_there(
    page: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with reader() as person:
        await SCENES.of(page, code)(person, code)


@SCENES.play("docs/indexes.md", "queryable.value(")
async def declared(person: Reader, code: str) -> None:
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {"APPLICATION": "shop", "SERVERS": "a:1", "BOOTSTRAP_SERVERS": "a:2"}.items():
            environment.setenv(f"KEYHOLE_JOB_{name}", value)
        await person.types(f"print({code})", "docs/indexes.md", queryable=queryable)
    assert [type(sink).__name__ for (sink,) in person.printed] == ["Sink"]


@SCENES.play("docs/indexes.md", "client.scan_all(")
async def found_by_index(person: Reader, code: str) -> None:
    rows = [{"order": f"o{n}", "customer": f"c{6 + n}", "total": 2.0 * n} for n in range(3)]
    person.served.write("shop/orders", rows, key="order")
    with person.client() as client:
        await person.types(code, "docs/indexes.md", client=client, field=field)
    assert person.printed == [("o1", 2.0)]


def prices(person: Reader, amount: float = 2.5) -> int:
    return person.served.write("shop/prices", [{"product": "p1", "amount": amount}], key="product")


@SCENES.play("docs/mirror.md", "async def prices")
async def mirrored(person: Reader, code: str) -> None:
    prices(person)
    defined = await person.types(code, "docs/mirror.md")
    async with person.async_client() as client:
        await defined["prices"](client)
    assert [line[:2] for line in person.printed] == [(2.5, 1)]


@SCENES.play("docs/mirror.md", "with keyhole.Client(")
async def mirrored_without_a_loop(person: Reader, code: str) -> None:
    prices(person)
    await person.types(code, "docs/mirror.md")
    ((value,),) = person.printed
    assert value.amount == 2.5


@SCENES.play("docs/mirror.md", "async def fresh")
async def fetched(person: Reader, code: str) -> None:
    prices(person)
    defined = await person.types(code, "docs/mirror.md")
    async with person.async_client() as client, client.mirror("shop/prices") as mirror:
        answer = await defined["fresh"](mirror, "p1", prices(person, 3.5))
        assert (answer.value.amount, answer.epoch) == (3.5, 2)


@SCENES.play("docs/mirror.md", "async def own_writes")
async def own_writes(person: Reader, code: str) -> None:
    prices(person)
    defined = await person.types(code, "docs/mirror.md")
    producer = types.SimpleNamespace(flush=lambda: types.SimpleNamespace(epochs=prices(person, 4.5)))
    async with person.async_client() as client, client.mirror("shop/prices") as mirror:
        await defined["own_writes"](mirror, producer)
        assert mirror.get("p1").value.amount == 4.5


SENSORS = [
    {"sensor": "s1", "max": 31.5, "city": "Bern"},
    {"sensor": "s2", "max": 32.5, "city": "Chur"},
    {"sensor": "s3", "max": 12.5, "city": "Chur"},
    {"sensor": "s4", "max": 41.5, "city": None},
]


@SCENES.play("docs/predicates.md", "hot = ")
async def selected(person: Reader, code: str) -> None:
    person.served.write("weather/sensors", SENSORS, key="sensor")
    with person.client() as client:
        await person.types(code, "docs/predicates.md", client=client)
    assert person.printed == [("s2", 32.5)]


@SCENES.play("docs/predicates.md", "aggregates as agg")
async def aggregated(person: Reader, code: str) -> None:
    person.served.write("weather/sensors", SENSORS, key="sensor")
    with person.client() as client:
        await person.types(code, "docs/predicates.md", client=client)
    assert person.printed == [(3,), (3, 25.5, ["s2", "s1", "s3"])]


def _written(name: str, text: str) -> Path:
    path = Path.cwd() / name
    path.write_text(text)
    return path


@SCENES.play("docs/security.md", "keyhole.Credentials(")
async def with_credentials(person: Reader, code: str) -> None:
    """That they are taken; tests/rpc/test_tls.py connects with such."""
    authority = Authority(Path.cwd())
    token = _written("token", "secret")
    for of, by in {"/tls/ca.crt": str(authority.path), "/secrets/token": str(token)}.items():
        assert of in code
        code = code.replace(of, by)
    await person.types(f"{code.rstrip()}.close()", "docs/security.md", keyhole=keyhole)


@SCENES.play("docs/sql.md", "client.sql(")
async def queried(person: Reader, code: str) -> None:
    orders = [{"order": f"o{n}", "customer": f"c{n % 2}"} for n in range(3)]
    person.served.write("shop/orders", orders, key="order")
    person.served.write(
        "shop/customers", [{"customer": "c0", "city": "Bern"}, {"customer": "c1", "city": "Chur"}], key="customer"
    )
    with person.client() as client:
        await person.types(code, "docs/sql.md", client=client)
    assert sorted(person.printed) == [("Bern", 2), ("Chur", 1)]


@SCENES.play("docs/sql.md", "query_savepoint(")
async def queried_at_rest(person: Reader, code: str) -> None:
    changelog, folder = MemoryChangelog(MemoryKafka(), "shop"), Path.cwd()
    write_application(changelog, "shop", folder / "checkpoint")
    create("shop", changelog, Folder(str(folder / "monday")), {MAIN: Folder(str(folder / "checkpoint"))}, ManualClock())
    assert "/backup/monday" in code
    # Of the savepoint that there is.
    for of, by in {"/backup/monday": str(folder / "monday"), "shop/orders": "shop/values", "spent >": "n >"}.items():
        assert of in code
        code = code.replace(of, by)
    defined = await person.types(code, "docs/sql.md")
    ((count,),) = defined["result"]
    assert count > 0


class Dashboard:
    """The service that docs/testing.md tests."""

    def __init__(self, proxy: str, application: str = "shop") -> None:
        self.client, self.application = Client(proxy, timeout=LONG_SECONDS), application

    def spent(self, customer: str) -> float:
        return self.client.get(self.application, "totals", customer).value.spent

    def temperature(self, sensor: str) -> float:
        return self.client.get(self.application, "sensors", sensor).value.celsius


@SCENES.play("docs/testing.md", "with ServedStates() as served")
async def a_test_in_memory(person: Reader, code: str) -> None:
    defined = await person.types(code, "docs/testing.md", Dashboard=Dashboard)
    await asyncio.to_thread(defined["test_the_dashboard_shows_what_a_customer_has_spent"])


@SCENES.play("docs/testing.md", "def keyhole():")
async def a_fixture(person: Reader, code: str) -> None:
    """Here without Docker: that it gives what there is, and ends it."""
    given = create_autospec(KeyholeContainers)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("keyhole.testing.containers.KeyholeContainers", given)
        defined = await person.types(code, "docs/testing.md")
    fixture = defined["keyhole"].__wrapped__()
    assert next(fixture) is given.return_value.__enter__.return_value
    assert list(fixture) == []
    given.return_value.__exit__.assert_called_once()


@SCENES.play("docs/testing.md", "# test_dashboard.py")
async def on_containers(person: Reader, code: str) -> None:
    """Here on states in memory, which are written by the arguments that containers take."""

    def write(application: str, state: str, rows: list[dict[str, Any]], *, key: str) -> int:
        return person.served.write(f"{application}/{state}", rows, key=key)

    containers = create_autospec(KeyholeContainers, instance=True)
    containers.proxy = create_autospec(ClientProxyContainer, instance=True)
    containers.write.side_effect = write
    containers.proxy_address = person.proxy.address
    defined = await person.types(code, "docs/testing.md", Dashboard=Dashboard)
    tests = [test for name, test in defined.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        await asyncio.to_thread(test, containers)
    assert [call[0] for call in containers.proxy.mock_calls] == ["kill", "start_again"]


def orders(person: Reader, total: float = 200.0) -> int:
    rows = [{"order": order, "total": total} for order in ("o1", "2026-7")]
    return person.served.write("shop/orders", rows, key="order")


@SCENES.play("docs/watch.md", '"o1", "o2"')
async def watched(person: Reader, code: str) -> None:
    orders(person)
    person.enough = 1
    await person.types(code, "docs/watch.md")
    ((kind, key, value, epoch),) = person.printed
    assert (str(kind), key, value.total, epoch) == ("put", "o1", 200.0, 1)


@SCENES.play("docs/watch.md", 'prefix="2026-"')
async def watched_by_prefix(person: Reader, code: str) -> None:
    orders(person)
    person.enough = 1
    await person.types(code, "docs/watch.md")
    assert [(key, value.total) for _, key, value in person.printed] == [("2026-7", 200.0)]


@SCENES.play("docs/watch.md", 'client.state("shop/orders").watch(')
async def watched_by_handle(person: Reader, code: str) -> None:
    orders(person)
    person.enough = 1
    await person.types(code, "docs/watch.md")
    assert [change.key for (change,) in person.printed] == ["o1"]


@SCENES.play("docs/watch.md", "async def follow")
async def followed(person: Reader, code: str) -> None:
    orders(person)
    follow = (await person.types(code, "docs/watch.md"))["follow"]
    async with person.async_client() as client:
        async with client.watch("shop", "orders") as changes:
            found = [change.key async for change in _first(changes, 2)]
            token = changes.token
        orders(person, 300.0)
        person.enough = 2
        with pytest.raises(Enough):
            await follow(client, token)
    assert sorted(found) == ["2026-7", "o1"]
    assert sorted((key, value.total) for key, value in person.printed) == [("2026-7", 300.0), ("o1", 300.0)]


async def _first(changes: Any, count: int) -> AsyncIterator[Any]:
    async for change in changes:
        yield change
        count -= 1
        if not count:
            return
