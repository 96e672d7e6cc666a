"""Whatever a source topic holds, its updates are the same each time, fit the state, and come to what its rows say."""

from __future__ import annotations

import json
from collections import defaultdict
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.encoding.storage_key import group_of
from keyhole.errors import RequestError
from keyhole.feed.feed_options import FeedOptions, RecordFormat, describe, key_columns, reduced_columns, value_columns
from keyhole.feed.mapping import RecordMapper
from keyhole.feed.rows import SourceRecord
from keyhole.protocol.updates import DELETE, decode, encode
from services.state_server.write.update_reader import UpdateReader

KEYS = key_columns(["id", "n:int"])
ROWS = FeedOptions("app", "s", KEYS, value_columns(["a:double", "b:decimal(9,2)", "c:array<string>"]), key_groups=8)
MAPS = FeedOptions("app", "s", KEYS, value_columns(["a"]), map_key=key_columns(["day:date"]), key_groups=8)
LISTS = FeedOptions("app", "s", KEYS, value_columns(["a"]), max_length=3, key_groups=8)
SUMMED, REDUCERS = reduced_columns(["a:bigint=sum", "b:decimal(9,2)=sum", "c=count"])
SUMS = FeedOptions("app", "s", KEYS, SUMMED, REDUCERS, key_groups=8)

MADE = {options: describe(options) for options in (ROWS, MAPS, LISTS, SUMS)}
MAPPERS = {options: RecordMapper(made, RecordFormat.JSON, "s") for options, made in MADE.items()}
READERS = {options: UpdateReader(made) for options, made in MADE.items()}

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(["NaN", "1.50"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=3,
)
VALUES = (
    st.binary(max_size=6)
    | st.none()
    | st.dictionaries(st.sampled_from([*"abcn", "id", "day"]), ANY).map(lambda fields: json.dumps(fields).encode())
)
IDS = st.sampled_from(["a", "b"]) | st.text(max_size=3)


@pytest.mark.parametrize("options", [ROWS, MAPS, LISTS, SUMS], ids=["value", "map", "list", "reducing"])
@given(data=st.data())
def test_an_update_fits_the_state_or_there_is_none(options: FeedOptions, data: st.DataObject) -> None:
    fields = {
        "id": data.draw(IDS),
        "n": data.draw(st.integers(-5, 5)),
        "day": "2026-11-21",
        **data.draw(st.dictionaries(st.sampled_from("abc"), ANY)),
    }
    value = data.draw(st.just(json.dumps(fields).encode()) | VALUES)
    record = SourceRecord(1, 2, data.draw(st.none() | st.binary(max_size=4)), value)
    try:
        updates = MAPPERS[options].updates(record)
    except RequestError:
        return
    assert repr(updates) == repr(MAPPERS[options].updates(record))
    for update in updates:
        as_sent = decode(encode(update.record))
        assert repr(as_sent) == repr(update.record)
        key, _ = READERS[options].read(update.record, 0)
        assert group_of(key) == update.key_group


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The changes of a table whose rows come, change (their key, too) and go, and the rows that are left."""
    table: dict[int, dict[str, Any]] = {}
    changes: list[dict[str, Any]] = []
    for number in range(draw(st.integers(0, 15))):
        row = {
            "id": draw(st.sampled_from("ab")),
            "n": draw(st.integers(0, 1)),
            "a": draw(st.none() | st.integers(-9, 9)),
            "b": draw(st.none() | st.integers(-999, 999).map(lambda cents: str(Decimal(cents) / 100))),
            "c": draw(st.none() | st.just("x")),
        }
        which = draw(st.sampled_from([*table, number]))
        if which == number:
            changes.append({"op": draw(st.sampled_from("cr")), "before": None, "after": row})
        elif draw(st.booleans()):
            changes.append({"op": "u", "before": table[which], "after": row})
        else:
            changes.append({"op": "d", "before": table.pop(which), "after": None})
            continue
        table[which] = row
    return changes, list(table.values())


@given(histories())
def test_the_sums_of_a_table_s_changes_are_those_of_its_rows(history: tuple[list[dict[str, Any]], list[Any]]) -> None:
    changes, rows = history
    mapper = RecordMapper(MADE[SUMS], RecordFormat.DEBEZIUM, "s")
    sums: defaultdict[tuple[Any, ...], list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 3)

    def add(key: tuple[Any, ...], values: list[Any]) -> None:
        sums[key] = [total + Decimal(value or 0) for total, value in zip(sums[key], values, strict=True)]

    for offset, change in enumerate(changes):
        for update in mapper.updates(SourceRecord(0, offset, None, json.dumps(change).encode())):
            assert update.record.value is not None
            add(tuple(update.record.key), update.record.value)
    for row in rows:
        add((row["id"], row["n"]), [-(row["a"] or 0), -Decimal(row["b"] or 0), -int(row["c"] is not None)])
    assert all(total == 0 for totals in sums.values() for total in totals)


@given(histories())
def test_the_last_update_of_a_key_is_what_its_row_is(history: tuple[list[dict[str, Any]], list[Any]]) -> None:
    """Of a table whose key is the state's, where each row has a key of its own."""
    changes, _ = history
    mapper = RecordMapper(MADE[ROWS], RecordFormat.DEBEZIUM, "s")
    state: dict[tuple[Any, ...], Any] = {}
    table: dict[tuple[Any, ...], Any] = {}
    for offset, change in enumerate(changes):
        before, after = change["before"], change["after"]
        if before is not None:
            table.pop((before["id"], before["n"]), None)
        if after is not None:
            table[after["id"], after["n"]] = [after["a"], after["b"], None]
        whole = {**change, "after": after and {**after, "c": None}}
        for update in mapper.updates(SourceRecord(0, offset, None, json.dumps(whole).encode())):
            if update.record.operation == DELETE:
                state.pop(tuple(update.record.key), None)
            else:
                state[tuple(update.record.key)] = update.record.value
    assert state == table
