"""What records of Avro become, by the schemas of a registry: the rows that JSON would have, or a refusal."""

from __future__ import annotations

import base64
import datetime as dt
import json
import uuid
from decimal import Decimal
from typing import Any

import pytest

from keyhole.errors import MalformedRequest, ValueMismatch
from keyhole.feed.feed_options import FeedOptions, RecordFormat, describe, key_columns, reduced_columns, value_columns
from keyhole.feed.mapping import RecordMapper
from keyhole.feed.record_encoding import RegistryAway
from keyhole.feed.registry.avro import avro_schema, read_whole
from keyhole.feed.registry.encodings import AvroEncoding
from keyhole.feed.rows import SourceRecord
from keyhole.testing.clock import ManualClock
from tests.support.avro_records import encoded, framed, number, record_schema
from tests.support.schema_registry import StandInSource

SECRET = "s3cret"
ORDER = record_schema(id="string", n=["null", "long"])


def decoded(schema: Any, value: Any) -> Any:
    """As the other library writes it, read by us."""
    return read(schema, encoded(schema, value))


def read(schema: Any, data: bytes) -> Any:
    return read_whole(avro_schema(_text(schema)), data, 0, "the value")


def _text(schema: Any) -> str:
    return json.dumps(schema)


class Fed:
    """A topic of Avro, and what its records become."""

    def __init__(self, record_format: RecordFormat = RecordFormat.AVRO, reduce: str = "", **changes: Any) -> None:
        self.source, self.clock = StandInSource(), ManualClock()
        given: dict[str, Any] = {"key": key_columns(["id"]), "value": value_columns(["n:bigint"]), "key_groups": 8}
        if reduce:
            given["value"], given["reducers"] = reduced_columns(reduce.split())
        descriptor = describe(FeedOptions("app", "s", format=record_format, **{**given, **changes}))
        self._mapper = RecordMapper(descriptor, record_format, "src", AvroEncoding(self.source, self.clock))

    def done(self, value: bytes | None, key: bytes | None = None) -> list[tuple[Any, ...]]:
        """Of each update: its operation, key, value."""
        updates = [update.record for update in self._mapper.updates(SourceRecord(3, 7, key, value))]
        return [(one.operation, one.key, one.value) for one in updates]


@pytest.fixture
def fed() -> Fed:
    made = Fed()
    made.source.add(7, ORDER)
    return made


MOMENT = dt.datetime(2026, 11, 21, 10, 0, 0, 123000, tzinfo=dt.UTC)
MICROS = 1795255200123000
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
MAP_ENTRIES = {
    "type": "array",
    "items": {**record_schema("Entry", key="int", value="string"), "connect.internal.type": "MapEntry"},
}


@pytest.mark.parametrize(
    ("schema", "value", "found"),
    [
        ("boolean", True, True),
        ("int", -1, -1),
        ("long", -(1 << 63), -(1 << 63)),
        ("long", (1 << 63) - 1, (1 << 63) - 1),
        ("float", 0.5, 0.5),
        ("double", float("nan"), "NaN"),
        ("double", float("-inf"), "-Infinity"),
        ("float", float("inf"), "Infinity"),
        ("bytes", b"\x01\xff", base64.b64encode(b"\x01\xff").decode()),
        ("string", "ä\0", "ä\0"),
        ({"type": "long", "logicalType": "timestamp-millis"}, MOMENT, MICROS),
        ({"type": "long", "logicalType": "timestamp-micros"}, MOMENT, MICROS),
        ({"type": "long", "logicalType": "timestamp-nanos"}, MICROS * 1000 + 999, MICROS),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, MOMENT.replace(tzinfo=None), MICROS),
        ({"type": "int", "logicalType": "date"}, dt.date(1970, 1, 3), 2),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("-1.50"), "-1.50"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9}, Decimal("12"), "12"),
        (
            {"type": "fixed", "name": "D", "size": 8, "logicalType": "decimal", "precision": 9, "scale": 3},
            Decimal("0.125"),
            "0.125",
        ),
        ({"type": "string", "logicalType": "uuid"}, ID, str(ID)),
        ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, ID.bytes, str(ID)),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", base64.b64encode(b"ab").decode()),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "array", "items": "int"}, [1, 2], [1, 2]),
        ({"type": "map", "values": ["null", "int"]}, {"a": 1, "b": None}, {"a": 1, "b": None}),
        (MAP_ENTRIES, [{"key": 5, "value": "x"}], [[5, "x"]]),
        (["null", "string"], None, None),
        (["null", "string"], "a", "a"),
        (record_schema(a=record_schema("In", b="int"), c=["null", "In"]), {"a": {"b": 1}}, {"a": {"b": 1}, "c": None}),
        (
            record_schema(t={"type": "long", "connect.name": "io.debezium.time.Timestamp"}),
            {"t": 5},
            {"t": 5000},
        ),
        (record_schema(a="null", b="int"), {"b": 1}, {"b": 1}),
    ],
    ids=lambda given: repr(given)[:60],
)
def test_values_have_the_forms_of_json(schema: Any, value: Any, found: Any) -> None:
    assert decoded(schema, value) == found


def test_blocks_with_their_size_are_read_too() -> None:
    data = number(-2) + number(2) + number(5) + number(6) + number(1) + number(7) + number(0)
    assert read({"type": "array", "items": "int"}, data) == [5, 6, 7]


NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ("boolean", b"\x02"),
        ("int", number(1 << 40)),
        ("long", b"\xff" * 10 + b"\x01"),
        ("long", b"\xff" * 9 + b"\x02"),
        ("long", b"\x80"),
        ("double", b"\0" * 7),
        ("string", number(-1)),
        ("string", number(1 << 50) + b"abc"),
        ("string", number(2) + b"\xff\xff"),
        (["null", "int"], number(2)),
        (["null", "int"], number(-1) + number(3)),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, number(-1)),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, number(2)),
        ({"type": "array", "items": "int"}, number(1 << 50) + number(1)),
        ({"type": "array", "items": "int"}, number(-(1 << 63)) + number(1)),
        ({"type": "array", "items": {"type": "array", "items": "int"}}, number(2) + number(0)),
        ({"type": "fixed", "name": "F", "size": 4}, b"abc"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, number(9_000) + b"\x7f" * 9_000),
        (NODE, b"\x02" * 1_000_000 + b"\0"),
        ("string", number(1) + b"a" + b"b"),
        ("int", b""),
    ],
    ids=lambda given: repr(given)[:50],
)
def test_bytes_that_no_writer_of_the_schema_writes_are_refused(schema: Any, data: bytes) -> None:
    """Among them what ends a process that reads them in C, or fills its memory: nested and counted without end."""
    with pytest.raises(MalformedRequest, match=r"the value (is not what|goes on behind)"):
        read(schema, data)


def test_a_record_that_contains_itself_is_read_to_a_usual_depth() -> None:
    assert read(NODE, b"\x02" * 50 + b"\0")["next"]["next"]


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("no", "no Avro schema"),
        ({"type": "record"}, "no Avro schema"),
        (record_schema(a="Missing"), "no Avro schema"),
        ({"type": "fixed", "name": "F", "size": -1}, "no Avro schema"),
        ({"type": "array", "items": "null"}, "take no bytes"),
        ({"type": "array", "items": record_schema("Empty", a="null")}, "take no bytes"),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, "take no bytes"),
    ],
)
def test_schemas_that_can_t_be_read_are_refused_with_the_reason(schema: Any, says: str) -> None:
    with pytest.raises(MalformedRequest, match=says):
        avro_schema(_text(schema))


def test_a_schema_nested_without_end_is_refused() -> None:
    with pytest.raises(MalformedRequest, match="no Avro schema"):
        avro_schema('{"type": "array", "items": ' * 100_000 + '"int"' + "}" * 100_000)


def test_types_of_other_schemas_are_those_that_it_refers_to() -> None:
    inner, outer = record_schema("Address", city="string"), record_schema(address="Address")
    of = avro_schema(_text(outer), [("Address", _text(inner))])
    assert read_whole(of, number(1) + b"a", 0, "it") == {"address": {"city": "a"}}


def test_a_row_is_put_and_a_later_schema_s_too(fed: Fed) -> None:
    assert fed.done(framed(7, ORDER, {"id": "c1", "n": 5})) == [(0, ["c1"], [5])]
    wider = record_schema(more="string", id="string", n=["null", "int"], at={"type": "map", "values": "int"})
    fed.source.add(8, wider)
    assert fed.done(framed(8, wider, {"more": SECRET, "id": "c2", "n": 6, "at": {}})) == [(0, ["c2"], [6])]
    assert fed.done(framed(7, ORDER, {"id": "c1"})) == [(0, ["c1"], [None])]
    narrow = record_schema(id="string")
    fed.source.add(9, narrow)
    assert fed.done(framed(9, narrow, {"id": "c3"})) == [(0, ["c3"], [None])]
    assert fed.source.asked == [7, 8, 9], "each schema is asked for once"


@pytest.mark.parametrize(
    "key",
    [
        b"c1",
        b'{"id": "c1"}',
        framed(1, "string", "c1"),
        framed(2, record_schema("Key", id="string"), {"id": "c1"}),
    ],
)
def test_a_tombstone_s_key_is_avro_or_text(fed: Fed, key: bytes) -> None:
    fed.source.add(1, "string")
    fed.source.add(2, record_schema("Key", id="string"))
    assert fed.done(None, key) == [(1, ["c1"], None)]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"", "the record's value does not begin with a zero byte"),
        (b'{"id": "c1"}', "does not begin with a zero byte"),
        (b"\x01" + framed(7, ORDER, {"id": SECRET})[1:], "does not begin with a zero byte"),
        (b"\0\0\0\0\x07" + number(60) + SECRET.encode(), "the record's value is not what its Avro schema says"),
        (framed(7, ORDER, {"id": SECRET}) + b"\0", "goes on behind"),
        (framed(1, "string", SECRET), "is no record of Avro's"),
        (framed(3, "string", SECRET), "schema 3 can't be used: it is of the kind JSON"),
        (framed(4, "string", SECRET), "schema 4 can't be used: it has an array"),
        (framed(0, ORDER, {"id": SECRET}), "names schema 0, and ids of schemas are from 1 on"),
        (b"\0\xff\xff\xff\xffx", "names schema -1, and ids of schemas are from 1 on"),
        (framed(5, record_schema(id="int"), {"id": 5}), "key column id is a string"),
    ],
    ids=lambda given: repr(given)[:40],
)
def test_what_can_t_be_read_is_refused_and_not_quoted(fed: Fed, value: bytes, says: str) -> None:
    fed.source.add(1, "string")
    fed.source.add(3, {}, kind="JSON")
    fed.source.add(4, {"type": "array", "items": "null"})
    fed.source.add(5, record_schema(id="int"))
    for _ in range(2):
        with pytest.raises(Exception, match=says) as caught:
            fed.done(value)
        assert SECRET not in str(caught.value)
    assert len(fed.source.asked) <= 1


def test_a_schema_that_is_unknown_is_asked_for_again_before_its_records_are_given_up(fed: Fed) -> None:
    later = framed(8, ORDER, {"id": "c1", "n": 5})
    for _ in range(3):
        with pytest.raises(RegistryAway, match="no schema of id 8"):
            fed.done(later)
        fed.clock.advance(2.0)
    with pytest.raises(MalformedRequest, match="no schema of id 8"):
        fed.done(later)
    asked = len(fed.source.asked)
    fed.source.add(8, ORDER)
    with pytest.raises(MalformedRequest, match="no schema of id 8"):
        fed.done(later)
    assert len(fed.source.asked) == asked, "it is not asked for each of these records"
    assert fed.done(framed(7, ORDER, {"id": "c1", "n": 5})) == [(0, ["c1"], [5])]
    fed.clock.advance(60.0)
    assert fed.done(later) == [(0, ["c1"], [5])]


def test_a_schema_that_is_registered_a_moment_later_loses_no_record(fed: Fed) -> None:
    later = framed(8, ORDER, {"id": "c1", "n": 5})
    with pytest.raises(RegistryAway):
        fed.done(later)
    fed.source.add(8, ORDER)
    fed.clock.advance(600.0)
    assert fed.done(later) == [(0, ["c1"], [5])]


def test_a_registry_that_is_away_says_nothing_of_the_record(fed: Fed) -> None:
    fed.source.away = True
    row = framed(7, ORDER, {"id": "c1", "n": 5})
    for _ in range(5):
        with pytest.raises(RegistryAway):
            fed.done(row)
        fed.clock.advance(100.0)
    fed.source.away = False
    assert fed.done(row) == [(0, ["c1"], [5])]
    fed.source.away = True
    assert fed.done(row) == [(0, ["c1"], [5])], "what is known needs no registry"


ROW = record_schema(
    "Row",
    id="string",
    n=["null", "long"],
    d={
        "type": "bytes",
        "logicalType": "decimal",
        "precision": 9,
        "scale": 2,
        "connect.name": "org.apache.kafka.connect.data.Decimal",
    },
)
ENVELOPE = record_schema("Envelope", before=["null", ROW], after=["null", "Row"], op="string", ts_ms=["null", "long"])


def change(op: str, before: Any = None, after: Any = None) -> bytes:
    def row(given: Any) -> Any:
        return given and {"id": "a", "n": None, "d": Decimal("1.50"), **given}

    return framed(7, ENVELOPE, {"op": op, "before": row(before), "after": row(after), "ts_ms": 1})


def test_debezium_s_changes_in_avro_follow_the_table() -> None:
    fed = Fed(RecordFormat.DEBEZIUM_AVRO, value=value_columns(["n:bigint", "d:decimal(9,2)"]))
    fed.source.add(7, ENVELOPE)
    fed.source.add(8, record_schema("Key", id="string"))
    assert fed.done(change("c", after={"n": 5})) == [(0, ["a"], [5, "1.50"])]
    assert fed.done(change("u", after={"n": 6})) == [(0, ["a"], [6, "1.50"])]
    assert fed.done(change("u", {"id": "b"}, {"n": 6})) == [(1, ["b"], None), (0, ["a"], [6, "1.50"])]
    assert fed.done(change("d"), framed(8, record_schema("Key", id="string"), {"id": "a"})) == [(1, ["a"], None)]
    assert fed.done(None, framed(8, record_schema("Key", id="string"), {"id": "a"})) == []
    with pytest.raises(MalformedRequest, match="has the op 't'"):
        fed.done(change("t"))


def test_a_sum_takes_the_old_row_of_a_change_in_avro_out() -> None:
    fed = Fed(RecordFormat.DEBEZIUM_AVRO, reduce="n:bigint=sum d:decimal(9,2)=sum")
    fed.source.add(7, ENVELOPE)
    assert fed.done(change("u", {"n": 5}, {"n": 6})) == [(0, ["a"], [-5, "-1.50"]), (0, ["a"], [6, "1.50"])]
    with pytest.raises(ValueMismatch, match="what the row was before"):
        fed.done(change("d"))


def test_rows_of_avro_are_no_changes_of_a_table() -> None:
    fed = Fed(RecordFormat.DEBEZIUM_AVRO)
    fed.source.add(7, ORDER)
    with pytest.raises(MalformedRequest, match="no envelope of Debezium's"):
        fed.done(framed(7, ORDER, {"id": "c1", "n": 5}))
