"""How rows of updates come together with what is stored, and what is removed once it has expired: by the log's time.

Nothing here depends on when an owner commits, or on what was removed before: an entry that has expired by the log
counts as absent, whether it is still there or not.
"""

from __future__ import annotations

from dataclasses import replace

from keyhole.encoding.envelope import Lifetime, Moment, lifetime
from keyhole.encoding.key_codec import end_of_prefix
from keyhole.model.state import StateDescriptor, StateKind
from keyhole.stores.base import Snapshot
from keyhole.stores.overlay import Overlay, OverlaySnapshot
from services.state_server.write.merge import merge_of
from services.state_server.write.merging import CommitContext, EntryChange, Stored, StoredValues
from services.state_server.write.ttl_gc import Sweeper, Written
from services.state_server.write.update_reader import POSITION_BYTES


class UpdateMerge:
    """Of one key group. Host thread only.

    Attributes:
        expires: The time at which updates are merged counts.
    """

    def __init__(self, descriptor: StateDescriptor, key_group: int) -> None:
        self._merge = merge_of(descriptor)
        self._key_group = key_group
        lives = lifetime(descriptor)
        self._lives = lives
        self._list_expires = lives is not None and descriptor.kind is StateKind.LIST
        # Of other rules there is a new one, which begins a round.
        self._sweeper = None if lives is None else Sweeper(lives, lambda: 0)

    @property
    def expires(self) -> bool:
        return self._lives is not None

    def with_stored(self, rows: StoredValues, stored: Stored, time_ms: int) -> list[EntryChange]:
        """See merging.Merge. `time_ms`: of the log."""
        if self._lives is not None and self._list_expires:
            rows = self._begun_anew(rows, stored, self._lives, time_ms)
        now = _moment(time_ms)
        return self._merge.with_stored(rows, stored, CommitContext(0, now, now))

    def _begun_anew(self, rows: StoredValues, stored: Stored, lives: Lifetime, time_ms: int) -> StoredValues:
        """Lists of which all has expired are cleared. So their elements count from 0, whatever was removed already."""
        prefixes = dict.fromkeys(key[:-POSITION_BYTES] for key, row in rows.items() if row is not None)
        cleared = {prefix: None for prefix in prefixes if not self._lives_any(prefix, stored, lives, time_ms)}
        return {**rows, **cleared} if cleared else rows

    def _lives_any(self, prefix: bytes, stored: Stored, lives: Lifetime, time_ms: int) -> bool:
        """Whether an element of a list lives: nearly always the last one, but a ttl may have become shorter."""
        lives_from = lives.lives_from(_moment(time_ms))
        found = stored.items(self._key_group, prefix, end_of_prefix(prefix), descending=True)
        return any(lives.living([entry], lives_from) != [None] for _, entry in found)

    def _without_ends(self, found: list[EntryChange], view: Stored, time_ms: int) -> list[EntryChange]:
        """Without the last element of a list of which others live: the next one's position is counted from it."""
        assert self._lives is not None
        kept = set()
        gone = {key for key, row in found if row is None}
        for prefix in dict.fromkeys(key[:-POSITION_BYTES] for key in gone):
            last, _ = next(view.items(self._key_group, prefix, end_of_prefix(prefix), descending=True))
            if last in gone and self._lives_any(prefix, view, self._lives, time_ms):
                kept.add(last)
        return [change for change in found if change[0] not in kept]

    def sweep(self, stored: Snapshot, overlay: Overlay, time_ms: int, entries: int) -> Overlay:
        """The overlay with the removal of some rows that have expired by the log; see GroupFeed.sweep."""
        if self._sweeper is None or self._lives is None:
            return overlay
        of_group = overlay.of(self._key_group)
        self._sweeper.limits = replace(self._sweeper.limits, entries=entries)
        # What was written since it looked last expires later than all that it had to reckon with then.
        now = _moment(time_ms)
        view = OverlaySnapshot(stored, overlay)
        passed = self._sweeper.begin(
            view, CommitContext(0, now, now), Written(len(of_group), sum(len(row or b"") for _, row in of_group))
        )
        stamp_of, is_deletion = self._lives.stamp_of, self._lives.is_deletion
        deletions = [(key, row) for key, row in of_group if row is not None and is_deletion(row)]
        if deletions:
            self._sweeper.wrote([min(deletions, key=lambda change: stamp_of(change[1]))])
        if passed is None:
            return overlay
        found = passed.of(self._key_group, written=True)
        if self._list_expires:
            found = self._without_ends(found, view, time_ms)
        self._sweeper.done(passed)
        return overlay.changed(found)


def _moment(time_ms: int) -> Moment:
    """Never 0, at which no time is known."""
    return Moment(max(1, time_ms), 0)
