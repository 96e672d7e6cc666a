"""Columns of any name, wherever names go in Python, Arrow, JSON and protobuf: what is stored is what is read."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.columnar import STORAGE_KEY, VALUE, encode
from keyhole.encoding.key_text import parse_key, text_of
from keyhole.encoding.row import Row, attributes
from keyhole.encoding.row_codec import encode_row
from keyhole.encoding.value_json import to_json
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.protocol.control import read_control, record
from keyhole.protocol.registration import settled
from keyhole.rpc import convert
from keyhole.rpc.status import from_proto, to_proto
from keyhole.spark.declaration.user_rows import rows_of
from services.client_proxy.http import answers as http_answers
from tests.support.hostile_names import NAMES, OF_FIELDS, attribute
from tests.support.of_all import of_all
from tests.support.states import descriptor

ALL = list(NAMES)
FIELDS = list(OF_FIELDS)

some_names = st.lists(st.sampled_from(ALL) | st.text(max_size=5), min_size=1, max_size=8, unique=True)
"""Names of columns: hostile ones, and any others."""


def of(names: Sequence[str], **changes: Any) -> StateDescriptor:
    """Each column a bigint."""
    return descriptor(value=ValueSchema(1, tuple(ValueField(name, "bigint") for name in names)), **changes)


def read_by(row: Any, name: str) -> Any:
    """What a program gets that has the name after a dot."""
    return eval(f"row.{name}", {"row": row})


@of_all(ALL)
def test_a_column_of_any_name_is_read_by_item_and_by_attribute_where_python_has_such_names(name: str) -> None:
    row = StateCodec(of(ALL)).decode_row(encode_row(1, range(len(ALL))))
    assert row[name] == ALL.index(name)
    if spelled := attribute(name):
        assert read_by(row, spelled) == ALL.index(name)
        assert getattr(row, spelled) == ALL.index(name)


@of_all(ALL)
def test_a_column_of_any_name_may_be_the_only_one(name: str) -> None:
    codec = StateCodec(of([name]))
    row = codec.decode_row(encode_row(1, [7]))
    assert row.asdict() == {name: 7}
    assert json.loads(codec.rows.to_json(encode_row(1, [7]))) == {name: 7}


@given(some_names)
def test_a_row_is_what_its_columns_are_whatever_they_are_called(names: list[str]) -> None:
    codec = StateCodec(of(names))
    stored = encode_row(1, range(len(names)))
    row = codec.decode_row(stored)
    expected = dict(zip(names, range(len(names)), strict=True))
    assert [row[name] for name in names] == list(range(len(names)))
    assert (list(row), len(row), row.asdict(), to_json(row)) == (names, len(names), expected, expected)
    assert json.loads(codec.rows.to_json(stored)) == expected
    assert pickle.loads(pickle.dumps(row)) == row == copy.deepcopy(row)
    assert hash(row) == hash(codec.decode_row(stored))
    assert repr(row).startswith("Row(")
    assert type(row).__mro__[1] is Row


@given(some_names)
@example(["\ufb05", "\ufb06"])
@example(["\ufb01eld", "field"])
def test_no_attribute_is_another_columns(names: list[str]) -> None:
    own = attributes(names, frozenset(dir(Row)))
    row = StateCodec(of(names)).decode_row(encode_row(1, range(len(names))))
    assert len(set(own)) == len(names)
    for position, name in enumerate(own):
        assert read_by(row, name) == position
    for position, name in enumerate(names):
        # What a program can spell is that column, or nothing at all.
        if name.isidentifier() and attribute(name) and name == attribute(name):
            assert read_by(row, name) == position


@given(some_names)
def test_the_rows_that_a_job_is_given_have_the_same_attributes(names: list[str]) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([n]) for n in range(len(names))], names=names)
    (row,) = rows_of(batch, names)
    assert tuple(row) == tuple(range(len(names)))
    for position, name in enumerate(attributes(names)):
        assert getattr(row, name) == position


@given(some_names, st.data())
def test_columns_come_and_go_whatever_they_are_called(names: list[str], data: st.DataObject) -> None:
    """Rows of the earlier schema are read by the newer one."""
    later = data.draw(st.permutations([*data.draw(st.permutations(names))[1:], *data.draw(some_names)]))
    later = list(dict.fromkeys(later))
    before = of(names)
    now = settled(before, of(later))
    row = StateCodec(now).decode_row(encode_row(1, range(len(names))))
    assert row.asdict() == {name: names.index(name) if name in names else None for name in later}
    newest = StateCodec(now).decode_row(encode_row(now.value.version, range(len(later))))
    assert newest.asdict() == dict(zip(later, range(len(later)), strict=True))


@given(some_names, some_names, some_names)
def test_arrow_finds_every_column_by_its_name(key: list[str], map_key: list[str], value: list[str]) -> None:
    map_key = [name for name in map_key if name not in key] or ["the map key"]
    value = [name for name in value if name not in {*key, *map_key}] or ["the value"]
    columns = [*key, *map_key, *value]
    described = of(
        value,
        kind=StateKind.MAP,
        key=tuple(KeyColumn(name, KeyType.SMALLINT) for name in key),
        map_key=tuple(KeyColumn(name, KeyType.STRING) for name in map_key),
    )
    numbers = dict(zip(columns, range(len(columns)), strict=True))
    types: dict[str, Any] = dict.fromkeys(key, pa.int16()) | dict.fromkeys(map_key, pa.string())
    arrays = [
        pa.array([str(number) if name in map_key else number], types.get(name, pa.int64()))
        for name, number in reversed(numbers.items())
    ]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(reversed(columns)))

    encoded = encode(batch, described)

    codec = StateCodec(described)
    (storage_key,), (row,) = encoded.column(STORAGE_KEY).to_pylist(), encoded.column(VALUE).to_pylist()
    expected = tuple(numbers[name] for name in key), tuple(str(numbers[name]) for name in map_key)
    assert codec.entry(storage_key) == expected
    assert codec.storage_key((*expected[0], *expected[1])) == storage_key
    assert codec.decode_row(row).asdict() == {name: numbers[name] for name in value}


@given(st.lists(st.sampled_from(FIELDS), min_size=1, max_size=6, unique=True))
def test_the_fields_of_structs_have_any_name_in_lists_and_maps_too(names: list[str]) -> None:
    struct = f"struct<{','.join(f'{name}:bigint' for name in names)}>"
    nested = f"struct<of:{struct},dates:struct<{names[0]}:date>>"
    fields = ValueField("s", nested), ValueField("a", f"array<{struct}>"), ValueField("m", f"map<string,{struct}>")
    described = descriptor(value=ValueSchema(1, fields))
    one = dict(zip(names, range(len(names)), strict=True))
    kind = pa.struct([(name, pa.int64()) for name in names])
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["k"]),
            pa.array(
                [{"of": one, "dates": {names[0]: 20_000}}],
                pa.struct([("of", kind), ("dates", pa.struct([(names[0], pa.date32())]))]),
            ),
            pa.array([[one, None]], pa.list_(kind)),
            pa.array([[("x", one)]], pa.map_(pa.string(), kind)),
        ],
        names=["k", "s", "a", "m"],
    )
    (stored,) = encode(batch, described).column(VALUE).to_pylist()
    codec = StateCodec(settled(None, described))
    row = codec.decode_row(stored)
    for name in names:
        assert (row.s["of"][name], row.a[0][name], row.m["x"][name]) == (one[name],) * 3
        if spelled := attribute(name) if names == [name] else "":
            assert read_by(row.a[0], spelled) == one[name]
    assert row.s.dates[names[0]].isoformat() == "2024-10-04"
    as_json = json.loads(codec.rows.to_json(stored))
    assert as_json["a"] == [one, None]
    assert as_json["m"] == [["x", one]]
    assert as_json["s"] == {"of": one, "dates": {names[0]: "2024-10-04"}}


@given(some_names, some_names)
def test_a_descriptor_is_the_same_after_the_wire_the_control_topic_and_http(key: list[str], value: list[str]) -> None:
    described = of(value, key=tuple(KeyColumn(name, KeyType.STRING) for name in key), order_by=value[0])
    message = convert.descriptor_to_proto(described)
    assert convert.descriptor_from_proto(type(message).FromString(message.SerializeToString())) == described
    records = {name: of for name, of in record("state", described.state, described).items() if of is not None}
    assert read_control(records, described.query).states == {described.state: described}
    over_http = http_answers.encoded(http_answers.descriptor_json(described))
    assert msgspec.json.decode(over_http, type=StateDescriptor) == described


@given(some_names)
def test_a_key_is_spelled_alike_whatever_its_columns_are_called_and_what_is_wrong_with_it_is_told(
    names: list[str],
) -> None:
    columns = [KeyColumn(name, KeyType.INT) for name in names]
    key = tuple(range(len(names))) if len(names) > 1 else 0
    assert parse_key(columns, text_of(key)) == key
    codec = StateCodec(descriptor(key=tuple(columns)))
    with pytest.raises(Exception, match="fit") as caught:
        codec.storage_key(("x",) * len(names))
    sent = from_proto(type(to_proto(caught.value)).FromString(to_proto(caught.value).SerializeToString()))  # type: ignore[arg-type]  # a KeyholeError
    assert names[0] in sent.message
    assert sent.facts["column"] == names[0]
