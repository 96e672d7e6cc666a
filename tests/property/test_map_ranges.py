"""A range of map keys under each key, for which the server seeks, is what a filter of all entries gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.key_reading import key_length
from keyhole.encoding.row_codec import encode_row
from keyhole.encoding.storage_key import group_of
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.stores.base import StoreEngine, StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.stores.rocksdb.engine import RocksdbEngine
from services.state_server.read.map_ranges import entries_of_map_keys
from services.state_server.read.table import Table
from tests.property.test_scans import table_of
from tests.support.entries import Epochs
from tests.support.examples import examples
from tests.support.key_strategies import COLUMNS, keys, order

Values = tuple[Any, ...]


class Asked(NamedTuple):
    """A scan of the only key group: map keys, keys, and how many entries before it goes on behind the last one."""

    map_start: Values
    map_stop: Values
    start: Values
    stop: Values
    descending: bool
    at_a_time: int


class Drawn(NamedTuple):
    """A state, its entries (key and map key), and scans of it."""

    of: StateDescriptor
    entries: list[tuple[Values, Values]]
    scans: list[Asked]


def _state(key: tuple[KeyColumn, ...], map_key: tuple[KeyColumn, ...]) -> StateDescriptor:
    renamed = tuple(KeyColumn(f"m{number}", column.type) for number, column in enumerate(map_key))
    schema = ValueSchema(1, (ValueField("n", "bigint"),))
    return StateDescriptor("app", "state", "main", StateKind.MAP, 1, key, schema, topic_id="topic", map_key=renamed)


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    of = _state(draw(COLUMNS), draw(COLUMNS))
    some_keys = draw(st.lists(keys(of.key), min_size=1, max_size=4))
    map_keys = draw(st.lists(keys(of.map_key), min_size=1, max_size=30))
    entry = st.tuples(st.sampled_from(some_keys), st.sampled_from(map_keys))
    bound = st.sampled_from(map_keys) | keys(of.map_key)
    key_bound = st.just(()) | st.sampled_from(some_keys)
    scan = st.builds(
        lambda start, first, stop, last, low, high, down, at_a_time: Asked(
            start[:first], stop[:last], low, high, down, at_a_time
        ),
        bound,
        st.integers(0, len(of.map_key)),
        bound,
        st.integers(0, len(of.map_key)),
        key_bound,
        key_bound,
        st.booleans(),
        st.integers(1, 40),
    )
    return Drawn(of, draw(st.lists(entry, max_size=80, unique=True)), draw(st.lists(scan, max_size=4)))


def _many() -> Drawn:
    """So many under each key that it is worth while to seek, on both sides of the range."""
    of = _state((KeyColumn("k", KeyType.STRING),), (KeyColumn("m", KeyType.INT),))
    entries = [((key,), (number,)) for key in ("", "a", "a\0", "\xff") for number in range(100)]
    bounds = [((40,), (43,)), ((40,), ()), ((), (3,)), ((200,), ()), ((), (-5,)), ((50,), (40,))]
    scans = [Asked(start, stop, (), (), down, 7) for start, stop in bounds for down in (False, True)]
    return Drawn(of, entries, scans)


def _wanted(drawn: Drawn, asked: Asked) -> list[tuple[Values, Values]]:
    found = [
        (key, map_key)
        for key, map_key in drawn.entries
        if order(map_key)[: len(asked.map_start)] >= order(asked.map_start)
        and (not asked.map_stop or order(map_key)[: len(asked.map_stop)] < order(asked.map_stop))
        and order(key)[: len(asked.start)] >= order(asked.start)
        and (not asked.stop or order(key)[: len(asked.stop)] < order(asked.stop))
    ]
    return sorted(found, key=lambda entry: (order(entry[0]), order(entry[1])), reverse=asked.descending)


def _found(table: Table, asked: Asked) -> list[tuple[Values, Values]]:
    """Some at a time: each scan goes on behind the last entry."""
    codec, found, after = table.codec, list[tuple[Values, Values]](), b""
    map_keys = codec.map_range(asked.map_start, asked.map_stop)
    start, stop = codec.key_range(asked.start, asked.stop)
    while True:
        within = codec.group_range(0, after, start, stop, map_keys, descending=asked.descending)
        scanned = table.scan(within, descending=asked.descending)
        given = [key for key, row in scanned.entries if row is not None][: asked.at_a_time]
        scanned.close()
        if not given:
            return found
        found += map(codec.entry, given)
        after = given[-1]


def check(drawn: Drawn, made: Callable[[StoreLimits], StoreEngine]) -> None:
    with table_of(drawn.of, made) as table:
        Epochs(table).commit({(*key, *map_key): encode_row(1, [1]) for key, map_key in drawn.entries})
        for asked in drawn.scans:
            assert _found(table, asked) == _wanted(drawn, asked)
        table.close()


@given(drawn())
@example(_many())
def test_a_range_of_map_keys_in_memory_is_that_of_a_filter(drawn: Drawn) -> None:
    check(drawn, lambda limits: MemoryEngine(limits.bytes))


@pytest.mark.parametrize("made", [LmdbEngine, RocksdbEngine])
@settings(max_examples=examples(20))
@given(drawn=drawn())
@example(drawn=_many())
def test_a_range_of_map_keys_on_disk_is_that_of_a_filter(
    drawn: Drawn, made: Callable[[StoreLimits], StoreEngine]
) -> None:
    check(drawn, made)


def test_the_store_is_asked_to_seek_and_what_is_stepped_over_is_told() -> None:
    of = _state((KeyColumn("k", KeyType.STRING),), (KeyColumn("m", KeyType.INT),))
    codec = StateCodec(of)
    stored = sorted(codec.storage_key((key, number)) for key in ("a", "b", "c") for number in range(10_000))
    assert {group_of(key) for key in stored} == {0}
    looked = asked = 0

    def items(start: bytes, stop: bytes | None, *, descending: bool) -> Iterator[tuple[bytes, bytes]]:
        nonlocal looked, asked
        asked += 1
        found = [key for key in stored if start <= key and (stop is None or key < stop)]
        for key in reversed(found) if descending else found:
            looked += 1
            yield key, b"row"

    for down in (False, True):
        looked = asked = 0
        within = codec.group_range(0, map_keys=codec.map_range((7_000,), (7_003,)), descending=down)
        came = list(
            entries_of_map_keys(
                lambda start, stop, down=down: items(start, stop, descending=down),
                within,
                key_length(codec.descriptor.scan_key),
                descending=down,
            )
        )
        wanted = [(7_000,), (7_001,), (7_002,)] * 3
        assert [codec.entry(key)[1] for key, entry in came if entry is not None] == wanted[:: -1 if down else 1]
        # All that it has looked at is told, so that other calls have their turn.
        assert len(came) == looked < 200
        assert asked <= 7
