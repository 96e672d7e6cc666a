"""Between which keys a predicate can be true of anything: one range of bytes. Pure.

    customer = 'a'                          of the key (customer, day): all that begin with 'a'
    customer = 'a' and day >= '2026-01-01'  of those the ones from that day on
    customer in ('a', 'c') and total > 5    from 'a' to 'c'
    day >= '2026-01-01'                     all: the first column may be anything

It may hold keys that the predicate is not true of, and lacks none that it is true of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from keyhole.encoding.index_ranges import ValueRange, value_ranges
from keyhole.encoding.indexed_fields import THERE, IndexBound, whole_bound
from keyhole.encoding.key_codec import encode_bytes, end_of_prefix
from keyhole.encoding.key_values import BYTES
from keyhole.encoding.predicate_binding import Bound, BoundField
from keyhole.model.state import KeyColumn, KeyType


class EncodedKeys(NamedTuple):
    """Encoded keys, map keys included, without their key group: from `first` (inclusive) to `end` (exclusive).

    Attributes:
        end: None: there is no bound.
    """

    first: bytes
    end: bytes | None


ALL_KEYS = EncodedKeys(b"", None)
_NONE = EncodedKeys(b"\1", b"\1")


def key_range(of: Bound, columns: Sequence[KeyColumn]) -> EncodedKeys:
    """Where whatever the predicate is true of stands.

    Args:
        columns: Of the key, and behind them those of the map key.
    """
    before = b""
    for at, column in enumerate(columns):
        ranges = value_ranges(of, partial(_is, at), _BOUNDS[column.type])
        if ranges is None:
            break
        # A column of a key is never null.
        if not ranges or ranges[-1].end <= THERE:
            return _NONE
        found = ValueRange(max(ranges[0].first, THERE), ranges[-1].end)
        if not found.is_one_value:
            end = before + found.end[len(THERE) :] if found.end.startswith(THERE) else end_of_prefix(before)
            return EncodedKeys(before + found.first[len(THERE) :], end)
        before += found.first[len(THERE) :]
    return EncodedKeys(before, end_of_prefix(before))


def _is(at: int, asked: BoundField) -> bool:
    return asked.in_key and not asked.inner and asked.at == at


def _exactly(encode: Callable[[Any], bytes], value: Any) -> IndexBound:
    return IndexBound(THERE + encode(value), exact=True)


_BOUNDS: dict[KeyType, Callable[[Any], IndexBound]] = {
    KeyType.STRING: partial(_exactly, lambda value: encode_bytes(value.encode())),
    KeyType.BINARY: partial(_exactly, encode_bytes),
    KeyType.BOOLEAN: partial(_exactly, lambda value: b"\1" if value else b"\0"),
    **{kind: partial(whole_bound, width) for kind, width in BYTES.items()},
}
