"""What a program writes in Python is what owners read of its updates, of any type; what does not fit is refused."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.row_codec import encode_row
from keyhole.encoding.storage_key import group_of
from keyhole.encoding.value_types import optional, value_type
from keyhole.errors import KeyMismatch, MalformedRequest, NullKey, RequestError, ValueMismatch
from keyhole.feed.writes import UpdateWrites, WriteToken
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.protocol.updates import DELETE, PUT, SourceRow, UpdateRecord, decode, encode
from services.state_server.write.update_reader import UpdateReader
from tests.support.states import descriptor

N = ValueSchema(1, (ValueField("n", "bigint"),))
MAP = descriptor(kind=StateKind.MAP, value=N, map_key=(KeyColumn("day", KeyType.DATE),))
LIST = descriptor(kind=StateKind.LIST, value=N, max_length=3)
SUMS = descriptor(
    kind=StateKind.REDUCING,
    value=ValueSchema(1, (ValueField("n", "bigint"), ValueField("rows", "bigint", nullable=False))),
    reducers=("sum", "count"),
)
ORDERED = descriptor(value=ValueSchema(1, (ValueField("at", "timestamp"),)), order_by="at", keep_deleted_ms=1)
MOMENT = datetime(2026, 11, 21, 10, tzinfo=UTC)


def read(of: StateDescriptor, record: UpdateRecord) -> tuple[bytes, bytes | None]:
    """As an owner does, of what stands in the topic."""
    found = decode(encode(record))
    assert isinstance(found, UpdateRecord)
    key, row = UpdateReader(of).read(found, 0)
    assert row is None or isinstance(row, bytes)
    return key, row


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("boolean", True),
        ("bigint", -(2**63)),
        ("double", 0.1),
        ("double", math.inf),
        ("decimal(38,18)", Decimal("1.500000000000000000")),
        ("string", "é\n"),
        ("binary", b"\x00\xff"),
        ("date", date(2026, 11, 21)),
        ("timestamp", MOMENT),
        ("timestamp_ntz", datetime(2026, 11, 21, 10)),  # noqa: DTZ001 - it has none
        ("array<int>", (1, None)),
        ("map<string,binary>", {"a": b"x"}),
        ("struct<a:int,b:array<date>>", {"a": 1, "b": [date(2026, 11, 21)]}),
        ("string", None),
    ],
)
def test_a_value_is_read_as_it_was_given(kind: str, value: Any) -> None:
    of = descriptor(value=ValueSchema(1, (ValueField("v", kind),)))
    update = UpdateWrites(of, "s").write("put", "a", {"v": value})
    key, row = read(of, update.record)
    assert group_of(key) == update.key_group
    assert row == encode_row(1, [optional(value_type(kind).from_given)(value)])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (KeyType.STRING, "é"),
        (KeyType.BINARY, b"\x00\xff"),
        (KeyType.BOOLEAN, True),
        (KeyType.INT, -7),
        (KeyType.DATE, date(2026, 11, 21)),
        (KeyType.TIMESTAMP, MOMENT),
    ],
)
def test_a_key_is_read_as_it_was_given(kind: KeyType, value: Any) -> None:
    of = descriptor(key=(KeyColumn("k", kind),), value=N)
    writes = UpdateWrites(of, "s")
    update = writes.write("put", value, {"n": 1})
    key, _ = read(of, update.record)
    assert key == StateCodec(of).storage_key(value)
    assert update.key_group == writes.key_group(value) == group_of(key)


def test_updates_are_numbered_as_they_are_made() -> None:
    writes = UpdateWrites(SUMS, "s")
    updates = [writes.write("add", "a", {"n": 5}), writes.write("add", "a", {"rows": 1}), writes.delete("a")]
    assert [update.record.row for update in updates] == [SourceRow("s", 0, offset, 0) for offset in range(3)]
    assert [update.record.value for update in updates] == [[5, 0], [None, 1], None]
    assert [update.record.operation for update in updates] == [PUT, PUT, DELETE]


def test_an_entry_of_a_map_or_all_of_them_is_deleted() -> None:
    writes = UpdateWrites(MAP, "s")
    day = date(2026, 11, 21)
    put, entry, whole = writes.write("put", ("a", day), {"n": 1}), writes.delete(("a", day)), writes.delete("a")
    assert [update.record.map_key for update in (put, entry, whole)] == [["2026-11-21"], ["2026-11-21"], None]
    assert read(MAP, put.record)[0] == read(MAP, entry.record)[0] == StateCodec(MAP).storage_key(("a", day))
    assert read(MAP, whole.record)[0] == StateCodec(MAP).prefix("a")


def test_a_deletion_has_an_order_where_the_state_remembers_it() -> None:
    _, row = read(ORDERED, UpdateWrites(ORDERED, "s").delete("a", MOMENT).record)
    assert row is not None
    with pytest.raises(MalformedRequest, match="have an order"):
        UpdateWrites(ORDERED, "s").delete("a")
    with pytest.raises(MalformedRequest, match="have no order"):
        UpdateWrites(MAP, "s").delete("a", MOMENT)


def test_a_broadcast_state_has_one_key_group() -> None:
    of = descriptor(kind=StateKind.BROADCAST, key_groups=1, value=N)
    update = UpdateWrites(of, "s").write("put", "a", {"n": 1})
    assert (update.key_group, group_of(read(of, update.record)[0])) == (0, 0)


@pytest.mark.parametrize(
    ("of", "method", "key", "value", "error", "why"),
    [
        (SUMS, "put", "a", {}, MalformedRequest, "is a reducing state: use add"),
        (LIST, "add", "a", {}, MalformedRequest, "is a list state: use append"),
        (MAP, "append", "a", {}, MalformedRequest, "is a map state: use put"),
        (MAP, "put", "a", {"n": 1}, KeyMismatch, "has 1 columns"),
        (MAP, "put", ("a", date(2026, 11, 21), 3), {"n": 1}, KeyMismatch, "has 3 columns"),
        (LIST, "append", None, {"n": 1}, NullKey, "null"),
        (LIST, "append", 7, {"n": 1}, KeyMismatch, "is a string"),
        (LIST, "append", "a", {"x": 1}, ValueMismatch, "has no field x"),
        (LIST, "append", "a", {"n": "s3cret"}, ValueMismatch, "field n .* a str that was given does not fit"),
        (SUMS, "add", "a", {"n": 2**63}, ValueMismatch, "does not fit"),
    ],
)
def test_what_does_not_fit_is_refused_and_takes_no_number(
    of: StateDescriptor, method: str, key: object, value: dict[str, Any], error: type[RequestError], why: str
) -> None:
    writes = UpdateWrites(of, "s")
    with pytest.raises(error, match=why) as refused:
        writes.write(method, key, value)
    assert "s3cret" not in refused.value.message
    assert writes.next == 0


@pytest.mark.parametrize(
    "moment",
    [
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime.max.replace(tzinfo=timezone(-timedelta(hours=14))),
    ],
    ids=["before the year 1", "after the year 9999"],
)
def test_a_moment_that_utc_has_in_no_year_is_no_key(moment: datetime) -> None:
    of = descriptor(key=(KeyColumn("at", KeyType.TIMESTAMP),), value=N)
    with pytest.raises(KeyMismatch):
        UpdateWrites(of, "s").write("put", moment, {"n": 1})


def test_a_token_goes_on_as_json() -> None:
    token = WriteToken({3: 18})
    assert msgspec.json.decode(msgspec.json.encode(token), type=WriteToken) == token
    assert (token.min_epoch(3), token.min_epoch(4)) == (18, 0)
