"""What a reader process knows of its server's tables, and answers from their stores. Event loop's thread only."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

from keyhole.clock import Clock
from keyhole.encoding.storage_key import GROUP_BYTES, group_of
from keyhole.errors import KeyholeError, NotReady
from keyhole.metrics.counters import ReadCounts
from keyhole.rpc.read_requests import KeyLookup
from keyhole.stores.base import Snapshot, Store, StoreFiles, commit_of
from keyhole.v1 import query_pb2
from services.state_server.read.copies import Copy
from services.state_server.read.standing import Lease
from services.state_server.read.table import Table
from services.state_server.readers.reader_words import CopiesBehind, CopyShown, Shown, TableShown
from services.state_server.readers.shared_count import SharedCount
from services.state_server.servicers.lookup_responses import whole_response

_log = logging.getLogger(__name__)


class ReadableStore(Protocol):
    """A store that is open to be read alone."""

    @property
    def max_key_bytes(self) -> int: ...

    def snapshot(self) -> Snapshot: ...

    def close(self) -> None: ...


class LostWordError(Exception):
    """The reader is to end; another one is told all."""


class _ReadTable:
    """One table.

    Attributes:
        current: It answers as the server's own does.
        behind: Which copies can't be shown here, as the store has gone on behind them.
    """

    def __init__(self, number: int, table: Table, store: ReadableStore, lease: Lease) -> None:
        self.table = table
        self.store = store
        self.lease = lease
        self.current = False
        self.behind = CopiesBehind(number, owned=False, standby=False)

    def close(self) -> None:
        self.table.close()
        self.store.close()


class ReadTables:
    """See the module's text.

    Args:
        server: The name of the server, as answers have it.
        count: Of changes in the server. Where it is another one than it has heard of last, nothing is answered.
        open_files: Opens a store of the server to read it. Raises NotReady: it is gone.

    Attributes:
        reads: What was looked up, by application and state.
    """

    def __init__(
        self, server: str, count: SharedCount, clock: Clock, open_files: Callable[[StoreFiles], ReadableStore]
    ) -> None:
        self._server = server
        self._count = count
        self._clock = clock
        self._open_files = open_files
        self._heard = -1
        self._known: dict[int, _ReadTable] = {}
        self._by_name: dict[tuple[str, str], _ReadTable] = {}
        # Whose stores can't be read, and why: in the log it stands once.
        self._unreadable: dict[int, str] = {}
        self.reads: dict[tuple[str, str], ReadCounts] = {}

    def answer(self, lookup: KeyLookup, frame: int) -> query_pb2.LookupResponse | None:
        """What the server would answer now; None: it has to say itself.

        That is so where anything fails, too: only the server knows all that there is to say of it.
        """
        if self._count.value != self._heard:
            return None
        known, bounds = self._by_name.get(lookup.state), lookup.bounds
        if known is None or not known.current or bounds.as_of or bounds.latest:
            return None
        try:
            return whole_response(known.table, lookup, frame)
        except KeyholeError:
            return None

    @property
    def behind(self) -> tuple[CopiesBehind, ...]:
        """Of what later views of the stores are wanted: these frames are the server's until then."""
        return tuple(known.behind for known in self._known.values() if known.behind.owned or known.behind.standby)

    def take(self, shown: Shown) -> None:
        """The server's tables are so by now.

        Raises:
            LostWordError: What the server has said before has not come: nothing that is known here can be trusted.
        """
        if shown.since > self._heard:
            raise LostWordError(f"the server has said {shown.since}, and {self._heard} was heard")
        for number in shown.gone:
            self._close(number)
            self._unreadable.pop(number, None)
        for of in shown.tables:
            try:
                self._take(of)
            except Exception as error:  # noqa: BLE001 - whatever it is, the server goes on to answer for the table
                self._say_unreadable(of, error)
                self._close(of.number)
            else:
                self._unreadable.pop(of.number, None)
        self._heard = shown.count

    def _say_unreadable(self, of: TableShown, error: Exception) -> None:
        why = error.message if isinstance(error, KeyholeError) else f"{type(error).__name__}: {error}"
        facts = {"application": of.descriptor.application, "state": of.descriptor.state, "why": why}
        if self._unreadable.get(of.number) == why:
            return
        self._unreadable[of.number] = why
        if isinstance(error, NotReady):
            _log.info("a store is not there any more to be read, and the server answers", extra=facts)
        else:
            _log.error("a store can't be read, so the server answers alone", extra=facts, exc_info=error)

    def close(self) -> None:
        """Lets go of all stores."""
        for number in list(self._known):
            self._close(number)

    def _close(self, number: int) -> None:
        known = self._known.pop(number, None)
        if known is not None:
            name = known.table.descriptor.application, known.table.descriptor.state
            if self._by_name.get(name) is known:
                del self._by_name[name]
            known.close()

    def _take(self, shown: TableShown) -> None:
        known = self._known.get(shown.number) or self._opened(shown)
        known.lease.confirmed_monotonic, known.lease.confirmed_ms = shown.confirmed_monotonic, shown.confirmed_ms
        table = known.table
        if table.evolve(shown.descriptor):
            # Epochs before the last one are the server's.
            table.owned.kept.keep_at_most(1)
        owned = _show(table.owned, shown.owned, known.store)
        # Where the standby's is not here, its key groups are refused, and so passed on.
        standby = _show(table.standby, shown.standby, known.store)
        known.current, known.behind = owned, CopiesBehind(shown.number, not owned, not standby)

    def _opened(self, shown: TableShown) -> _ReadTable:
        descriptor = shown.descriptor
        store = self._open_files(StoreFiles(Path(shown.path), shown.limit_bytes))
        lease = Lease(self._clock, shown.lease_seconds)
        try:
            # Of its store it asks no more than this one has, as long as nobody scans or watches.
            table = Table(self._server, descriptor, cast("Store", store), lease)
        except BaseException:
            store.close()
            raise
        name = descriptor.application, descriptor.state
        table.owned.kept.keep_at_most(1)
        # Also what was counted of it before it was made anew.
        table.reads = self.reads.setdefault(name, ReadCounts())
        known = self._known[shown.number] = _ReadTable(shown.number, table, store, lease)
        self._by_name[name] = known
        return known


def _show(copy: Copy, shown: CopyShown, store: ReadableStore) -> bool:
    """Shows the same as the server's copy. Returns False where the store has gone on, and shows nothing then."""
    if shown.commit is None or not shown.prefixes:
        copy.close()
        return True
    prefixes = (shown.prefixes[at : at + GROUP_BYTES] for at in range(0, len(shown.prefixes), GROUP_BYTES))
    groups = frozenset(map(group_of, prefixes))
    apart = {group_of(prefix): standing for prefix, standing in shown.apart.items()}
    held, _ = copy.shown
    if held is not None and commit_of(held) == shown.commit:
        copy.stand(shown.standing, apart)
        copy.cover(groups)
        return True
    snapshot = store.snapshot()
    if commit_of(snapshot) == shown.commit:
        copy.publish(snapshot, groups, shown.standing, apart)
        return True
    # The server has written since, and shows that later: a view of the commit before can't be had any more.
    snapshot.close()
    copy.close()
    return False
