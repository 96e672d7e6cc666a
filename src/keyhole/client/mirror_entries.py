"""Which entries of a mirror are of one key, in order: an index that is made once somebody scans. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keyhole.encoding.codec import EntryRange, StateCodec
from keyhole.encoding.key_reading import key_length
from keyhole.encoding.storage_key import GROUP_BYTES


class EntriesByKey:
    """Storage keys without their key group, by the key that they are of; of a state that has map keys, or positions.

    Args:
        encoded: All that there are.
    """

    def __init__(self, codec: StateCodec, encoded: Iterable[bytes]) -> None:
        self._length = key_length(codec.descriptor.scan_key)
        self._of: dict[bytes, set[bytes]] = {}
        self.change(encoded, ())

    def change(self, come: Iterable[bytes], gone: Iterable[bytes]) -> None:
        """Those have come, and these, of which each was there, are gone."""
        for entry in come:
            self._of.setdefault(self._key_of(entry), set()).add(entry)
        for entry in gone:
            key = self._key_of(entry)
            entries = self._of[key]
            entries.discard(entry)
            if not entries:
                del self._of[key]

    def within(self, of: EntryRange, *, descending: bool) -> Sequence[bytes]:
        """Those of a range, in the order of their map keys, or from the last one down."""
        start, stop = of.start[GROUP_BYTES:], None
        if of.stop is not None and of.stop[:GROUP_BYTES] == of.prefix[:GROUP_BYTES]:
            # Else it is where the next key group begins.
            stop = of.stop[GROUP_BYTES:]
        entries = self._of.get(of.prefix[GROUP_BYTES:], ())
        found = [entry for entry in entries if start <= entry and (stop is None or entry < stop)]
        return sorted(found, reverse=descending)

    def _key_of(self, encoded: bytes) -> bytes:
        return encoded[: self._length(encoded)]
