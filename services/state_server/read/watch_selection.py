"""What one watch gives of the rows and the changes of its state: all of them, or those that it selects."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from weakref import WeakValueDictionary

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.entry_filter import StoredEntry
from keyhole.encoding.envelope import Visible, expiry_ms
from keyhole.encoding.index_ranges import IndexedValues
from keyhole.encoding.selected_changes import SelectedChanges, ShownChange
from keyhole.model.epoch import NO_EPOCH
from keyhole.rpc.watch_requests import WatchAsked
from services.state_server.read.table import Table
from services.state_server.read.watch_messages import Sent
from services.state_server.read.watcher import Changed, Pending, RestOfEpoch

# Of one epoch's changes, the predicates whose work is kept for others.
_MOST_KEPT = 16
_PUT, _HAD, _BITS = 1, 2, 2


class Selections:
    """What the watches of a server select, made once for all that select alike. Event loop."""

    def __init__(self) -> None:
        self._made: WeakValueDictionary[Hashable, SelectedChanges] = WeakValueDictionary()

    def of(self, codec: StateCodec, asked: WatchAsked) -> SelectedChanges:
        """Raises ValueMismatch: The state, as the codec has it, has no such field, or of another type."""
        alike = (codec, asked.select.fields, asked.predicate, asked.as_json)
        made = self._made.get(alike)
        if made is None:
            made = self._made[alike] = SelectedChanges(codec.descriptor, asked.select, as_json=asked.as_json)
        return made


class WatchSelection:
    """Of one watch. It goes by the state's newest schema. Event loop.

    Args:
        turn: About how many changes, or entries, are tested in one turn of the event loop.

    Raises:
        ValueMismatch: The state has no such field, or of another type.

    Attributes:
        wants_befores: What was there before is to be kept of what is written.
    """

    def __init__(self, table: Table, asked: WatchAsked, selections: Selections, turn: int) -> None:
        self._table = table
        self._asked = asked
        self._selections = selections
        self._codec = table.codec
        self._select = None if asked.select.is_all else selections.of(table.codec, asked)
        self.wants_befores = asked.before or (self._select is not None and self._select.of_rows)
        self.turn = turn if self._select is None else max(1, turn // self._select.entries.cost)

    def shared(self, pending: Pending, most_changes: int, most_bytes: int, make: Callable[[], Sent]) -> Sent | None:
        """What all are sent of an epoch who watch the whole of the state; None: this watch is sent something else, or
        it is too much for one message.
        """
        rest = pending.changes
        if not isinstance(rest, RestOfEpoch) or rest.skip or self._select is not None or self._asked.before:
            return None
        epoch = rest.epoch
        if not epoch.changes or len(epoch.changes) > min(most_changes, self.turn) or epoch.size > most_bytes:
            return None
        alike = (self._table.codec, self._asked.as_json)
        if (sent := epoch.shared.get(alike)) is None:
            sent = make()
            if epoch.recent:
                epoch.shared[alike] = sent
        return sent

    def _newest(self) -> SelectedChanges | None:
        """Raises ValueMismatch: What is selected by is gone from the state."""
        if self._select is not None and self._codec is not self._table.codec:
            self._codec = self._table.codec
            self._select = self._selections.of(self._codec, self._asked)
        return self._select

    @property
    def indexed(self) -> Sequence[IndexedValues]:
        """What it asks of indexes. Raises ValueMismatch."""
        select = self._newest()
        return () if select is None else select.entries.indexed

    def kept(self, entries: Sequence[StoredEntry]) -> Sequence[StoredEntry]:
        """The rows that are given, of those that there are. Raises ValueMismatch, StaleDescriptor."""
        select = self._newest()
        return entries if select is None else select.entries.kept(entries)

    def values(self, rows: Sequence[bytes]) -> list[bytes]:
        """What is sent of each row. Raises ValueMismatch, StaleDescriptor."""
        select = self._newest()
        if select is not None:
            return select.entries.values(rows)
        return self._table.codec.rows.each_to_json(list(rows)) if self._asked.as_json else list(rows)

    def given(self, pending: Pending) -> Iterator[Sequence[ShownChange]]:
        """What is given of an epoch, in portions of one turn each. Raises ValueMismatch, StaleDescriptor."""
        select = self._newest()
        shown = self._shown(pending)
        if select is None or not select.tests:
            for batch in _batches(pending.changes, self.turn):
                yield shown(batch)
        elif isinstance(pending.changes, RestOfEpoch):
            yield from self._of_whole(pending.changes, select, shown)
        else:
            for batch in _batches(pending.changes, self.turn):
                yield select.given(shown(batch), known=pending.known)

    def _shown(self, pending: Pending) -> Callable[[Sequence[Changed]], list[ShownChange]]:
        """What readers see of changes, and of what was before them."""
        stamp = pending.after.stamp
        # What has expired meanwhile a reader still has: as of no time nothing has.
        of_before = NO_EPOCH if self._asked.predicate else stamp
        show, show_before = self._table.committed.show(stamp), self._table.committed.show(of_before)
        befores, expires = pending.known and self.wants_befores, self._table.descriptor.ttl_ms > 0

        def shown(changes: Sequence[Changed]) -> list[ShownChange]:
            return [
                ShownChange(
                    of.number,
                    of.key,
                    _row(show, of.entry),
                    _row(show_before, of.before) if befores else None,
                    expiry_ms(of.entry) if expires and of.entry is not None else 0,
                )
                for of in changes
            ]

        return shown

    def _of_whole(
        self, rest: RestOfEpoch, select: SelectedChanges, shown: Callable[[Sequence[Changed]], list[ShownChange]]
    ) -> Iterator[Sequence[ShownChange]]:
        """Of all changes of an epoch behind the first ones. What is found is kept for others with the predicate."""
        epoch, turn = rest.epoch, self.turn
        assert epoch.changes is not None
        known, most = epoch.befores is not None, _MOST_KEPT * (1 + len(epoch.changes) // turn)
        for first in range(rest.skip // turn * turn, len(epoch.changes), turn):
            batch = [epoch.at(number) for number in range(first, min(first + turn, len(epoch.changes)))]
            # What was there before is not looked at where a key alone decides, unless it is asked for.
            alike = (self._asked.predicate, self._codec, self.wants_befores, first)
            found = epoch.selected.get(alike)
            if found is None:
                given = select.given(shown(batch), known=known)
                if epoch.recent and len(epoch.selected) < most:
                    epoch.selected[alike] = array("Q", map(_spelled, given))
            else:
                of_batch = [(code, batch[(code >> _BITS) - first]) for code in found]
                given = [
                    change._replace(
                        row=change.row if code & _PUT else None, before=change.before if code & _HAD else None
                    )
                    for (code, _), change in zip(of_batch, shown([of for _, of in of_batch]), strict=True)
                ]
            yield [change for change in given if change.number >= rest.skip] if first < rest.skip else given


def _spelled(change: ShownChange) -> int:
    return change.number << _BITS | (change.row is not None and _PUT) | (change.before is not None and _HAD)


def _row(show: Visible | None, entry: bytes | None) -> bytes | None:
    return entry if entry is None or show is None else show.row(entry)


def _batches(changes: Iterable[Changed], most: int) -> Iterator[list[Changed]]:
    left = iter(changes)
    while batch := list(itertools.islice(left, most)):
        yield batch
