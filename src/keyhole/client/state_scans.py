"""All keys of a state, as a stream: `async for entry in client.scan_all("shop", "orders"): ...`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

from keyhole.client.item_streams import AsyncItemStream, ItemStream
from keyhole.client.wire.key_group_reads import EntriesRead
from keyhole.model.read import KeyedEntry


class AsyncStateScan(AsyncItemStream[EntriesRead, KeyedEntry]):
    """One pass over all keys of a state, on the client's event loop. It asks once the first entry is asked for.

        async with client.scan_all("shop", "orders") as entries:
            async for entry in entries:
                ...

    Each pass is made once: a second loop over it goes on where the first one was left, also where that one ended with
    an error. Behind an error it asks anew, and what it reads then is as of then. `page` gives the next entries, as many
    as have come together; none: there are no more.
    """

    def __init__(
        self,
        begin: Callable[[str | None, int | None], AsyncGenerator[EntriesRead]],
        limit: int | None,
        after: str | None,
        typed: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(typed)
        self._begin = begin
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
        if self._waits:
            return True
        if self._closed or self.done or self._left == 0:
            return False
        if self._messages is None:
            self._messages = self._begin(self.token, self._left)
        try:
            async for read in self._messages:
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
        return AsyncStateScan(self._begin, self._limit, self._after, typed)


class StateScan(ItemStream[KeyedEntry]):
    """As AsyncStateScan, for threads: it blocks while entries are waited for. Used by one thread at a time."""

    def __init__(self, run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any], of: AsyncStateScan) -> None:
        super().__init__(run, of)
        self._of: AsyncStateScan = of

    def of_type(self, typed: Callable[[Any], Any]) -> StateScan:
        """The same scan, not begun, with what the function makes of each row as values."""
        return StateScan(self._run, self._of.of_type(typed))

    @property
    def done(self) -> bool:
        """All of the state was given."""
        return self._of.done
