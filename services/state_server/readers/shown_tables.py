"""What the readers of a server are sent of its tables. Event loop's thread only.

Each change of what readers of the server are answered is counted at once, in memory that the readers look at before
each answer. So no reader answers anything from before a change once that has been made: until it has heard of it,
it passes frames on to the server. The server waits for no reader.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Collection

from keyhole.model.state import TtlClock
from keyhole.stores.base import StoreFiles, commit_of, shared_store
from services.state_server.read.copies import Copy
from services.state_server.read.table import Table
from services.state_server.readers.reader_words import CopyShown, Shown, TableShown
from services.state_server.readers.shared_count import SharedCount


class ShownTables:
    """See the module's text.

    Args:
        count: Of changes.
        tell: Is called with what has changed, soon after each change.
    """

    def __init__(self, count: SharedCount, tell: Callable[[Shown], None]) -> None:
        self._count = count
        self._tell = tell
        self._numbers = itertools.count(1)
        self._known: dict[Table, int] = {}
        self._changed: dict[Table, None] = {}
        self._telling: asyncio.Handle | None = None
        self._said = 0
        self._over = False

    def changed(self, table: Table) -> None:
        """What is read of the table has changed in this step, or it is new."""
        if self._over:
            return
        if table not in self._known:
            if files_of(table) is None:
                return
            self._known[table] = next(self._numbers)
            table.owned.on_change = table.standby.on_change = functools.partial(self.changed, table)
        self._count.count()
        self._changed[table] = None
        if self._telling is None:
            # In the next turn of the loop: a change is mostly several.
            self._telling = asyncio.get_running_loop().call_soon(self._tell_changed)

    def end(self) -> None:
        """No reader is left to be sent anything."""
        self._over = True
        if self._telling is not None:
            self._telling.cancel()

    def all(self) -> Shown:
        """Of all tables, for a reader that knows none."""
        return Shown(
            -1, self._count.value, tuple(_shown(self._known[of], of) for of in self._known if _is_read(of)), ()
        )

    def numbered(self, numbers: Collection[int]) -> dict[int, Table]:
        """Those of the tables that are known still."""
        return {number: table for table, number in self._known.items() if number in numbers} if numbers else {}

    def _tell_changed(self) -> None:
        changed, self._changed, self._telling = self._changed, {}, None
        gone = [self._known[table] for table in changed if not _is_read(table)]
        tables = [_shown(self._known[table], table) for table in changed if _is_read(table)]
        for table in changed:
            if table.changes.closed:
                del self._known[table]
        since, self._said = self._said, self._count.value
        self._tell(Shown(since, self._said, tuple(tables), tuple(gone)))


def files_of(table: Table) -> StoreFiles | None:
    """The files by which readers may answer for it; None: they may not.

    What is fed by updates is in memory until it is committed.
    """
    store = shared_store(table.store)
    return None if store is None or table.descriptor.updates_topic_id else store.files


def _is_read(table: Table) -> bool:
    """Whether readers answer for it.

    What has expired once by the clock must stay so when the clock is set back, whoever has shown it: what was shown
    last is known to one process alone.
    """
    by_clock = bool(table.descriptor.ttl_ms) and table.descriptor.ttl_clock is TtlClock.PROCESSING_TIME
    return not table.changes.closed and not by_clock


def _shown(number: int, table: Table) -> TableShown:
    files, lease = files_of(table), table.lease
    assert files is not None
    return TableShown(
        number,
        table.descriptor,
        str(files.path),
        files.limit_bytes,
        lease.confirmed_monotonic,
        lease.confirmed_ms,
        lease.seconds,
        _copy(table.owned),
        _copy(table.standby),
    )


def _copy(copy: Copy) -> CopyShown:
    snapshot, apart = copy.shown
    commit = None if snapshot is None else commit_of(snapshot)
    prefixes = b"".join(sorted(copy.prefixes))
    return CopyShown(commit, prefixes, copy.standing, dict(apart))
