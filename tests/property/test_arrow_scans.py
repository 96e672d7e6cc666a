"""The table of a scan has the rows of the scan: of any types, whatever its selection and however it is read."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyhole import Client
from keyhole.testing.served_states import ServedStates
from tests.support.examples import examples
from tests.support.waiting import LONG_SECONDS

_KEYS = {
    pa.string(): st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    pa.binary(): st.binary(max_size=4),
    pa.bool_(): st.booleans(),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(dt.UTC)),
}
_SIMPLE = _KEYS | {
    pa.int8(): st.integers(-128, 127),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.timestamp("us"): st.datetimes(),
    pa.decimal128(10, 2): st.decimals(-99_999_999, 99_999_999, places=2),
}


class Typed(NamedTuple):
    """A type, and the values that it has."""

    kind: pa.DataType
    values: st.SearchStrategy[Any]


def _nested(of: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return st.one_of(
        of.map(lambda one: Typed(pa.list_(one.kind), st.lists(st.none() | one.values, max_size=3))),
        of.map(
            lambda one: Typed(
                pa.map_(pa.string(), one.kind),
                st.dictionaries(_KEYS[pa.string()], st.none() | one.values, max_size=2),
            )
        ),
        st.tuples(of, of).map(
            lambda two: Typed(
                pa.struct([("class", two[0].kind), ("b", two[1].kind)]),
                st.fixed_dictionaries({"class": st.none() | two[0].values, "b": st.none() | two[1].values}),
            )
        ),
    )


_TYPES = st.recursive(st.sampled_from([Typed(*one) for one in _SIMPLE.items()]), _nested, max_leaves=3)
_KEY_TYPES = st.lists(st.sampled_from([Typed(*one) for one in _KEYS.items()]), min_size=1, max_size=2)


class Drawn(NamedTuple):
    """A state, its rows, and the fields that are asked for; None: all."""

    schema: pa.Schema
    key: list[str]
    map_key: list[str]
    rows: list[dict[str, Any]]
    fields: list[str] | None


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    key = {f"k{at}": of for at, of in enumerate(draw(_KEY_TYPES))}
    map_key = {f"m{at}": of for at, of in enumerate(draw(st.just([]) | _KEY_TYPES))}
    value = {f"v{at}": of for at, of in enumerate(draw(st.lists(_TYPES, min_size=1, max_size=3)))}
    columns = key | map_key | value
    row = st.fixed_dictionaries(
        {name: of.values if name not in value else st.none() | of.values for name, of in columns.items()}
    )
    asked = st.none() | st.permutations(list(value)).map(lambda names: names[:2])
    schema = pa.schema([(name, of.kind) for name, of in columns.items()])
    return Drawn(schema, list(key), list(map_key), draw(st.lists(row, max_size=12)), draw(asked))


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[ServedStates, Client]]:
    with ServedStates() as served, Client(served.address, timeout=LONG_SECONDS) as client:
        yield served, client


_NAMES = (f"app/state-{number}" for number in itertools.count())


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=examples(40))
@given(drawn=drawn())
def test_a_table_is_the_rows_of_its_scan(served: tuple[ServedStates, Client], drawn: Drawn) -> None:
    states, client = served
    path = next(_NAMES)
    states.write(path, drawn.rows, key=drawn.key, map_key=drawn.map_key, schema=drawn.schema)
    by_key = [*drawn.key, *drawn.map_key]
    # By what was written, of which the last of each key counts.
    last = {tuple(row[name] for name in by_key): row for row in drawn.rows}
    columns = [*by_key, *(drawn.fields or [name for name in drawn.schema.names if name not in by_key])]
    schema = pa.schema([drawn.schema.field(name) for name in columns])
    asked = {} if drawn.fields is None else {"fields": drawn.fields}
    handle = client.state(path)
    entries = list(handle.scan_all(**asked))
    in_order = [last[(*_several(of.key, drawn.key), *_several(of.map_key, drawn.map_key))] for of in entries]
    wanted = pa.Table.from_pylist(in_order, schema)
    table = handle.scan_all(**asked).to_arrow()
    assert table.schema == schema
    assert len(entries) == len(last)
    assert repr(table.to_pylist()) == repr(wanted.to_pylist())
    batches = handle.scan_all(**asked).arrow_batches()
    assert (batches.schema, repr(batches.read_all().to_pylist())) == (schema, repr(wanted.to_pylist()))
    assert handle.scan_all(keys_only=True).to_arrow().equals(table.select(by_key))


def _several(key: Any, columns: list[str]) -> tuple[Any, ...]:
    if not columns:
        return ()
    return key if len(columns) > 1 else (key,)
