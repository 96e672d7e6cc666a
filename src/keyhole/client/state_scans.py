"""All keys of a state, as a stream: `async for entry in client.scan_all("shop", "orders"): ...`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from keyhole.client.arrow_tables import (
    ROWS_TOGETHER,
    EntryTables,
    check_pandas,
    check_polars,
    data_frame,
    polars_frame,
)
from keyhole.client.item_streams import AsyncItemStream, ItemStream
from keyhole.client.wire.key_group_reads import EntriesRead
from keyhole.errors import ClientClosed, Unsupported
from keyhole.model.read import KeyedEntry
from keyhole.model.selection import EVERYTHING, Selection

if TYPE_CHECKING:
    import pyarrow as pa

_Place = tuple[str | None, int | None]
"""The token behind which a scan goes on, and how many entries are left of its limit."""


class AsyncStateScan(AsyncItemStream[EntriesRead, KeyedEntry]):
    """One pass over all keys of a state, on the client's event loop. It asks once the first entry is asked for.

        async with client.scan_all("shop", "orders") as entries:
            async for entry in entries:
                ...

    Each pass is made once: a second loop over it goes on where the first one was left, also where that one ended with
    an error. Behind an error it asks anew, and what it reads then is as of then. `page` gives the next entries, as many
    as have come together; none: there are no more. `to_arrow` and its like give all that are left as one table.
    """

    def __init__(
        self,
        begin: Callable[[str | None, int | None], AsyncGenerator[EntriesRead]],
        limit: int | None,
        after: str | None,
        typed: Callable[[Any], Any] | None = None,
        select: Selection = EVERYTHING,
    ) -> None:
        super().__init__(typed)
        self._begin = begin
        self._select = select
        # Before the entries of `_read`.
        self._limit = limit
        self._after = after

    @property
    def token(self) -> str | None:
        """Where a later scan goes on behind the entries that were given, as its `after`. None: all were given, or none
        and there was no `after`.
        """
        return self._after if self._read is None else self._read.token(self._given)

    @property
    def done(self) -> bool:
        """All of the state was given."""
        return self._read is not None and self.token is None

    @property
    def _left(self) -> int | None:
        return None if self._limit is None else self._limit - self._given

    async def more(self) -> bool:
        """Waits for entries that can be `given`. False: there are no more. Raises as AsyncClient.scan_all."""
        self._check_alone()
        if self._waits:
            return True
        if self._closed or self.done or self._left == 0:
            return False
        if self._messages is None:
            self._messages = self._begin(self.token, self._left)
        try:
            while (read := await self._received(self._messages)) is not None:
                self._limit = self._left
                self._read, self._given = read, 0
                if read.entries:
                    return True
        except BaseException:
            # It gives nothing any more, which must not be taken for the end.
            self._messages = None
            raise
        return False

    def _items(self, read: EntriesRead) -> Sequence[KeyedEntry]:
        return read.entries

    def _retyped(self, item: KeyedEntry, typed: Callable[[Any], Any]) -> KeyedEntry:
        return item._replace(value=typed(item.value))

    def of_type(self, typed: Callable[[Any], Any]) -> AsyncStateScan:
        """The same scan, not begun, with other values: what the function makes of each row."""
        return AsyncStateScan(self._begin, self._limit, self._after, typed, self._select)

    async def to_arrow(self) -> pa.Table:
        """All entries that were not given yet, as one Arrow table. Needs the extra `arrow`.

        Its columns are those of the key, of the map key (of a list `position`) and of the value, or the `fields` that
        were asked for; of the types that SQL and Spark have (docs/values.md). They are as stored, whatever type the
        values of a handle are of. An error leaves the scan where it was before, as if nothing had been read.

        Raises:
            InvalidConfiguration: pyarrow is not installed; the message names the extra.
            ValueMismatch: A column of the key and a field of the value have one name: leave it out, by `fields`.
            StaleDescriptor: A field has got another type since the scan began.
            Unsupported: The scan was closed.
            KeyholeError: As AsyncClient.scan_all.
        """
        place = self._place()
        try:
            tables, batches = await self._tables(), []
            while rows := await self._rows(ROWS_TOGETHER):
                batches.append(tables.batch(rows))
            return tables.table(batches)
        except BaseException:
            await self._back_to(place)
            raise

    async def to_pandas(self, **options: Any) -> Any:
        """All entries that were not given yet, as a pandas DataFrame. Needs the extra `pandas`.

        Whole numbers and booleans are pandas' Int64, boolean and the like, so that a null makes no floats of them.

        Args:
            options: Of pyarrow's Table.to_pandas, as `types_mapper=pandas.ArrowDtype`, which keeps all types.

        Raises:
            KeyholeError: As `to_arrow`.
        """
        check_pandas()
        return data_frame(await self.to_arrow(), **options)

    async def to_polars(self) -> Any:
        """All entries that were not given yet, as a polars DataFrame, as `to_arrow`. Needs the extra `polars`."""
        check_polars()
        return polars_frame(await self.to_arrow())

    async def arrow_batches(self) -> AsyncGenerator[pa.RecordBatch]:
        """The entries as Arrow batches of the columns of `to_arrow`, as many in each as have come together.

            async for batch in client.scan_all("shop", "orders").arrow_batches():
                ...

        The next ones are asked for once the next batch is: a slow reader costs no memory. The `token` is behind the
        batch that was given last. Where the scan is closed before its end, what is left raises Unsupported. Else raises
        as `to_arrow`.
        """
        tables = await self._tables()
        while rows := await self._rows():
            yield self._batch(tables, rows)

    def _batch(self, tables: EntryTables, rows: Sequence[KeyedEntry]) -> pa.RecordBatch:
        """Of the entries that were given last, which are given again where no batch can be made of them."""
        try:
            return tables.batch(rows)
        except BaseException:
            self._given -= len(rows)
            raise

    async def _tables(self) -> EntryTables:
        """Once it has read something, so that the columns are known. Raises as `to_arrow`."""
        await self.more()
        if self._closed or self._read is None:
            raise _was_closed()
        return EntryTables(self._read.descriptor, self._select)

    async def _rows(self, together: int = 1) -> list[KeyedEntry]:
        """The next entries as they are stored, at least so many where there are; none: there are no more."""
        rows: list[KeyedEntry] = []
        while len(rows) < together and await self.more() and (read := self._read) is not None:
            rows += read.entries[self._given :]
            self._given = len(read.entries)
        if not rows and self._closed and not self.done and self._left != 0:
            # A part must not be taken for all of it.
            raise _was_closed()
        return rows

    def _place(self) -> _Place | None:
        """Where it is; None: at its end."""
        return None if self.done else (self.token, self._left)

    async def _back_to(self, place: _Place | None) -> None:
        """What was given since is as if it had not been."""
        if place is None:
            return
        messages, self._messages, self._read, self._given = self._messages, None, None, 0
        self._after, self._limit = place
        if messages is not None:
            await messages.aclose()


def _was_closed() -> Unsupported:
    return Unsupported("the scan was closed: make another one, which can begin behind its token")


class StateScan(ItemStream[KeyedEntry]):
    """As AsyncStateScan, for threads: it blocks while entries are waited for. Used by one thread at a time."""

    def __init__(self, run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any], of: AsyncStateScan) -> None:
        super().__init__(run, of)
        self._of: AsyncStateScan = of

    def of_type(self, typed: Callable[[Any], Any]) -> StateScan:
        """The same scan, not begun, with what the function makes of each row as values."""
        return StateScan(self._run, self._of.of_type(typed))

    def to_arrow(self) -> pa.Table:
        """All entries that were not given yet, as one Arrow table; see AsyncStateScan.to_arrow. Blocks."""
        place = self._of._place()
        try:
            tables: EntryTables = self._run(self._of._tables)
            # Made in this thread: the client's own goes on with what others read.
            return tables.table(map(tables.batch, self._read_on(ROWS_TOGETHER)))
        except BaseException:
            # A client that was closed goes on with no scan.
            with contextlib.suppress(ClientClosed):
                self._run(lambda: self._of._back_to(place))
            raise

    def to_pandas(self, **options: Any) -> Any:
        """All entries that were not given yet, as a pandas DataFrame; see AsyncStateScan.to_pandas. Blocks."""
        check_pandas()
        return data_frame(self.to_arrow(), **options)

    def to_polars(self) -> Any:
        """All entries that were not given yet, as a polars DataFrame. Blocks. Needs the extra `polars`."""
        check_polars()
        return polars_frame(self.to_arrow())

    def arrow_batches(self) -> pa.RecordBatchReader:
        """The entries as a stream of Arrow batches, which whatever reads Arrow can take; see
        AsyncStateScan.arrow_batches.

            with client.scan_all("shop", "orders") as scan:
                pyarrow.dataset.write_dataset(scan.arrow_batches(), "orders", format="parquet")

        Blocks until the first entries have come; the reader blocks while it waits for more. Any one thread may read it.
        """
        tables: EntryTables = self._run(self._of._tables)
        return tables.reader(self._of._batch(tables, rows) for rows in self._read_on())

    def _read_on(self, together: int = 1) -> Iterator[Sequence[KeyedEntry]]:
        while rows := self._run(lambda: self._of._rows(together)):
            yield rows

    @property
    def done(self) -> bool:
        """All of the state was given."""
        return self._of.done
