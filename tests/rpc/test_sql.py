"""SQL over states: what DuckDB makes of them, what the servers are asked for it, and what a query can't do."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import math
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from keyhole import Client
from keyhole.cli.main import main
from keyhole.encoding.row_codec import encode_row
from keyhole.errors import (
    DeadlineExceeded,
    EpochGone,
    InvalidConfiguration,
    KeyholeError,
    MalformedRequest,
    TooLarge,
    UnknownState,
    ValueMismatch,
)
from keyhole.model.predicates import field
from keyhole.model.read import KeyedEntry
from keyhole.model.selection import Selection
from keyhole.model.state import KEPT_EPOCHS, KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.sql.live_states import LiveDataset
from keyhole.testing.fake_copies import HostedState
from keyhole.testing.served_states import ServedStates
from tests.support.hostile_names import OF_KEYS
from tests.support.waiting import LONG_SECONDS

ORDERS = [
    {
        "order": f"o{number}",
        "customer": f"c{number % 5}",
        "spent": [float(number), math.nan, None][0 if number % 10 else 1 + number % 20 // 10],
        "at": dt.datetime(2026, 11, 27, tzinfo=dt.UTC) + dt.timedelta(minutes=number),
        "price": Decimal(number) / 4,
        "tags": ["x"] * (number % 3),
    }
    for number in range(100)
]
_SCHEMA = pa.schema(
    [
        ("order", pa.string()),
        ("customer", pa.string()),
        ("spent", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
    ]
)
CUSTOMERS = [{"customer": f"c{number}", "city": "Bern" if number % 2 else "Basel"} for number in range(5)]


@pytest.fixture(scope="module")
def served() -> Iterator[ServedStates]:
    with ServedStates() as served:
        served.write("shop/orders", ORDERS, key="order", schema=_SCHEMA)
        served.write("shop/customers", CUSTOMERS, key="customer")
        yield served


@pytest.fixture
def client(served: ServedStates) -> Iterator[Client]:
    with Client(served.address, timeout=LONG_SECONDS) as client:
        yield client


QUERIES = [
    "select count(*) from 'shop/orders'",
    "select \"order\", spent from 'shop/orders' where spent > 42 order by 1",
    "select \"order\" from 'shop/orders' where spent < 7.5 or customer = 'c1' order by 1",
    "select \"order\" from 'shop/orders' where not (spent > 42) order by 1",
    "select \"order\" from 'shop/orders' where spent is null or isnan(spent) order by 1",
    "select customer, sum(price), max(\"at\") from 'shop/orders' where customer in ('c1', 'c3') group by 1 order by 1",
    "select city, count(*) n from 'shop/orders' join 'shop/customers' using (customer) group by city order by 1",
    "select \"order\" from 'shop/orders' where \"at\" >= timestamptz '2026-11-27 01:30:00+00' and price = 24.75",
    "select \"order\" from 'shop/orders' where \"order\" between 'o2' and 'o3' order by 1",
    "with big as (select * from 'shop/orders' where price > 20) select count(*), min(\"order\") from big",
    "select customer from 'shop/customers' where customer not in (select customer from 'shop/orders' where price < 1)",
    "select len(tags) l, count(*) from 'shop/orders' group by l order by l",
    "select 1 as one",
]


def test_a_query_gives_what_duckdb_gives_of_the_same_rows(client: Client) -> None:
    own = duckdb.connect()
    own.execute("SET TimeZone = 'UTC'")
    own.register("shop/orders", pa.Table.from_pylist(ORDERS, _SCHEMA))
    own.register("shop/customers", pa.Table.from_pylist(CUSTOMERS))
    for query in QUERIES:
        assert repr(list(client.sql(query))) == repr(own.execute(query).fetchall()), query
    result = client.sql("select * from 'shop/customers' order by 1")
    assert (result.columns, len(result)) == (["customer", "city"], 5)
    assert result.to_pandas().city.tolist() == [of["city"] for of in CUSTOMERS]


def test_the_servers_are_asked_for_the_columns_and_rows_that_are_wanted(client: Client) -> None:
    result = client.sql("select max(price) from 'shop/orders' where customer = 'c1' and \"order\" > 'o5'")
    (scan,) = result.scans
    assert (scan.state, set(scan.columns)) == ("shop/orders", {"price"})
    assert scan.where == (field("customer") == "c1") & (field("order") > "o5")
    assert scan.entries == sum(of["customer"] == "c1" and of["order"] > "o5" for of in ORDERS)
    assert scan.epoch == 1
    assert client.sql("select count(*) from orders", application="shop").scans[0].state == "shop/orders"


def test_states_of_one_query_are_read_as_of_one_epoch_though_others_are_committed_meanwhile(
    served: ServedStates, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hosted(name: str) -> HostedState:
        key, value = (KeyColumn("k", KeyType.STRING),), ValueSchema(1, (ValueField("n", "bigint"),))
        of = StateDescriptor("shop", name, "both", StateKind.VALUE, 4, key, value, topic_id=name)
        return served._run(lambda: served._server.host(of, {f"k{at}": encode_row(1, [1]) for at in range(20)}))

    left, right = hosted("left"), hosted("right")

    def commit(*states: HostedState) -> None:
        """The epoch's number is the value of all keys."""

        def committed() -> None:
            for of in states:
                of.commit()
                for at in range(20):
                    of.put(f"k{at}", encode_row(1, [of.epoch]))

        served._run(committed)

    def read() -> list[Any]:
        return list(client.sql("select distinct l.n, r.n from 'shop/left' l join 'shop/right' r using (k)"))

    commit(left)  # the other one's server has yet to
    assert read() == [(1, 1)]
    commit(right, right)
    assert read() == [(2, 2)]
    commit(left)
    assert read() == [(3, 3)]

    pages, then = LiveDataset._pages, iter(list[Callable[[], None]]())

    def happens(dataset: LiveDataset, select: Selection) -> Iterator[Sequence[KeyedEntry]]:
        for page in pages(dataset, select):
            for act in then:
                act()
            yield page

    monkeypatch.setattr(LiveDataset, "_pages", happens)
    then = iter([lambda: commit(left, right)])
    assert read() == [(3, 3)]
    then = iter([lambda: commit(left, right)] * KEPT_EPOCHS)
    with pytest.raises(EpochGone):
        read()


def test_states_of_another_kind_have_their_columns(served: ServedStates, client: Client) -> None:
    hours = [{"sensor": "a", "hour": hour, "celsius": float(hour)} for hour in range(5)]
    served.write("shop/hourly", hours, key="sensor", map_key="hour")
    assert list(client.sql("select * from 'shop/hourly' where hour >= 3 order by hour")) == [
        ("a", 3, 3.0),
        ("a", 4, 4.0),
    ]
    log = StateDescriptor(
        "shop",
        "log",
        "q",
        StateKind.LIST,
        4,
        (KeyColumn("k", KeyType.STRING),),
        ValueSchema(1, (ValueField("v", "bigint"),)),
        topic_id="log",
    )
    served._run(lambda: served._server.host(log, {("a", 3): encode_row(1, [30])}))
    assert list(client.sql("select k, position, v from 'shop/log'")) == [("a", 3, 30)]
    assert {scan.epoch for scan in client.sql("select 1 from 'shop/hourly', 'shop/log'").scans} == {1}


@pytest.mark.parametrize(
    ("query", "kind", "why"),
    [
        ("selec", MalformedRequest, "refuses the query: .*syntax error"),
        ("select * from shop/orders", MalformedRequest, "a state is named in quotes: FROM 'APPLICATION/STATE'"),
        ("select * from shop.orders", MalformedRequest, "a state is named in quotes: FROM 'APPLICATION/STATE'"),
        ("select * from my-shop.orders", MalformedRequest, "a state is named in quotes: FROM 'APPLICATION/STATE'"),
        ("select * from nobody", MalformedRequest, "a state is named in quotes: FROM 'APPLICATION/STATE'"),
        ("select * fro 'shop/orders'", MalformedRequest, "refuses the query: .*syntax error"),
        ("select sum(price from 'shop/orders'", MalformedRequest, "refuses the query: .*syntax error"),
        ("select price / from 'shop/orders'", MalformedRequest, "refuses the query: .*syntax error"),
        ("select nofn(price) from 'shop/orders'", MalformedRequest, "refuses the query: .*Function with name nofn"),
        ("select 'x", MalformedRequest, "refuses the query: .*unterminated"),
        ("select 1; select 2", MalformedRequest, "one SELECT"),
        ("", MalformedRequest, "one SELECT"),
        ("create table x (a int)", MalformedRequest, "one SELECT"),
        ("insert into 'shop/orders' values (1)", MalformedRequest, "one SELECT"),
        ("copy (select 1) to 'x.csv'", MalformedRequest, "one SELECT"),
        ("attach 'x.db'", MalformedRequest, "one SELECT"),
        ("set memory_limit = '1TB'", MalformedRequest, "one SELECT"),
        ("install httpfs", MalformedRequest, "one SELECT"),
        ("pragma database_list", MalformedRequest, "one SELECT"),
        ("select * from 'shop/nothing'", UnknownState, "no state shop/nothing"),
        ("select nothing from 'shop/orders'", MalformedRequest, "nothing"),
        ("select * from served", MalformedRequest, "served"),
        ("select * from read_csv('/etc/passwd')", MalformedRequest, "file system operations are disabled"),
        ("select * from read_text('/etc/passwd')", MalformedRequest, "disabled"),
        ("select * from glob('/*')", MalformedRequest, "disabled"),
        ("select * from '/etc/passwd'", InvalidConfiguration, "names no state"),
        ("select * from 'http://localhost/x.csv'", KeyholeError, None),
        ("select set_config('memory_limit', '1TB')", MalformedRequest, None),
    ],
)
def test_what_a_query_can_not_do_is_refused(
    client: Client, query: str, kind: type[KeyholeError], why: str | None
) -> None:
    with pytest.raises(kind, match=why):
        client.sql(query)


def test_a_query_that_takes_too_long_or_too_much_is_ended(client: Client) -> None:
    with pytest.raises(DeadlineExceeded, match=r"longer than 0\.5 s"):
        client.sql("select count(*) from range(1000000) a, range(1000000) b where a.range * b.range = 7", timeout=0.5)
    with pytest.raises(TooLarge, match="more memory"):
        client.sql("select * from range(100000000) t(a) order by random()", memory="50MB")
    assert list(client.sql("select count(*) from 'shop/customers'")) == [(5,)]


async def test_the_command_prints_rows_or_what_was_asked(
    served: ServedStates, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    query = "select city, count(*) n from 'shop/customers' where city > 'Bas' group by 1 order by 1"
    said = ["--proxy", served.address, "--timeout", str(LONG_SECONDS)]
    assert await asyncio.to_thread(main, ["sql", query, *said, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"city": "Basel", "n": 3}, {"city": "Bern", "n": 2}]
    assert await asyncio.to_thread(main, ["sql", query, *said]) == 0
    assert "Basel" in capsys.readouterr().out
    assert await asyncio.to_thread(main, ["sql", query, *said, "--explain"]) == 0
    shown = capsys.readouterr().out
    assert "shop/customers, epoch 1: 5 entries" in shown
    assert "servers test  city > 'Bas'" in shown
    assert "by the key" not in shown
    assert "Order By" in shown
    by_key = "select city from 'shop/customers' where customer = 'c1'"
    assert await asyncio.to_thread(main, ["sql", by_key, *said, "--explain"]) == 0
    assert "by the key    a range of keys is read" in capsys.readouterr().out
    assert await asyncio.to_thread(main, ["sql", "drop table x", *said]) == 1
    assert "one SELECT" in capsys.readouterr().err


def test_names_that_are_one_to_duckdb_and_tables_of_the_query_itself_are_told_apart(
    served: ServedStates, client: Client
) -> None:
    for name, value in (("shop/Twin", "A"), ("shop/twin", "b")):
        served.write(name, [{"k": value, "v": 1}], key="k")
    assert list(client.sql("select k from 'shop/Twin'")) == [("A",)]
    with pytest.raises(MalformedRequest, match="one name to DuckDB"):
        client.sql("select * from 'shop/Twin' union all select * from 'shop/twin'")
    count = len(CUSTOMERS)
    for query in (
        "with Big as (select * from customers) select count(*) from big",
        "select (select count(*) from customers), count(*) from (with customers as (select 1) select * from customers)",
    ):
        assert next(iter(client.sql(query, application="shop")))[0] == count
    assert list(client.sql("select count(*) > 0 from duckdb_settings()", application="shop")) == [(True,)]
    with pytest.raises(MalformedRequest, match="Table with name nothing does not exist"):
        client.sql("select * from nothing", application="shop")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ({"id": pa.int64(), "ID": pa.int64()}, "the columns 'id' and 'ID', which are one name to DuckDB"),
        ({"of": pa.struct({"id": pa.int64(), "Id": pa.int64()})}, "in 'of' the fields 'id' and 'Id'"),
        (
            {
                "all": pa.map_(
                    pa.string(), pa.list_(pa.struct({"inner": pa.struct({"x": pa.int64(), "X": pa.int64()})}))
                )
            },
            "in 'inner' the fields 'x' and 'X'",
        ),
    ],
)
def test_columns_that_duckdb_can_not_tell_apart_are_refused_by_both_names(
    served: ServedStates, client: Client, kind: dict[str, pa.DataType], says: str
) -> None:
    """It gave the values of the first for the second."""
    state = f"shop/alike-{next(iter(kind))}"
    served.write(state, [], key="K", schema=pa.schema({"K": pa.string()} | kind))
    for query in ("select * from '{}'", "select count(*) from '{}'"):
        with pytest.raises(ValueMismatch, match=says):
            client.sql(query.format(state))
    # Of other letters DuckDB knows the case.
    served.write("shop/accents", [{"K": "a", "é": 1, "É": 2, "k2": {"ß": 3, "ẞ": 4}}], key="K")
    assert list(client.sql('select "É", k2."ẞ" from \'shop/accents\' where "É" = 2')) == [(2, 4)]


def test_columns_of_any_name_are_selected_and_compared(served: ServedStates, client: Client) -> None:
    names = list(OF_KEYS)
    key, value = names[::2], names[1::2]
    numbers = {name: number for part in (key, value) for number, name in enumerate(part)}
    schema = pa.schema([(name, pa.int16()) for name in key] + [(name, pa.int64()) for name in value])
    others = {name: number + (1000 if name in value else 1) for name, number in numbers.items()}
    served.write("class/None", [numbers, others], key=key, schema=schema)
    for some in (names[at : at + 10] for at in range(0, len(names), 10)):
        quoted = ['"' + name.replace('"', '""') + '"' for name in some]
        where = " and ".join(f"{column} = {numbers[name]}" for column, name in zip(quoted, some, strict=True))
        asked = client.sql(f"select {', '.join(quoted)} from 'class/None' where {where}")
        assert list(asked) == [tuple(numbers[name] for name in some)], some
    assert len(client.sql("select * from 'class/None'")) == 2


def test_decimals_of_38_digits_and_floats_of_32_bits_are_compared_as_duckdb_does(
    served: ServedStates, client: Client
) -> None:
    large = Decimal("123456789012345678901234567890123456.78")
    schema = pa.schema([("k", pa.string()), ("d", pa.decimal128(38, 2)), ("f", pa.float32())])
    served.write(
        "shop/exact", [{"k": "a", "d": large, "f": 0.1}, {"k": "b", "d": -large, "f": 2.0}], key="k", schema=schema
    )
    for where in (
        f"d = {large}",
        f"d >= {large}",
        f"d in ({large}, 3.5)",
        "f = 0.1::float",
        "f in (0.1::float, 3::float)",
    ):
        assert list(client.sql(f"select k from 'shop/exact' where {where}")) == [("a",)], where
    assert list(client.sql(f"select k from 'shop/exact' where d <= -{large}")) == [("b",)]
    assert client.get("shop", "exact", "a").value.f == pytest.approx(0.1, abs=1e-8)
    assert client.get("shop", "exact", "a").value.f != 0.1


def test_what_a_scan_meets_is_told_by_its_own_name(
    served: ServedStates, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise EpochGone("epoch 1 is no longer kept", oldest=3)

    monkeypatch.setattr(client, "scan_all", gone)
    with pytest.raises(EpochGone) as met:
        client.sql("select * from 'shop/orders'")
    assert met.value.facts["oldest"] == "3"


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"memory": "lots"}, InvalidConfiguration),
        ({"memory": "0"}, InvalidConfiguration),
        ({"memory": "none"}, InvalidConfiguration),
        ({"memory": "-1"}, InvalidConfiguration),
        ({"memory": f"{10**20}TB"}, InvalidConfiguration),
        ({"memory": "1KB"}, TooLarge),
        ({"timeout": 0}, MalformedRequest),
        ({"timeout": -1}, MalformedRequest),
    ],
)
def test_a_cap_that_is_none_is_refused(client: Client, options: dict[str, Any], kind: type[KeyholeError]) -> None:
    with pytest.raises(kind):
        client.sql("select count(*) from 'shop/orders'", **options)


def test_a_cap_beyond_any_machine_is_none(client: Client) -> None:
    assert list(client.sql("select count(*) from 'shop/orders'", memory="99999TB")) == [(100,)]


@pytest.mark.parametrize("query", ["select '\ud800'", None, b"select 1"])
def test_what_is_no_text_is_refused(client: Client, query: Any) -> None:
    with pytest.raises(MalformedRequest, match="the query is"):
        client.sql(query)


def test_a_date_that_python_has_not_is_refused_where_it_is_read(client: Client) -> None:
    far = client.sql("select date '20000-01-01' as far")
    assert far.to_arrow().num_rows == 1
    with pytest.raises(ValueMismatch, match="cast it to text"):
        list(far)


def test_rows_of_a_result_count_to_its_memory(client: Client) -> None:
    with pytest.raises(TooLarge, match="more than"):
        client.sql("select range a, range b, range c from range(6000000)", memory="20MB")
