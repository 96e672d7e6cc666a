"""Whether keys can be storage keys of a state, in the store that has its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keyhole.encoding.storage_key import are_storage_keys
from keyhole.errors import KeyTooLong, MalformedRequest


@dataclass(frozen=True)
class KeyCheck:
    """Of one state.

    Attributes:
        name: Of the state, for messages.
        most_bytes: The longest key that its store takes.
    """

    name: str
    key_groups: int
    most_bytes: int

    def check(self, keys: Sequence[bytes]) -> None:
        """Raises MalformedRequest: not storage keys of the state; KeyTooLong: longer than the store takes."""
        # One call in C each: a lookup frame has hundreds of keys.
        if not are_storage_keys(keys, self.key_groups):
            raise MalformedRequest(f"not storage keys of state {self.name}: 2 bytes of key group, then the encoded key")
        if (longest := max(map(len, keys))) > self.most_bytes:
            raise self.too_long(longest)

    def too_long(self, size: int) -> KeyTooLong:
        """The error for a key of so many bytes: no such key can be in the store."""
        return KeyTooLong(
            f"a key of state {self.name} takes {size} bytes; the store takes {self.most_bytes}, so no such key can be "
            "in it",
            limit=self.most_bytes,
        )
