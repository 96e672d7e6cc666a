"""Hypothesis strategies for keys."""

from __future__ import annotations

import datetime as dt
from typing import Any

from hypothesis import strategies as st

from keyhole.model.state import KeyColumn, KeyType


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


VALUES: dict[KeyType, st.SearchStrategy[Any]] = {
    KeyType.STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text("\0\1a", max_size=5),
    KeyType.BINARY: st.binary(max_size=12) | st.lists(st.sampled_from([0, 1, 255]), max_size=5).map(bytes),
    KeyType.BOOLEAN: st.booleans(),
    KeyType.SMALLINT: _integers(16),
    KeyType.INT: _integers(32),
    KeyType.BIGINT: _integers(64),
    KeyType.DATE: st.dates(),
    KeyType.TIMESTAMP: st.datetimes(timezones=st.just(dt.UTC)),
}
COLUMNS = st.lists(st.sampled_from(list(KeyType)), min_size=1, max_size=4).map(
    lambda kinds: tuple(KeyColumn(f"c{number}", kind) for number, kind in enumerate(kinds))
)


def keys(columns: tuple[KeyColumn, ...]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*(VALUES[column.type] for column in columns))


def order(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """As the encoding must sort: strings by their UTF-8 bytes, all else as Python does."""
    return tuple(value.encode() if isinstance(value, str) else value for value in values)
