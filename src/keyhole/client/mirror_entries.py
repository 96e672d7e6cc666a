"""Which entries of a mirror are of one key, in order: an index that is made once somebody scans. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keyhole.encoding.codec import EntryRange, StateCodec
from keyhole.encoding.storage_key import GROUP_BYTES


class EntriesByKey:
    """Storage keys without their key group, by the key that they are of; of a state that has map keys, or positions.

    Args:
        encoded: All that there are.
    """

    def __init__(self, codec: StateCodec, encoded: Iterable[bytes]) -> None:
        self._decode_first = codec.keys.decode_first
        self._of: dict[bytes, set[bytes]] = {}
        for entry in encoded:
            self.add(entry)

    def add(self, encoded: bytes) -> None:
        """There is one more. Idempotent."""
        self._of.setdefault(self._key_of(encoded), set()).add(encoded)

    def remove(self, encoded: bytes) -> None:
        """One that there was is gone."""
        key = self._key_of(encoded)
        entries = self._of[key]
        entries.discard(encoded)
        if not entries:
            del self._of[key]

    def within(self, of: EntryRange, *, descending: bool) -> Sequence[bytes]:
        """Those of a range, in the order of their map keys, or from the last one down."""
        start, stop = of.start[GROUP_BYTES:], None if of.stop is None else of.stop[GROUP_BYTES:]
        entries = self._of.get(of.prefix[GROUP_BYTES:], ())
        found = [entry for entry in entries if start <= entry and (stop is None or entry < stop)]
        return sorted(found, reverse=descending)

    def _key_of(self, encoded: bytes) -> bytes:
        _, rest = self._decode_first(encoded)
        return encoded[: len(encoded) - len(rest)]
