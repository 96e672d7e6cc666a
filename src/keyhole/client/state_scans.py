"""All keys of a state, as a stream: `async for entry in client.scan_all("shop", "orders"): ...`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from keyhole.client.wire.key_group_reads import EntriesRead
from keyhole.model.read import KeyedEntry


class AsyncStateScan:
    """One pass over all keys of a state, on the client's event loop. It asks once the first entry is asked for.

        async with client.scan_all("shop", "orders") as entries:
            async for entry in entries:
                ...

    Each pass is made once: a second loop over it goes on where the first one was left, also where that one ended with
    an error. Behind an error it asks anew, and what it reads then is as of then.
    """

    def __init__(
        self,
        begin: Callable[[str | None, int | None], AsyncGenerator[EntriesRead]],
        limit: int | None,
        after: str | None,
        typed: Callable[[Any], Any] | None = None,
    ) -> None:
        self._begin = begin
        self._left = limit
        self._after = after
        self._typed = typed
        self._closed = False
        self._pages: AsyncGenerator[EntriesRead] | None = None
        self._read: EntriesRead | None = None
        # Of the entries of `_read`.
        self._given = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

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

    async def __aiter__(self) -> AsyncIterator[KeyedEntry]:
        while await self.more():
            for entry in self.given():
                yield entry

    async def page(self) -> Sequence[KeyedEntry]:
        """The next entries, as many as have come together; none: there are no more. Raises as AsyncClient.scan_all."""
        await self.more()
        before = self._given, self._left
        try:
            return list(self.given())
        except BaseException:
            # The caller has none of them.
            self._given, self._left = before
            raise

    async def more(self) -> bool:
        """Waits for entries that can be `given`. False: there are no more. Raises as AsyncClient.scan_all."""
        if self._read is not None and self._given < len(self._read.entries):
            return True
        if self._closed or self.done or self._left == 0:
            return False
        if self._pages is None:
            self._pages = self._begin(self.token, self._left)
        try:
            async for read in self._pages:
                self._read, self._given = read, 0
                if read.entries:
                    return True
        except BaseException:
            # It gives nothing any more, which must not be taken for the end.
            self._pages = None
            raise
        return False

    def given(self) -> Iterator[KeyedEntry]:
        """The entries that have come and were not given, each of which is given then. Sends nothing."""
        while self._read is not None and self._given < len(self._read.entries):
            entry = self._read.entries[self._given]
            if self._typed is not None:
                entry = entry._replace(value=self._typed(entry.value))
            self._given += 1
            if self._left is not None:
                self._left -= 1
            yield entry

    def of_type(self, typed: Callable[[Any], Any]) -> AsyncStateScan:
        """The same scan, not begun, with other values: what the function makes of each row."""
        return AsyncStateScan(self._begin, self._left, self._after, typed)

    async def close(self) -> None:
        """Ends the scan; the server lets go of what it kept for it. Idempotent."""
        self._closed = True
        if self._pages is not None:
            await self._pages.aclose()


class StateScan:
    """As AsyncStateScan, for threads: it blocks while entries are waited for. Used by one thread at a time."""

    def __init__(self, run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any], of: AsyncStateScan) -> None:
        self._run = run
        self._of = of

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def of_type(self, typed: Callable[[Any], Any]) -> StateScan:
        """The same scan, not begun, with what the function makes of each row as values."""
        return StateScan(self._run, self._of.of_type(typed))

    @property
    def token(self) -> str | None:
        """Where a later scan goes on: see AsyncStateScan.token."""
        return self._of.token

    @property
    def done(self) -> bool:
        """All of the state was given."""
        return self._of.done

    def __iter__(self) -> Iterator[KeyedEntry]:
        while self._run(self._of.more):
            yield from self._of.given()

    def page(self) -> Sequence[KeyedEntry]:
        """The next entries; none: there are no more. Blocks. Raises as Client.scan_all."""
        page: Sequence[KeyedEntry] = self._run(self._of.page)
        return page

    def close(self) -> None:
        """Ends the scan. Blocks. Idempotent."""
        self._run(self._of.close)
