"""What one server can answer from of one state: the copy that it owns, and the one that it follows as a standby."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from keyhole.encoding.codec import EntryRange
from keyhole.encoding.envelope import Visible
from keyhole.encoding.storage_key import GROUP_BYTES, group_of, prefix_of
from keyhole.errors import NotReady
from keyhole.model.epoch import EpochStamp, Position
from keyhole.model.read import ReadBounds
from keyhole.stores.base import Snapshot
from keyhole.v1 import state_pb2
from services.state_server.read.bounds_check import BoundsCheck
from services.state_server.read.copy_answers import CopyAnswers
from services.state_server.read.held_snapshot import HeldSnapshot
from services.state_server.read.indexed_scans import FoundEntries, IndexedScan
from services.state_server.read.kept_epochs import KeptEpoch, KeptEpochs
from services.state_server.read.map_ranges import entries_of_map_keys
from services.state_server.read.staged_over import StagedOver
from services.state_server.read.standing import Standing, as_of_its_epoch

Show = Callable[[EpochStamp], Visible]
"""By the epoch that the copy stands for: what readers get now of what is stored."""


MOST_STAGED_BYTES = 16 << 20
"""Of a key group, what a scan of the latest may keep in memory of what is staged, until its reader has read it."""


class Scanned:
    """The entries of a range as of one snapshot, and who answers. Close it: until then it keeps the snapshot.

    Attributes:
        entries: (storage key, row), read as they are asked for; None in place of a row that has expired. NotReady once
            the store is closed.
        closed: The entries must not be read any more.
    """

    def __init__(self, entries: Iterator[tuple[bytes, bytes | None]], source: state_pb2.Source, held: HeldSnapshot):
        self.entries = entries
        self.source = source
        self.closed = False
        self._held = held

    def close(self) -> None:
        """Lets go of the snapshot. Idempotent."""
        if not self.closed:
            self.closed = True
            # Whoever does not read on keeps neither rows nor a snapshot.
            self.entries = iter(())
            self._held.release()


def _nothing() -> None:
    """Whom nobody has asked to tell, tells nobody."""


class Copy:
    """Some key groups of a state as of one snapshot. Used by the event loop's thread alone.

    Args:
        source: Makes the source of answers that stand so.
        moment: What else goes into it; it is made anew only when this, or the standing, has changed.
        bounds: Says whether that is what a reader asks for.
        kept: How many epochs can be read by their number, the published one included.

    Attributes:
        groups: The key groups that it answers for.
        standing: Of all of them but those that were published apart.
        whole: These are all that the state has.
        kept: The epochs before the one that is published which can be read by their number.
        staged: What is staged of the key groups, for reads of the latest; None: nothing can be.
        on_change: Is called whenever something of the above has changed, or the snapshot, in the same step.
    """

    def __init__(
        self,
        key_groups: int,
        source: Callable[[Standing], state_pb2.Source],
        moment: Callable[[], object],
        bounds: BoundsCheck,
        kept: int = 1,
    ) -> None:
        self.groups: frozenset[int] = frozenset()
        self.standing = Standing()
        self.whole = False
        self.staged: StagedOver | None = None
        self.on_change: Callable[[], None] = _nothing
        self._key_groups = key_groups
        self._make_source = source
        self._moment = moment
        self._bounds = bounds
        self._snapshot: Snapshot | None = None
        self._held: HeldSnapshot | None = None
        self._sequence = -1
        self._prefixes: frozenset[bytes] = frozenset()
        self._apart: dict[bytes, Standing] = {}
        self._source: state_pb2.Source | None = None
        self._source_moment: object = None
        self.kept = KeptEpochs(kept)

    def publish(
        self,
        snapshot: Snapshot,
        groups: frozenset[int],
        standing: Standing,
        apart: Mapping[int, Standing],
        sequence: int = 0,
    ) -> None:
        """Swaps snapshot, key groups and standings in one step; takes the snapshot over.

        Args:
            apart: Key groups that stand elsewhere than `standing`.
            sequence: Of the view, in the order in which they were taken; an older one than the last changes nothing.
        """
        if sequence < self._sequence:
            snapshot.close()
            return
        if self._held is not None:
            self._keep_or_release(self._held, standing)
        self._snapshot, self._held, self._sequence = snapshot, HeldSnapshot(snapshot), sequence
        self.stand(standing, apart)
        self._hold(groups)

    def _keep_or_release(self, held: HeldSnapshot, after: Standing) -> None:
        """What was published until now is kept where it is of another epoch than what is published next."""
        epoch = self.standing.stamp.epoch
        if epoch and epoch != after.stamp.epoch:
            self.kept.replaced(KeptEpoch(self.standing, held, self._prefixes - self._apart.keys()))
        else:
            held.release()

    def publish_changes(self, snapshot: Snapshot, apart: Mapping[int, Standing], over: int, sequence: int) -> bool:
        """Swaps the snapshot, and what these key groups stand for. Others, and which there are, are as they were.

        Args:
            over: The view that must be the last one that was published.

        Returns:
            Whether it was: else nothing has changed, and the snapshot is the caller's.
        """
        if self._held is None or self._sequence != over:
            return False
        self._held.release()
        self._snapshot, self._held, self._sequence = snapshot, HeldSnapshot(snapshot), sequence
        self._apart |= {prefix_of(group): other for group, other in apart.items()}
        self._source = None
        self.on_change()
        return True

    def renew(self, snapshot: Snapshot, positions: Mapping[int, Position]) -> bool:
        """Shows the same by a later view of the store, which has been written to otherwise since.

        Args:
            positions: Of key groups that nobody but their owner writes, as this view has them.

        Returns:
            Whether it is taken over. Not where it would show more: the snapshot is the caller's then.
        """
        if self._held is None or not self.groups or not all(map(positions.__contains__, self.groups)):
            return False
        shown = {group: self._apart.get(prefix_of(group), self.standing).stamp.epoch for group in self.groups}
        if any(positions[group].epoch > epoch for group, epoch in shown.items()):
            return False
        self._held.release()
        self._snapshot, self._held = snapshot, HeldSnapshot(snapshot)
        self.on_change()
        return True

    def stand(self, standing: Standing, apart: Mapping[int, Standing]) -> None:
        """The same rows turn out to stand for more, or are known to lack more."""
        self.standing = standing
        self._apart = {prefix_of(group): other for group, other in apart.items() if other != standing}
        self._source = None
        self.on_change()

    def withdraw(self, groups: Collection[int]) -> None:
        """Stops answering for key groups, at once."""
        if groups:
            self._hold(self.groups - frozenset(groups))

    def cover(self, groups: frozenset[int]) -> None:
        """Answers for these from now on, and for no others, from the same snapshot."""
        self._hold(groups)

    def _hold(self, groups: frozenset[int]) -> None:
        self.groups = groups
        self._prefixes = frozenset(prefix_of(group) for group in groups)
        self.whole = len(groups) == self._key_groups
        if not groups:
            self.kept.clear()
        self.on_change()

    @property
    def shown(self) -> tuple[Snapshot | None, Mapping[bytes, Standing]]:
        """What is published, as long as nothing else is; and which key groups, as prefixes, stand apart. Not a copy."""
        return self._snapshot, self._apart

    @property
    def prefixes(self) -> frozenset[bytes]:
        """Of the key groups that it answers for: what their storage keys begin with."""
        return self._prefixes

    def covers(self, keys: Sequence[bytes]) -> bool:
        """Whether it can answer for all of them. In one pass: a lookup frame has hundreds of keys."""
        prefixes = self._prefixes
        return self._snapshot is not None and (self.whole or all(key[:GROUP_BYTES] in prefixes for key in keys))

    def holds(self, key: bytes) -> bool:
        return self._snapshot is not None and key[:GROUP_BYTES] in self._prefixes

    def _standings(self, keys: Sequence[bytes]) -> Sequence[Standing]:
        """Per key; one alone where all stand alike."""
        if not self._apart:
            return (self.standing,)
        return [self._apart.get(key[:GROUP_BYTES], self.standing) for key in keys]

    @property
    def all_standings(self) -> Collection[Standing]:
        """What any of its key groups stands for."""
        return {self._apart.get(prefix, self.standing) for prefix in self._prefixes} or (self.standing,)

    def answers(self, keys: Sequence[bytes], bounds: ReadBounds, show: Show | None, most_bytes: int) -> CopyAnswers:
        """Rows by storage key.

        Args:
            keys: All must be covered.
            show: None: readers get what is stored.
            most_bytes: No more is read, but for the first row.

        Raises:
            Unconfirmed, EpochNotReached, TooStale: See BoundsCheck.check.
            EpochNotReached, EpochGone: See `_as_of`.
            ValueMismatch: What is staged can't be merged with what is stored; asked for the latest alone.
        """
        assert self._snapshot is not None
        if bounds.as_of:
            standing, held = self._as_of(keys, bounds)
            rows, large = held.snapshot.get_first(keys, most_bytes)
            return CopyAnswers(
                rows if show is None else show(standing.stamp).rows(rows), (self._make_source(standing),), (), large
            )
        standings = self._standings(keys)
        self._bounds.check(keys, standings, bounds)
        rows, large = self._snapshot.get_first(keys, most_bytes)
        if bounds.latest and self.staged is not None:
            return self._latest(keys, rows, show, self.staged)
        if len(standings) > 1:
            standings = standings[: len(rows)]
        distinct = list(dict.fromkeys(standings)) if len(standings) > 1 else standings
        if len(distinct) == 1:
            source = self.source() if distinct[0] is self.standing else self._make_source(distinct[0])
            return CopyAnswers(rows if show is None else show(distinct[0].stamp).rows(rows), (source,), (), large)
        index = {standing: i for i, standing in enumerate(distinct)}
        source_of = [index[standing] for standing in standings]
        if show is not None:
            shown = [show(standing.stamp) for standing in distinct]
            rows = [None if row is None else shown[i].row(row) for row, i in zip(rows, source_of, strict=True)]
        return CopyAnswers(rows, [self._make_source(standing) for standing in distinct], source_of, large)

    def _latest(
        self, keys: Sequence[bytes], rows: list[bytes | None], show: Show | None, staged: StagedOver
    ) -> CopyAnswers:
        """Rows by storage key, as they would be if what is staged were committed now.

        Args:
            rows: What is stored of the first keys.
        """
        assert self._snapshot is not None
        places: dict[bytes, list[int]] = {}
        for place in range(len(rows)):
            places.setdefault(keys[place][:GROUP_BYTES], []).append(place)
        source_of = [0] * len(rows)
        known: dict[tuple[Standing, int], int] = {}
        for prefix, of in places.items():
            standing = self._apart.get(prefix, self.standing)
            entries, stamp, epoch = [rows[place] for place in of], standing.stamp, 0
            laid = staged.of(prefix, stamp)
            if laid is not None:
                entries = laid.over([keys[place] for place in of], entries, self._snapshot)
                stamp, epoch = laid.stamp, laid.stamp.epoch
            # By the epoch's own watermark, rows expire that have not been written again.
            shown = entries if show is None else show(stamp).rows(entries)
            index = known.setdefault((standing, epoch), len(known))
            for place, row in zip(of, shown, strict=True):
                rows[place], source_of[place] = row, index
        sources = []
        for standing, epoch in known:
            source = self._make_source(standing)
            source.staged_epoch = epoch
            sources.append(source)
        return CopyAnswers(rows, sources, source_of, large=True)

    def scan(
        self,
        within: EntryRange,
        bounds: ReadBounds,
        show: Show | None,
        key_length: Callable[[bytes], int] = len,
        *,
        descending: bool,
        indexed: IndexedScan | None = None,
    ) -> Scanned:
        """The entries of a range, whose key group must be covered, as of now however long they are read.

        Args:
            show: None: readers get what is stored.
            key_length: How many bytes of an encoded key, behind the key group, come before the map key.
            indexed: What may be left out; the range is a whole key group, or a part of it. None: nothing.

        Raises:
            Unconfirmed, EpochNotReached, TooStale: See BoundsCheck.check.
            EpochNotReached, EpochGone: See `_as_of`.
        """
        assert self._held is not None
        if bounds.as_of:
            standing, shared = self._as_of((within.prefix,), bounds)
        else:
            standings = self._standings((within.prefix,))
            self._bounds.check((within.prefix,), standings, bounds)
            standing, shared = standings[0], self._held
        held = shared.hold()
        group = group_of(within.prefix)
        items = functools.partial(held.snapshot.items, group, descending=descending)
        entries: FoundEntries
        if indexed is not None:
            entries = indexed.entries(held.snapshot, within, descending=descending)
        elif within.is_of_map_keys:
            entries = entries_of_map_keys(items, within, key_length, descending=descending)
        else:
            entries = items(within.start, within.stop)
        stamp, source = standing.stamp, self.source() if standing is self.standing else self._make_source(standing)
        laid = None
        if bounds.latest and self.staged is not None:
            laid = self.staged.of(prefix_of(group), stamp, MOST_STAGED_BYTES)
        if laid is not None:
            entries = laid.scanned(entries, within, held.snapshot, descending=descending)
            stamp, source = laid.stamp, self._make_source(standing)
            source.staged_epoch = stamp.epoch
        if show is not None:
            # What expires while it is read stays until the end.
            row, found = show(stamp).row, entries
            entries = ((key, entry and row(entry)) for key, entry in found)
        return Scanned(entries, source, held)

    def _as_of(self, keys: Sequence[bytes], bounds: ReadBounds) -> tuple[Standing, HeldSnapshot]:
        """What the copy holds as of one epoch, for as long as nothing is published. Keys, or what they begin with.

        Raises:
            Unconfirmed: See BoundsCheck.check.
            EpochNotReached: It has not come to the epoch.
            EpochGone: It has, and has not kept what it held then; or it has these key groups since a later one.
        """
        assert self._held is not None
        standings = self._standings(keys)
        self._bounds.check(keys, standings, bounds)
        epochs = {standing.stamp.epoch for standing in standings}
        if epochs == {bounds.as_of}:
            return as_of_its_epoch(standings[0], self.standing), self._held
        self._bounds.check_epoch(min(epochs), bounds.as_of, "as_of")
        kept = self.kept.of(bounds.as_of, {key[:GROUP_BYTES] for key in keys})
        if kept is None:
            raise self._bounds.gone(bounds.as_of, self.kept.oldest or max(epochs))
        return as_of_its_epoch(kept.standing, self.standing), kept.held

    def hold(self) -> HeldSnapshot:
        """Takes a share in what is published. Raises NotReady: nothing is."""
        if self._held is None:
            raise NotReady("nothing of the state is published on this server")
        return self._held.hold()

    def source(self) -> state_pb2.Source:
        """What answers as of now name as their source."""
        moment = self._moment()
        if self._source is None or self._source_moment != moment:
            self._source, self._source_moment = self._make_source(self.standing), moment
        return self._source

    def whole_source(self) -> state_pb2.Source:
        """The same of all of its key groups: it is as old as the oldest."""
        return self._make_source(replace(self.standing, as_of_ms=min(of.as_of_ms for of in self.all_standings)))

    def close(self) -> None:
        """Lets go of the snapshot; the copy holds no key group from then on. Idempotent."""
        if self._held is not None:
            self._held.release()
            self._snapshot = self._held = None
        self.kept.clear()
        self._hold(frozenset())
