"""Which keys of a state a scan of all keys is of, as the caller gave them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from keyhole.encoding.codec import StateCodec
from keyhole.model.selection import Selection


class KeyBounds(NamedTuple):
    """Values of the first columns of keys, and of the map keys under each; none: no bound."""

    start: Sequence[Any] = ()
    stop: Sequence[Any] = ()
    prefix: Sequence[Any] = ()
    map_start: Sequence[Any] = ()
    map_stop: Sequence[Any] = ()

    def encoded(self, codec: StateCodec) -> tuple[bytes, bytes]:
        """As bytes: inclusive and exclusive. Raises KeyMismatch, NullKey, MalformedRequest: as `key_range`."""
        return codec.key_range(self.start, self.stop, self.prefix)

    def encoded_map_keys(self, codec: StateCodec) -> tuple[bytes, bytes]:
        """The same of the map keys under each key. Raises KeyMismatch, NullKey, Unsupported: as `map_range`."""
        return codec.map_range(self.map_start, self.map_stop)


ALL_KEYS = KeyBounds()


class AskedKeys(NamedTuple):
    """What a scan of all keys was asked for, beside limit and token.

    Attributes:
        select: Which entries, and what of each.
        ordered: In the order of keys; `descending`: from the last one down, which is an order, too.
        key_groups: These alone; None: all.
        number: By which its calls are known as of one scan; 0: by another one each time.
    """

    select: Selection
    within: KeyBounds = ALL_KEYS
    ordered: bool = False
    descending: bool = False
    key_groups: range | None = None
    number: int = 0


def key_bounds(start: Any, stop: Any, prefix: Any, map_start: Any = None, map_stop: Any = None) -> KeyBounds:
    """Of what a caller gives: None, a value, or a tuple of one for each column."""
    return KeyBounds(*map(columns_given, (start, stop, prefix, map_start, map_stop)))


def columns_given(given: Any) -> Sequence[Any]:
    """The columns of a bound, as it was given: None: none, one value, or several."""
    return () if given is None else tuple(given) if isinstance(given, (tuple, list)) else (given,)
