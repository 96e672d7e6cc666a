"""Values and messages are the same thing in two forms."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import msgspec
import pytest

from keyhole.encoding.envelope import Base
from keyhole.encoding.key_values import KeyValue
from keyhole.errors import KeyMismatch, MalformedRequest, NullKey
from keyhole.model.epoch import Run
from keyhole.model.read import Role, Source
from keyhole.model.state import KeyColumn, KeyType, StateKind, TtlClock, ValueField, ValueSchema
from keyhole.protocol.receipts import GroupReceipt
from keyhole.rpc import convert, convert_writes
from keyhole.v1 import query_pb2, state_pb2
from tests.support.readings import descriptor

_VALUES: list[tuple[KeyType, KeyValue]] = [
    (KeyType.STRING, "Zürich"),
    (KeyType.STRING, ""),
    (KeyType.BINARY, b"\x00\xff"),
    (KeyType.BOOLEAN, False),
    (KeyType.SMALLINT, -(1 << 15)),
    (KeyType.INT, (1 << 31) - 1),
    (KeyType.BIGINT, -(1 << 63)),
    (KeyType.DATE, date(1, 1, 1)),
    (KeyType.DATE, date(9999, 12, 31)),
    (KeyType.TIMESTAMP, datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
]


@pytest.mark.parametrize(("kind", "value"), _VALUES)
def test_keys_come_back_as_they_were(kind: KeyType, value: KeyValue) -> None:
    message = convert.key_to_proto([KeyColumn("k", kind)], value)
    assert convert.key_from_proto(query_pb2.Key.FromString(message.SerializeToString())) == (value,)


def test_composite_keys_are_one_part_per_column() -> None:
    columns = [KeyColumn("city", KeyType.STRING), KeyColumn("day", KeyType.DATE)]
    message = convert.key_to_proto(columns, ("Basel", date(2024, 2, 29)))
    assert convert.key_from_proto(message) == ("Basel", date(2024, 2, 29))


def test_a_time_of_another_zone_is_the_same_moment() -> None:
    moment = datetime(2024, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    message = convert.key_to_proto([KeyColumn("k", KeyType.TIMESTAMP)], moment)
    assert convert.key_from_proto(message) == (datetime(2024, 1, 1, 10, tzinfo=UTC),)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (KeyType.STRING, 1),
        (KeyType.BIGINT, "1"),
        (KeyType.BIGINT, True),
        (KeyType.BIGINT, 1 << 63),
        (KeyType.BOOLEAN, 1),
        (KeyType.DATE, datetime(2024, 1, 1, tzinfo=UTC)),
        (KeyType.TIMESTAMP, datetime(2024, 1, 1)),  # noqa: DTZ001 - the point: a time without a zone is no moment
    ],
)
def test_a_value_of_another_type_is_refused_by_the_columns_name(kind: KeyType, value: KeyValue) -> None:
    with pytest.raises(KeyMismatch, match=f"key column k is a {kind}"):
        convert.key_to_proto([KeyColumn("k", kind)], value)


def test_another_number_of_columns_is_refused_with_the_columns() -> None:
    with pytest.raises(KeyMismatch, match="has 2 columns, the state's key has 1: sensor string"):
        convert.key_to_proto(descriptor().key, ("a", "b"))


def test_a_null_is_refused_in_both_directions() -> None:
    with pytest.raises(NullKey):
        convert.key_to_proto(descriptor().key, (None,))  # type: ignore[arg-type]
    with pytest.raises(NullKey):
        convert.key_from_proto(query_pb2.Key(parts=[query_pb2.KeyPart()]))


@pytest.mark.parametrize(
    "part", [query_pb2.KeyPart(date_days=1 << 30), query_pb2.KeyPart(timestamp_micros=1 << 62)], ids=["date", "time"]
)
def test_a_moment_that_python_has_no_value_for_is_refused(part: query_pb2.KeyPart) -> None:
    with pytest.raises(MalformedRequest, match="outside the years 1 to 9999"):
        convert.key_from_proto(query_pb2.Key(parts=[part]))


def test_descriptors_come_back_as_they_were() -> None:
    full = msgspec.structs.replace(
        descriptor(),
        kind=StateKind.MAP,
        map_key=(KeyColumn("hour", KeyType.TIMESTAMP),),
        earlier=(ValueSchema(1, (ValueField("a", "int", default=b"\x01"),)),),
        ttl_ms=60_000,
        ttl_clock=TtlClock.EVENT_TIME,
        max_length=3,
    )
    for one in (descriptor(), full):
        assert convert.descriptor_from_proto(convert.descriptor_to_proto(one)) == one


def test_a_descriptor_of_a_newer_version_is_refused_by_what_is_unknown() -> None:
    message = convert.descriptor_to_proto(descriptor())
    message.kind = 99  # type: ignore[assignment]
    with pytest.raises(MalformedRequest, match="its kind, or the time it expires by, is unknown"):
        convert.descriptor_from_proto(message)
    message = convert.descriptor_to_proto(descriptor())
    message.key[0].type = 99  # type: ignore[assignment]
    with pytest.raises(MalformedRequest, match="the type of key column sensor is unknown"):
        convert.descriptor_from_proto(message)


@pytest.mark.parametrize("key_groups", [0, 65_537])
def test_a_descriptor_with_an_impossible_number_of_key_groups_is_refused(key_groups: int) -> None:
    message = convert.descriptor_to_proto(descriptor())
    message.key_groups = key_groups
    with pytest.raises(MalformedRequest, match=f"{key_groups} key groups"):
        convert.descriptor_from_proto(message)


def test_the_times_of_a_source_are_those_of_its_milliseconds() -> None:
    message = state_pb2.Source(
        server="a",
        role=state_pb2.ROLE_OWNER,
        epoch=7,
        commit_time_ms=1_704_067_200_123,
        generation=2,
        assignment_version=3,
        unconfirmed=True,
        lag_epochs=4,
        staged_epoch=8,
    )
    time = datetime(2024, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC)
    source = Source("a", Role.OWNER, 7, time, None, 2, 3, unconfirmed=True, as_of=None, lag_epochs=4, staged_epoch=8)
    assert convert.source_from_proto(message) == source


def test_what_an_epoch_is_told_by_comes_back_as_it_was() -> None:
    run, receipt = Run("app", "main", 2**63, "run-1"), GroupReceipt(65_535, 10, 2**40, 2**64 - 1)
    assert convert_writes.run_from_proto(convert_writes.run_to_proto(run)) == run
    assert convert_writes.receipt_from_proto(convert_writes.receipt_to_proto(receipt)) == receipt
    for base in (None, Base(b"", 0), Base(b"accumulator", 3)):
        assert convert_writes.base_from_proto(convert_writes.base_to_proto(base)) == base


def test_a_source_without_a_commit_has_no_time_and_an_unknown_role_promises_least() -> None:
    source = convert.source_from_proto(state_pb2.Source(server="a"))
    assert (source.epoch, source.commit_time, source.watermark, source.role) == (0, None, None, Role.STANDBY)
