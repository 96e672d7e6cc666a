"""The rows that a mirror has, as any thread reads them: at any moment whole epochs of each key group.

What has expired is not shown, by this machine's clock or by the watermark, though its deletion has yet to come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from keyhole.client.mirror_entries import EntriesByKey
from keyhole.client.mirror_intake import EXPIRES_BYTES, MirrorIntake
from keyhole.client.scanned_entries import ScannedEntries
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.key_reading import entry_reader
from keyhole.encoding.storage_key import GROUP_BYTES, group_of
from keyhole.model.epoch import NO_EPOCH
from keyhole.model.read import Answer, Entry, KeyedEntry, ReadBounds, Role, Source, Stale
from keyhole.rpc.convert import time_from_ms
from keyhole.rpc.scan_requests import check_has_entries

# Longer than a watch says nothing where nothing changes.
_UNTOLD_SECONDS = 2.5


class MirrorCopy(MirrorIntake):
    """One copy; see the module's text. One thread takes messages in, any thread reads."""

    @property
    def whole(self) -> bool:
        """All rows that were there have come, and it is known up to which epoch all has, if there was one.

        Of a state that is fed by updates each key group's mark says it. Where nobody says it for a while, the copy is
        whole for all that.
        """
        if self._done_at is None or not self._told:
            return False
        none = not any(stamp.epoch for stamp in self._epochs.values())
        return self._complete.epoch > 0 or self._fed or none or self._monotonic() - self._done_at > _UNTOLD_SECONDS

    @property
    def entries(self) -> int:
        """Counts the entries that it shows, of map and list states all of each key. With a ttl it looks at each."""
        if self._row_at == GROUP_BYTES:
            return len(self._rows)
        with self._lock:
            kept, now = list(self._rows.values()), {group: self._now_ms(group) for group in self._epochs}
        return sum(not _expired(stored, now[group_of(stored)]) for stored in kept)

    @property
    def size(self) -> int:
        """About what its entries take, in bytes."""
        return self._bytes

    @property
    def epoch(self) -> int:
        """The last one of which all has been taken in; 0: none, or the state is fed by updates."""
        return self._complete.epoch

    @property
    def as_of_ms(self) -> int:
        """All that was committed by then has been taken in: milliseconds since 1970; 0: not known."""
        return self._as_of_ms

    @property
    def age_seconds(self) -> float:
        """How long ago that was, by whichever clock makes it longer."""
        with self._lock:
            if not self._as_of_ms:
                return float("inf")
            return max(0.0, self._monotonic() - self._heard, self._clock() - self._as_of_ms / 1000)

    @property
    def _known(self) -> StateCodec:
        return self._codec or self._nothing_yet(None)

    def holds(self, epochs: int | Mapping[int, int]) -> bool:
        """Whether all its key groups have this epoch, or those that are named the epochs that they are named with. Key
        groups that it has no key of are passed over, as a read of its keys passes over them.
        """
        with self._lock:
            if isinstance(epochs, Mapping):
                mine = {group: epoch for group, epoch in epochs.items() if group in self._epochs}
                return bool(self._epochs) and all(self._epoch_of(group) >= epoch for group, epoch in mine.items())
            return self._complete.epoch >= epochs or all(self._epoch_of(group) >= epochs for group in self._epochs)

    def reaches(self, other: MirrorCopy) -> bool:
        """Whether it is as far as another one, in each key group."""
        return all(self._epoch_of(group) >= other._epoch_of(group) for group in list(other._epochs))

    def _epoch_of(self, group: int) -> int:
        return max(self._complete.epoch, self._epochs.get(group, NO_EPOCH).epoch)

    def answer(self, key: Any) -> Answer:
        """As a lookup gives it. Raises as MirrorReads.get."""
        encoded = self._encode(key)
        with self._lock:
            kept = self._rows.get(encoded)
            if kept is None:
                return self._absent(key, encoded)
            group = group_of(kept)
            source = self._sources.get(group) or self._source(group)
            if self._row_at != GROUP_BYTES and _expired(kept, self._now_ms(group)):
                return Answer(False, None, source)
        return Answer(True, self._decode(kept[self._row_at :]), source)

    def answers(self, keys: Iterable[Any]) -> list[Answer]:
        """Of many keys, all of one moment of the copy. Raises as `answer`."""
        wanted = [(key, self._encode(key)) for key in keys]
        with self._lock:
            found = [self._found(key, encoded) for key, encoded in wanted]
            decode, row_at = self._decode, self._row_at
        return [
            Answer(True, decode(kept[row_at:]), source) if kept else Answer(False, None, source)
            for kept, source in found
        ]

    def _found(self, key: Any, encoded: bytes) -> tuple[bytes | None, Source]:
        kept = self._rows.get(encoded)
        if kept is None:
            return None, self._absent(key, encoded).source
        group = group_of(kept)
        if self._row_at != GROUP_BYTES and _expired(kept, self._now_ms(group)):
            kept = None
        return kept, self._source(group)

    def good_enough(self, key: Any, bounds: ReadBounds) -> Answer | None:
        """The answer, where it meets the bounds of a read; None: whoever reads must ask a server.

        Raises:
            KeyMismatch, NullKey: The key does not fit the state's.
        """
        if bounds.as_of or bounds.stale is Stale.NEVER or not self._extent.has(self._encode(key)):
            return None
        if bounds.max_staleness_ms and self.age_seconds * 1000 > bounds.max_staleness_ms:
            return None
        answer = self.answer(key)
        least = bounds.min_epoch
        if bounds.min_epochs:
            (least,) = bounds.least_of([group_of(self._known.storage_key(key))])
        return None if answer.epoch < least or (self._extent.some and not answer.found) else answer

    def entries_of(
        self, key: Any, within: tuple[Sequence[Any], Sequence[Any]], limit: int | None, *, descending: bool
    ) -> ScannedEntries:
        """The entries of one key. Raises as MirrorReads.scan."""
        codec = self._known
        check_has_entries(codec.descriptor)
        asked = codec.entry_range(key, *within)
        prefix, group = asked.prefix[GROUP_BYTES:], group_of(asked.prefix)
        if not self._extent.has_all_of(prefix):
            raise self._extent.refusal()
        with self._lock:
            if self._by_key is None:
                self._by_key = EntriesByKey(codec, self._rows)
            found = self._by_key.within(asked, descending=descending)
            if self._row_at != GROUP_BYTES:
                now_ms = self._now_ms(group)
                found = [encoded for encoded in found if not _expired(self._rows[encoded], now_ms)]
            found = found[:limit]
            kept, source, decode = [self._rows[encoded] for encoded in found], self._source(group), self._decode
        map_keys = [codec.entries.decode(encoded[len(prefix) :]) for encoded in found]
        entries = tuple(
            Entry(map_key[0] if len(map_key) == 1 else map_key, decode(row[self._row_at :]))
            for map_key, row in zip(map_keys, kept, strict=True)
        )
        return ScannedEntries(entries, source, key, codec.descriptor)

    def keyed_entries(self) -> Iterator[KeyedEntry]:
        """All of them, as of the moment of this call; in no order that means something."""
        with self._lock:
            kept = list(self._rows.items())
            sources = {group: self._source(group) for group in self._epochs}
            now = {group: self._now_ms(group) for group in self._epochs} if self._row_at != GROUP_BYTES else {}
            read, decode, row_at = entry_reader(self._known), self._decode, self._row_at

        def given() -> Iterator[KeyedEntry]:
            for encoded, stored in kept:
                group = group_of(stored)
                if not now or not _expired(stored, now[group]):
                    key, map_key = read(stored[:GROUP_BYTES] + encoded)
                    yield KeyedEntry(key, map_key, decode(stored[row_at:]), sources[group])

        return given()

    def _absent(self, key: Any, encoded: bytes) -> Answer:
        if not self._extent.has(encoded):
            raise self._extent.refusal()
        return Answer(False, None, self._source(group_of(self._known.storage_key(key))))

    def _source(self, group: int) -> Source:
        source = self._sources.get(group)
        if source is None:
            stamp = max(self._complete, self._epochs.get(group, NO_EPOCH))
            source = self._sources[group] = Source(
                server="",
                role=Role.MIRROR,
                epoch=stamp.epoch,
                commit_time=time_from_ms(stamp.commit_time_ms),
                watermark=time_from_ms(stamp.watermark_ms),
                generation=stamp.generation,
                assignment_version=0,
                unconfirmed=False,
                as_of=time_from_ms(self._as_of_ms),
            )
        return source

    def _now_ms(self, group: int) -> int:
        """By which entries of a key group are expired or not: by the watermark, or by this machine's clock."""
        of_group = self._epochs.get(group, NO_EPOCH)
        if self._by_watermark:
            return max(self._complete.watermark_ms, of_group.watermark_ms)
        # What has expired stays so, should the clock be set back, or be behind.
        committed_ms = max(self._complete.commit_time_ms, of_group.commit_time_ms)
        self._latest_ms = max(self._latest_ms, int(self._clock() * 1000), committed_ms)
        return self._latest_ms


def _expired(kept: bytes, now_ms: int) -> bool:
    """Whether an entry of a state with a ttl is shown no more."""
    return 0 < int.from_bytes(kept[GROUP_BYTES : GROUP_BYTES + EXPIRES_BYTES], "big") <= now_ms
