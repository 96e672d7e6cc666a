"""What records of a source topic become: JSON, and the changes of a table; what can't be read is refused unquoted."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from keyhole.errors import MalformedRequest, NullKey, RequestError, ValueMismatch
from keyhole.feed.feed_options import (
    FeedOptions,
    RecordFormat,
    describe,
    key_columns,
    reduced_columns,
    source_columns,
    value_columns,
)
from keyhole.feed.mapping import RecordMapper
from keyhole.feed.rows import SourceRecord

SECRET = "s3cret"


def mapper(record_format: RecordFormat = RecordFormat.JSON, reduce: str = "", **changes: Any) -> RecordMapper:
    given: dict[str, Any] = {"key": key_columns(["id"]), "value": value_columns(["n:bigint"]), "key_groups": 8}
    if reduce:
        given["value"], given["reducers"] = reduced_columns(reduce.split())
        given["columns"] = source_columns(reduce.split())
    made = FeedOptions("app", "s", format=record_format, **{**given, **changes})
    return RecordMapper(describe(made), record_format, "src", columns=made.columns)


def debezium(reduce: str = "", **changes: Any) -> RecordMapper:
    return mapper(RecordFormat.DEBEZIUM, reduce, **changes)


def record(value: object, key: bytes | None = None) -> SourceRecord:
    return SourceRecord(3, 7, key, None if value is None else json.dumps(value).encode())


def done(of: RecordMapper, value: object, key: bytes | None = None) -> list[tuple[Any, ...]]:
    """Of each update: its sub, operation, key, map key, value."""
    updates = [update.record for update in of.updates(record(value, key))]
    assert all(update[:3] == ("src", 3, 7) for update in (one.row for one in updates))
    return [(one.sub, one.operation, one.key, one.map_key, one.value) for one in updates]


def test_a_row_is_put_with_the_columns_that_were_named() -> None:
    assert done(mapper(), {"id": "c1", "n": 5, "else": SECRET}) == [(0, 0, ["c1"], None, [5])]
    assert done(mapper(), {"id": "c1"}) == [(0, 0, ["c1"], None, [None])]


def test_fields_of_one_column_have_names_of_their_own() -> None:
    reduce = "rows=count:id spent=sum:n:bigint most=max:n:bigint"
    assert done(mapper(reduce=reduce), {"id": "c1", "n": 5}) == [(0, 0, ["c1"], None, [1, 5, 5])]
    assert done(mapper(reduce=reduce), {"id": "c1", "spent": 5}) == [(0, 0, ["c1"], None, [1, None, None])]
    change = {"op": "u", "before": {"id": "c1", "n": 2}, "after": {"id": "c1", "n": 7}}
    of = debezium("rows=count:id spent=sum:n:bigint")
    assert [update[4] for update in done(of, change, b'{"id": "c1"}')] == [[-1, -2], [1, 7]]


def test_its_key_group_is_that_of_the_vectors() -> None:
    (update,) = mapper(key_groups=64).updates(record({"id": "c1", "n": 1}))
    assert update.key_group == 14


@pytest.mark.parametrize(
    "key",
    [
        b"c1",
        b'"c1"',
        b'{"id": "c1"}',
        b'{"schema": {"type": "struct"}, "payload": {"id": "c1"}}',
        b'{"schema": {"type": "string"}, "payload": "c1"}',
    ],
)
def test_a_tombstone_deletes_the_row_of_the_record_s_key(key: bytes) -> None:
    assert done(mapper(), None, key) == [(0, 1, ["c1"], None, None)]


def test_a_tombstone_of_several_columns_names_all_of_them() -> None:
    of = mapper(key=key_columns(["id:int"]), map_key=key_columns(["day:date"]))
    assert done(of, None, b'{"id": 7, "day": "2026-11-21"}') == [(0, 1, [7], ["2026-11-21"], None)]
    with pytest.raises(MalformedRequest, match="lacks one of the columns id, day"):
        done(of, None, b'{"id": 7}')
    assert done(mapper(key=key_columns(["id:int"])), None, b"7") == [(0, 1, [7], None, None)]


def test_what_is_counted_is_presence() -> None:
    assert done(mapper(reduce="n:bigint=sum note=count"), {"id": "c1", "n": 5, "note": None}) == [
        (0, 0, ["c1"], None, [5, 0])
    ]


def test_a_change_of_a_table_puts_and_deletes_its_row() -> None:
    row, later = {"id": "a", "n": 1}, {"id": "a", "n": 2}
    for op in "cr":
        assert done(debezium(), {"op": op, "after": row}) == [(0, 0, ["a"], None, [1])]
    assert done(debezium(), {"op": "u", "before": row, "after": later}) == [(0, 0, ["a"], None, [2])]
    assert done(debezium(), {"op": "u", "before": None, "after": later}) == [(0, 0, ["a"], None, [2])]
    assert done(debezium(), {"op": "d", "before": row, "after": None}) == [(0, 1, ["a"], None, None)]
    assert done(debezium(), {"op": "d", "before": None, "after": None}, b'{"id": "a"}') == [(0, 1, ["a"], None, None)]
    assert done(debezium(), None, b'{"id": "a"}') == []


def test_a_row_whose_key_has_changed_goes_from_where_it_was() -> None:
    before, after = {"id": "a", "n": 1}, {"id": "b", "n": 1}
    assert done(debezium(), {"op": "u", "before": before, "after": after}) == [
        (0, 1, ["a"], None, None),
        (1, 0, ["b"], None, [1]),
    ]


def test_of_a_sum_what_a_row_had_brought_is_taken_back() -> None:
    of = debezium("n:bigint=sum d:decimal(9,2)=sum note=count")
    before, after = {"id": "a", "n": 5, "d": "1.50", "note": "x"}, {"id": "b", "n": 7, "d": None, "note": None}
    taken_back = (0, 0, ["a"], None, [-5, "-1.50", -1])
    assert done(of, {"op": "u", "before": before, "after": after}) == [taken_back, (1, 0, ["b"], None, [7, None, 0])]
    assert done(of, {"op": "d", "before": before, "after": None}) == [taken_back]


def field(name: str, kind: str = "", **more: object) -> dict[str, object]:
    """The schema of one column, as Kafka Connect's converter writes it."""
    return {"field": name, "name": kind, **more}


def with_schema(columns: list[dict[str, object]], **payload: object) -> dict[str, object]:
    schema = {"fields": [{"field": "before", "fields": columns}, {"field": "after", "fields": columns}]}
    return {"schema": schema, "payload": {"before": None, "after": None, **payload}}


def test_a_decimal_of_all_its_digits_is_taken_back_to_the_last_one() -> None:
    of = debezium("d:decimal(38,2)=sum")
    for amount, taken_back in [
        ("123456789012345678901234567890123456.78", "-123456789012345678901234567890123456.78"),
        ("-123456789012345678901234567890123456.78", "123456789012345678901234567890123456.78"),
        ("0.00", "0.00"),
    ]:
        row = {"id": "a", "d": amount}
        assert done(of, {"op": "c", "before": None, "after": row}) == [(0, 0, ["a"], None, [amount])]
        assert done(of, {"op": "d", "before": row, "after": None}) == [(0, 0, ["a"], None, [taken_back])]


@pytest.mark.parametrize("key_schema", [None, {"fields": [field("at", "io.debezium.time.Timestamp")]}])
def test_a_row_goes_from_where_it_was_put_though_only_its_key_is_told(key_schema: object) -> None:
    of = debezium(key=key_columns(["at:timestamp"]))
    columns = [field("at", "io.debezium.time.Timestamp"), field("n")]
    put = with_schema(columns, op="c", after={"at": 1_700_000_000_000, "n": 1})
    assert done(of, put) == [(0, 0, [1_700_000_000_000_000], None, [1])]
    payload = {"at": 1_700_000_000_000}
    key = payload if key_schema is None else {"schema": key_schema, "payload": payload}
    gone = with_schema(columns, op="d")
    assert done(of, gone, json.dumps(key).encode()) == [(0, 1, [1_700_000_000_000_000], None, None)]
    # Without schemas beside the rows a key is as it stands in them.
    put, gone = {"op": "c", "after": {"at": 5, "n": 1}}, {"op": "d", "before": None, "after": None}
    assert done(of, put) == [(0, 0, [5], None, [1])]
    assert done(of, gone, json.dumps({"schema": key_schema, "payload": {"at": 5}}).encode()) == [
        (0, 1, [5], None, None)
    ]


@pytest.mark.parametrize("raw", [b"\x7f" * 2_000, b"\x7f" * 100_000])
def test_a_decimal_that_no_state_takes_is_refused_at_once(raw: bytes) -> None:
    for scale in ("0", "2"):
        columns = [field("id"), field("d", "org.apache.kafka.connect.data.Decimal", parameters={"scale": scale})]
        row = {"id": "a", "d": base64.b64encode(raw).decode()}
        with pytest.raises(ValueMismatch, match="larger than any state takes"):
            done(debezium(value=value_columns(["d:decimal(38,0)"])), with_schema(columns, op="c", after=row))


@pytest.mark.parametrize("scale", ["-1000000000", "1000000000"])
def test_a_decimal_of_an_endless_scale_is_refused_at_once(scale: str) -> None:
    columns = [field("id"), field("d", "org.apache.kafka.connect.data.Decimal", parameters={"scale": scale})]
    with pytest.raises(ValueMismatch, match="larger than any state takes"):
        done(
            debezium(value=value_columns(["d:decimal(38,0)"])),
            with_schema(columns, op="c", after={"id": "a", "d": "AQ=="}),
        )


def test_a_column_that_is_never_null_is_not_taken_back_as_null() -> None:
    of = debezium("n:bigint=sum")
    for optional in (True, False):
        columns = [field("id"), field("n", optional=optional)]
        gone = with_schema(columns, op="d", before={"id": "a", "n": None})
        if optional:
            assert done(of, gone) == [(0, 0, ["a"], None, [None])]
        else:
            with pytest.raises(ValueMismatch, match=r"column n was before.*REPLICA IDENTITY FULL"):
                done(of, gone)


PLACEHOLDER = "__debezium_unavailable_value"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", PLACEHOLDER),
        ("array<string>", [PLACEHOLDER]),
        ("array<array<string>>", [["a"], [PLACEHOLDER]]),
        ("map<string,string>", {PLACEHOLDER: PLACEHOLDER}),
        ("array<bigint>", list(PLACEHOLDER.encode())),
        ("array<binary>", [base64.b64encode(PLACEHOLDER.encode()).decode()]),
    ],
)
def test_what_stands_for_an_unchanged_value_is_no_value_wherever_it_stands(kind: str, value: object) -> None:
    with pytest.raises(ValueMismatch, match="column v was not changed"):
        done(debezium(value=value_columns([f"v:{kind}"])), {"op": "u", "after": {"id": "a", "v": value}})


def test_values_have_their_form_by_the_schema_beside_them() -> None:
    columns = [
        {"field": "id", "type": "string"},
        field("d", "org.apache.kafka.connect.data.Decimal", parameters={"scale": "2"}),
        field("t", "io.debezium.time.Timestamp"),
        field("u", "io.debezium.time.MicroTimestamp"),
        field("v", "io.debezium.time.NanoTimestamp"),
    ]
    of = debezium(value=value_columns(["d:decimal(9,2)", "t:timestamp", "u:timestamp_ntz", "v:timestamp"]))

    def value(decimal: object) -> dict[str, object]:
        row = {"id": "a", "d": decimal, "t": 5, "u": 6, "v": 7000}
        return with_schema(columns, op="c", after=row)

    assert done(of, value("AJY=")) == [(0, 0, ["a"], None, ["1.50", 5000, 6, 7])]
    assert done(of, value("/w==")) == [(0, 0, ["a"], None, ["-0.01", 5000, 6, 7])]
    with pytest.raises(ValueMismatch, match="not written as its schema says"):
        done(of, value("1.5"))


CHANGED = {"op": "u", "before": {"id": "a", "n": 1}, "after": {"id": "a", "n": 2}}


@pytest.mark.parametrize(
    ("of", "value", "key", "why"),
    [
        (mapper(), [SECRET], None, "the record's value is no JSON object"),
        (mapper(), {"id": "a", "n": SECRET}, None, "field n of state app/s is a bigint"),
        (mapper(), {"id": None, "n": 1}, None, "key column id is null"),
        (mapper(), {"n": 1}, None, "key column id is null"),
        (mapper(), {"id": 7, "n": 1}, None, "key column id is a string"),
        (mapper(), None, None, "has no key that says which"),
        (mapper(), None, b"\xff", "the record's key is no UTF-8"),
        (mapper(key=key_columns(["id:int"])), None, SECRET.encode(), "the record's key is no JSON"),
        (mapper(key=key_columns(["id:int"])), None, b'{"x": 1}', "lacks one of the columns id"),
        (debezium(), {"id": SECRET}, None, "no envelope of Debezium's"),
        (debezium(), {"op": "t", "after": None}, None, "the op 't'; rows come of"),
        (debezium(), {"op": "t", "ts_ms": 1, "source": {}}, None, "the op 't'; rows come of"),
        (debezium(), {"op": "t"}, None, "the op 't'; rows come of"),
        (debezium(), {"op": SECRET}, None, "no envelope of Debezium's"),
        (debezium(), {"op": "u", "before": {"id": "a", "n": 1}, "after": {"id": "a"}}, None, "has no column n"),
        (debezium(), {"op": "c", "after": {"n": 1}}, None, "has no column id"),
        (debezium("n:bigint=sum"), {"op": "d", "before": {"id": "a"}, "after": None}, None, "column n was before"),
        (debezium("n:bigint=sum"), {**CHANGED, "before": {"id": "a"}}, None, "column n was before"),
        (debezium("note=count"), {"op": "d", "before": {"id": "a"}}, None, "column note was before"),
        (debezium(), {"op": SECRET, "after": None}, None, "the op another one"),
        (debezium(), {"op": "c", "after": None}, None, "has no row after it"),
        (debezium(), {"op": "c", "after": SECRET}, None, "is no JSON object"),
        (debezium(), {"op": "d", "before": None, "after": None}, None, "no key that says which"),
        (debezium("n:bigint=sum"), {**CHANGED, "before": None}, None, "REPLICA IDENTITY FULL"),
        (debezium("n:bigint=sum"), {**CHANGED, "op": "d", "before": None}, None, "REPLICA IDENTITY FULL"),
        (debezium("n:double=sum"), {"op": "c", "after": {"id": "a", "n": "NaN"}}, None, "could not be taken out"),
        (debezium("n:bigint=sum"), {"op": "c", "after": {"id": "a", "n": -(2**63)}}, None, "could not be taken out"),
        (
            debezium(value=value_columns(["note"])),
            {"op": "u", "after": {"id": "a", "note": "__debezium_unavailable_value"}},
            None,
            "column note was not changed",
        ),
    ],
)
def test_what_can_t_be_read_is_refused_and_not_quoted(
    of: RecordMapper, value: object, key: bytes | None, why: str
) -> None:
    with pytest.raises(RequestError, match=why) as refused:
        of.updates(record(value, key))
    assert SECRET not in refused.value.message
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("value", [b"", b"{", b"\xff", b'{"id": "\xff"}', b"[" * 100_000, b"NaN"])
def test_what_is_no_json_is_refused(value: bytes) -> None:
    for of in (mapper(), debezium()):
        with pytest.raises(MalformedRequest):
            of.updates(SourceRecord(0, 0, None, value))


def test_a_null_key_is_refused_by_its_column() -> None:
    with pytest.raises(NullKey) as refused:
        mapper().updates(record({"id": None, "n": 1}))
    assert refused.value.facts["column"] == "id"
