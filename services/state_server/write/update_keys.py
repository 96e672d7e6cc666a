"""Storage keys of the keys of updates. A state's updates are mostly of keys that came before: those are remembered."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.json_values import key_reader
from keyhole.model.state import StateDescriptor, StateKind

_MOST_KEYS, _LONGEST = 65_536, 256
"""Of a state on a server: how many keys, and the bytes of each with the characters of its texts. A time may come with
any number of digits, and its storage key stays short."""


class UpdateKeys:
    """Of one state. Host thread only; a state's key columns stay for as long as it lives."""

    def __init__(self, descriptor: StateDescriptor) -> None:
        self._codec = StateCodec(descriptor)
        self._key = key_reader(descriptor.key)
        self._map_key = key_reader(descriptor.map_key) if descriptor.map_key else None
        self._of_prefix = descriptor.kind is StateKind.LIST
        self._known: dict[Hashable, bytes] = {}

    def of(self, key: list[Any], map_key: list[Any] | None) -> bytes:
        """The storage key of an entry; in a list, or without the map key that the state has, what all storage keys of
        the key begin with.

        Raises:
            KeyMismatch, NullKey: It does not fit the state.
        """
        name: Hashable
        if map_key is None and len(key) == 1 and type(key[0]) is str:
            name = key[0]
        else:
            # With the types: true is 1 to a dict. No text is a tuple.
            parts = (*key, None, *(map_key or ()), map_key is None)
            name = (parts, tuple(map(type, parts)))
        try:
            found = self._known.get(name)
        except TypeError:  # an array, or an object, which no column takes
            return self._made(key, map_key)
        if found is None:
            found = self._made(key, map_key)
            texts = (part for part in (*key, *(map_key or ())) if type(part) is str)
            if len(found) + sum(map(len, texts)) <= _LONGEST:
                if len(self._known) >= _MOST_KEYS:
                    self._known.clear()  # as quick as any order, and those that come often are soon back
                self._known[name] = found
        return found

    def _made(self, key: list[Any], map_key: list[Any] | None) -> bytes:
        values = self._key(key)
        if self._of_prefix or (self._map_key is not None and map_key is None):
            return self._codec.prefix(_one(values))
        if self._map_key is not None:
            assert map_key is not None
            values += self._map_key(map_key)
        return self._codec.storage_key(_one(values))


def _one(values: tuple[Any, ...]) -> Any:
    """As the codec takes a key: the value itself where there is one column."""
    return values[0] if len(values) == 1 else values
