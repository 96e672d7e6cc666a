"""What README and docs/reads.md show in Python runs, word for word but for the proxy's address and deadlines."""

from __future__ import annotations

import dataclasses
import datetime as dt
import types
from pathlib import Path

import pyarrow
import pyarrow.dataset
import pytest

import keyhole
from keyhole import aggregates, errors, field
from tests.support.documented_reads import Reader, Scenes, reader
from tests.support.snippets import blocks
from tests.support.waiting import PATIENCE_SECONDS

SCENES = Scenes("docs/reads.md")
TOTALS = [{"customer": "c1", "orders": 2, "spent": 134.5}, {"customer": "c2", "orders": 1, "spent": 12.0}]
READING = {"sensor": "sensor-42", "last": 21.5, "mean": 20.25}


@pytest.mark.parametrize(("page", "code"), SCENES.shown, ids=SCENES.name)
async def test_what_a_page_shows_runs_and_reads_what_is_there(
    page: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with reader() as person:
        await SCENES.of(page, code)(person, code)


async def test_what_the_readme_shows_reads_the_state_of_its_job() -> None:
    (code,) = (code for code in blocks("README.md") if "AsyncClient(" in code)
    async with reader() as person:
        person.served.write("temperature-monitor/sensors", [READING], key="sensor")
        await person.types(code, "README.md")
    ((last, mean, epoch, committed),) = person.printed
    assert (last, mean, epoch) == (21.5, 20.25, 1)
    assert isinstance(committed, dt.datetime)


@SCENES.play("docs/reads.md", "proxy-0:7400,proxy-1:7400")
async def several_proxies(person: Reader, code: str) -> None:
    person.served.write("shop/totals", TOTALS, key="customer")
    await person.types(
        f"{code}print(client.get('shop', 'totals', 'c1').value.spent)\nclient.close()\n",
        "docs/reads.md",
        keyhole=keyhole,
    )
    assert person.printed == [(134.5,)]


@SCENES.play("docs/reads.md", 'routing="direct"')
async def directly(person: Reader, code: str) -> None:
    person.served.write("shop/totals", TOTALS, key="customer")
    defined = await person.types(f"{code}await client.close()\n", "docs/reads.md", keyhole=keyhole)
    assert defined["answer"].value.spent == 134.5


@SCENES.play("docs/reads.md", "client.get_async(")
async def futures(person: Reader, code: str) -> None:
    person.served.write("shop/totals", TOTALS, key="customer")
    with person.client() as client:
        await person.types(code, "docs/reads.md", client=client)
    assert [value.spent for (value,) in person.printed] == [134.5, 12.0]


@SCENES.play("docs/reads.md", "except UnknownState as error")
async def refusals(person: Reader, code: str) -> None:
    assert "timeout=0.5" in code
    code = code.replace("timeout=0.5", f"timeout={PATIENCE_SECONDS}")
    person.served.write("shop/orders", [{"order": "o1", "total": 3.5}], key="order")
    # Without the proxy, which waits for a minute for states that its servers may still begin with.
    with keyhole.Client(person.served.address, timeout=PATIENCE_SECONDS) as client:
        await person.types(code, "docs/reads.md", client=client)
        ((refused,),) = person.printed
        assert isinstance(refused, errors.UnknownState)
        assert "orders" in str(refused)
        person.served.write("shop/totals", TOTALS, key="customer")
    unavailable = types.SimpleNamespace(get=_late)
    await person.types(code, "docs/reads.md", client=unavailable)
    assert person.printed[1] == ("DEADLINE_EXCEEDED", False, {})


def _late(*_: object, **__: object) -> None:
    raise errors.DeadlineExceeded("it took too long")


@SCENES.play("docs/reads.md", "answer.commit_time)")
async def one_key(person: Reader, code: str) -> None:
    person.served.write("shop/totals", TOTALS, key="customer")
    await person.types(code, "docs/reads.md")
    ((spent, epoch, committed),) = person.printed
    assert (spent, epoch) == (134.5, 1)
    assert isinstance(committed, dt.datetime)


@SCENES.play("docs/reads.md", "if answer else")
async def many_keys(person: Reader, code: str) -> None:
    person.served.write("shop/totals", TOTALS, key="customer")
    with person.client() as client:
        await person.types(code, "docs/reads.md", client=client)
    assert person.printed == [("c1", 134.5), ("c2", 12.0), ("c9", 0.0)]


@SCENES.play("docs/reads.md", 'stale="always", max_staleness=')
async def bounded(person: Reader, code: str) -> None:
    person.served.write("shop/totals", TOTALS, key="customer")
    with person.client() as client:
        defined = await person.types(code, "docs/reads.md", client=client, timedelta=dt.timedelta)
    ((role, as_of, lag),) = person.printed
    assert (str(role), lag) == ("owner", 0)
    assert as_of.tzinfo is not None
    assert defined["newer"].epoch == 1


@SCENES.play("docs/reads.md", "client.session()")
async def never_backwards(person: Reader, code: str) -> None:
    person.served.write("shop/totals", TOTALS, key="customer")
    with person.client() as client:
        defined = await person.types(code, "docs/reads.md", client=client)
    assert defined["first"].value.spent == defined["later"].value.spent == 134.5


@SCENES.play("docs/reads.md", "asyncio.gather(")
async def in_an_event_loop(person: Reader, code: str) -> None:
    person.served.write("shop/totals", TOTALS, key="customer")
    person.served.write("shop/orders", [{"order": "o1", "total": 3.5}], key="order")
    defined = await person.types(code, "docs/reads.md")
    assert (defined["totals"].value.spent, defined["order"].value.total) == (134.5, 3.5)


@SCENES.play("docs/reads.md", "client.snapshot(")
async def snapshots(person: Reader, code: str) -> None:
    for epoch in range(2):
        orders = [{"order": "o1", "total": epoch}, {"order": "o2", "total": 7}]
        person.served.write("shop/orders", orders, key="order", query="shop")
        person.served.write("shop/customers", [{"customer": "c1", "name": "Ada"}], key="customer", query="shop")
    with person.client() as client:
        defined = await person.types(
            code,
            "docs/reads.md",
            client=client,
            ids=["o1", "o2"],
            datetime=dt.datetime,
            UTC=dt.UTC,
            timedelta=dt.timedelta,
        )
    assert [answer.value.total for answer in defined["answers"]] == [1, 7]
    assert (defined["order"].value.total, defined["customer"].value.name) == (1, "Ada")
    assert defined["order"].epoch == defined["customer"].epoch == person.printed[0][0]
    assert defined["before"].value.total == 0


@SCENES.play("docs/reads.md", "answer.committed)")
async def latest(person: Reader, code: str) -> None:
    person.served.write("shop/totals", TOTALS, key="customer")
    person.served.stage("shop/totals", [{"customer": "c1", "orders": 3, "spent": 150.0}])
    with person.client() as client:
        await person.types(code, "docs/reads.md", client=client)
    ((value, epoch, committed),) = person.printed
    assert (value.spent, epoch, committed) == (150.0, 1, False)


@SCENES.play("docs/reads.md", 'client.aggregate("shop"')
async def latest_of_all(person: Reader, code: str) -> None:
    person.served.write("shop/totals", TOTALS, key="customer")
    person.served.stage("shop/totals", [{"customer": "c1", "orders": 3, "spent": 150.0}])
    with person.client() as client:
        defined = await person.types(code, "docs/reads.md", client=client, field=field, agg=aggregates)
    assert [(key, value.spent, staged) for key, value, staged in person.printed] == [("c1", 150.0, 2)]
    assert defined["most"]["most"] == 150.0


@SCENES.play("docs/reads.md", "token = producer.flush()")
async def of_ones_own(person: Reader, code: str) -> None:
    person.served.write("shop/totals", TOTALS, key="customer")
    producer = types.SimpleNamespace(flush=lambda: types.SimpleNamespace(epochs=1))
    defined = await person.types_in_loop(code, "docs/reads.md", producer=producer)
    assert [answer.value.spent for answer in defined["totals"]] == [134.5, 12.0]


@SCENES.play("docs/reads.md", "class Reading")
async def typed(person: Reader, code: str) -> None:
    rows = [READING, {"sensor": "sensor-1", "last": 1.5, "mean": 1.25}]
    person.served.write("temperature-monitor/sensors", rows, key="sensor")
    defined = await person.types_in_loop(code, "docs/reads.md", dataclass=dataclasses.dataclass)
    assert person.printed == [(20.25, 1)]
    assert defined["answer"].value == defined["Reading"](21.5, 20.25)
    assert [answer.found for answer in defined["answers"]] == [True, False]


def hours(person: Reader, keys: int = 1) -> list[dt.datetime]:
    times = [dt.datetime(2026, 11, 19, 22, tzinfo=dt.UTC) + dt.timedelta(hours=10 * n) for n in range(4)]
    rows = [
        {"sensor": f"sensor-{7 + key}", "hour": at, "celsius": 25.0 + 4 * n}
        for key in range(keys)
        for n, at in enumerate(times)
    ]
    person.served.write("app/hourly", rows, key="sensor", map_key="hour")
    return times


@SCENES.play("docs/reads.md", "day = await client.scan(")
async def scanned(person: Reader, code: str) -> None:
    times = hours(person)
    defined = await person.types_in_loop(code, "docs/reads.md", datetime=dt.datetime, UTC=dt.UTC)
    assert [(hour, value.celsius) for hour, value in defined["day"]] == [(times[1], 29.0), (times[2], 33.0)]
    assert [hour for hour, _ in defined["last"]] == [times[3]]


@SCENES.play("docs/reads.md", "limit=1000) as entries")
async def scanned_all(person: Reader, code: str) -> None:
    times = hours(person, 2)
    defined = await person.types_in_loop(code, "docs/reads.md")
    assert sorted((key, at) for key, at, _ in person.printed) == [
        (key, at) for key in ("sensor-7", "sensor-8") for at in times
    ]
    assert defined["later"] is None


@SCENES.play("docs/reads.md", "to_arrow()")
async def as_tables(person: Reader, code: str) -> None:
    times = hours(person, 2)
    with person.client() as client:
        defined = await person.types(code, "docs/reads.md", client=client, field=field, pyarrow=pyarrow)
    assert sorted(defined["table"]["celsius"].to_pylist()) == [33.0, 33.0, 37.0, 37.0]
    assert list(defined["frame"]["hour"]) == times
    assert pyarrow.dataset.dataset("hourly", format="parquet").count_rows() == 8
