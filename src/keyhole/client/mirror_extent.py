"""Of which keys a mirror is, and what of that it can say of a key that it doesn't have. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from keyhole.client.wire.watch_stream import WatchOptions
from keyhole.encoding.codec import StateCodec
from keyhole.errors import MalformedRequest


class MirrorExtent:
    """See the module's text. It has nothing before `describe`.

    Args:
        name: Of the state, for messages.
        asked: What is watched for the mirror.
    """

    def __init__(self, name: str, asked: WatchOptions) -> None:
        self._name = name
        self._asked = asked
        self._exact = frozenset[bytes]()
        self._prefixes = frozenset[bytes]()
        # Of the prefixes, each once: there may be thousands of keys.
        self._lengths: Sequence[int] = ()
        self._start = self._stop = b""

    def describe(self, codec: StateCodec) -> None:
        """The state's keys are encoded so. Raises KeyMismatch, NullKey: A key or a bound does not fit it."""
        of_key, of_entry = len(codec.descriptor.scan_key), len(codec.descriptor.entry_key)
        exact, prefixes = set[bytes](), set[bytes]()
        for key in self._asked.keys:
            given = len(key) if isinstance(key, (tuple, list)) else 1
            if of_key and of_entry and given == of_key:
                prefixes.add(codec.keys.encode(key))
            else:
                exact.add(codec.encoded_key(key))
        self._exact, self._prefixes = frozenset(exact), frozenset(prefixes)
        self._lengths = sorted({len(prefix) for prefix in prefixes})
        self._start, self._stop = self._asked.within.encoded(codec)

    @property
    def some(self) -> bool:
        """Whether it has some of its keys' entries alone: what it doesn't have may be there for all that."""
        return self._asked.select.where is not None

    def has(self, encoded: bytes) -> bool:
        """Whether the entry of a storage key, without its key group, is of it."""
        if self._asked.keys:
            return encoded in self._exact or any(encoded[:length] in self._prefixes for length in self._lengths)
        return encoded >= self._start and (not self._stop or encoded < self._stop)

    def has_all_of(self, key: bytes) -> bool:
        """Whether all entries of an encoded key are of it."""
        if self._asked.keys:
            return key in self._prefixes
        # The key of all entries of a broadcast state is empty: a range has some of them.
        return not (self._start or self._stop) or (key != b"" and self.has(key))

    def refusal(self) -> MalformedRequest:
        """The error for a key that it is not of."""
        of = f"{len(self._asked.keys):,} keys" if self._asked.keys else "a range of keys"
        return MalformedRequest(
            f"the mirror of {self._name} is of {of}, and this is none of them: name it, too, where the mirror is made, "
            "or read it by `fetch` or by the client"
        )
