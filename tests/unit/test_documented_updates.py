"""docs/updates.md is true: its records are what the code takes, and what it says is refused is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from keyhole.encoding.murmur3 import key_group, spark_hash
from keyhole.errors import RequestError, ValueMismatch
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.protocol.updates import (
    DELETE,
    PUT,
    BoundaryRecord,
    EndRecord,
    FeedRules,
    RulesRecord,
    UpdateRecord,
    decode,
    encode,
)
from services.state_server.write.update_reader import UpdateReader
from tests.support.states import descriptor

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "updates.md").read_text()
EXAMPLES, ENTRIES = (
    [line.encode() for line in block.splitlines()] for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
)
NO_RECORDS, UNFIT = (
    [record.encode() for record in re.findall(r"^\| `([\[{].*?)` \|", table, re.MULTILINE)]
    for table in PAGE.split("## What is refused")[1].split("These are records")
)

VALUE = descriptor(value=ValueSchema(1, (ValueField("v", "double"),)))
PRICED = descriptor(value=ValueSchema(1, (ValueField("v", "double"), ValueField("currency", "string"))))
MAP = descriptor(kind=StateKind.MAP, map_key=(KeyColumn("day", KeyType.DATE),))
ORDERED = descriptor(
    value=ValueSchema(1, (ValueField("at", "timestamp"),)), order_by="at", keep_deleted_ms=1, map_key=()
)


def test_the_first_example_has_a_record_of_each_kind() -> None:
    put, deletion, boundary, end, rules = map(decode, EXAMPLES)
    assert put == UpdateRecord("a1b2", 0, 991823, 0, PUT, 1, ["c1"], None, [12.5, "EUR"])
    assert deletion == UpdateRecord("a1b2", 0, 991824, 0, DELETE, 1, ["c1"])
    assert boundary == BoundaryRecord("a1b2", 17, {0: 991900, 1: 990012})
    assert end == EndRecord("a1b2")
    assert rules == RulesRecord(7, FeedRules(ttl_ms=60_000))
    assert [decode(encode(one)) for one in (put, deletion, boundary, end, rules)] == list(map(decode, EXAMPLES))


@pytest.mark.parametrize(
    ("value", "of"), [(EXAMPLES[0], PRICED), (EXAMPLES[1], PRICED), *zip(ENTRIES, [MAP, MAP, ORDERED], strict=True)]
)
def test_an_update_that_is_shown_fits_a_state(value: bytes, of: StateDescriptor) -> None:
    record = decode(value)
    assert isinstance(record, UpdateRecord)
    _, row = UpdateReader(of).read(record, 0)
    assert (row is None) == (record.value is None)


def test_the_key_groups_are_those_that_the_code_computes() -> None:
    rows = re.findall(r"^\| ([a-z, ]+) \| `(\[.*?\])` \| (-?\d+) \| (\d+) \| (\d+) \| (\d+) \|", PAGE, re.MULTILINE)
    assert len(rows) == 2
    for types, key, hashed, *groups in rows:
        kinds, values = [KeyType(name) for name in types.split(", ")], json.loads(key)
        assert spark_hash(values, kinds) == int(hashed)
        assert [key_group(values, kinds, count) for count in (8, 64, 100)] == [int(group) for group in groups]


@pytest.mark.parametrize("value", NO_RECORDS, ids=bytes.decode)
def test_what_is_no_record_is_refused(value: bytes) -> None:
    with pytest.raises(ValueMismatch, match="not a record of an updates topic"):
        decode(value)


def test_what_a_producer_could_make_no_update_of_is_refused_with_its_reason() -> None:
    (value,) = re.findall(r"^`(\[1, .*)`", PAGE, re.MULTILINE)
    with pytest.raises(ValueMismatch, match=r"^its producer made no update of the row: it is too large$"):
        decode(value.encode())
    with pytest.raises(ValueMismatch, match="not a record of an updates topic"):
        decode(value.encode().replace(b"too large", b"too large " * 30))


@pytest.mark.parametrize("value", UNFIT, ids=bytes.decode)
def test_what_does_not_fit_the_state_is_refused(value: bytes) -> None:
    record = decode(value)
    assert isinstance(record, UpdateRecord)
    with pytest.raises(RequestError):
        UpdateReader(VALUE).read(record, 0)


def test_the_rules_are_those_that_are_named() -> None:
    table = PAGE.split("## Rules")[1].split("## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| `?([\d,]+|\[\])`? \|", table, re.MULTILINE)
    found = {name: json.loads(default.replace(",", "")) for name, default in rows}
    assert found == json.loads(msgspec.json.encode(FeedRules()))


def test_the_tables_of_what_is_refused_have_been_found() -> None:
    assert (len(NO_RECORDS), len(UNFIT)) == (12, 6)
