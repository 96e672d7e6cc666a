"""What changes in a state, as a stream: `async for change in client.watch("shop", "orders"): ...`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from keyhole.client.wire.watch_stream import WatchMessage
from keyhole.encoding.watch_token import has_rows_left
from keyhole.model.change import StateChange


class AsyncWatch:
    """A watch, on the client's event loop. It asks once the first change is asked for.

        async with client.watch("shop", "orders") as changes:
            async for change in changes:
                ...

    It has no end of its own: leave the loop, and close it. Where its connection, a proxy or an owner goes, it goes on
    by itself. After an error, another one goes on behind its `token`.
    """

    def __init__(
        self,
        begin: Callable[[str], AsyncGenerator[WatchMessage]],
        after: str | None,
        typed: Callable[[Any], Any] | None = None,
    ) -> None:
        self._begin = begin
        self._after = after
        self._typed = typed
        self._closed = False
        self._messages: AsyncGenerator[WatchMessage] | None = None
        self._read: WatchMessage | None = None
        # Of the changes of `_read`.
        self._given = 0
        self._done = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def token(self) -> str | None:
        """Where a later watch of the same keys goes on behind the changes that were given, as its `after`: nothing is
        missed, and nothing comes twice. None: nothing has come, and there was no `after`.
        """
        return self._after if self._read is None else self._read.token(self._given) or None

    @property
    def snapshot_done(self) -> bool:
        """Whether all rows that were there when it began were given. Not of a watch that goes on from a token."""
        return self._done and (self._read is None or self._given == len(self._read.changes))

    @property
    def as_of(self) -> datetime | None:
        """All that was committed by then was given, once all that has come is; UTC. None: not known."""
        return None if self._read is None else self._read.as_of

    @property
    def epoch(self) -> int:
        """The last epoch of which all was given, once all that has come is; 0: none. Of a state that is fed by
        updates, 0.
        """
        return 0 if self._read is None else self._read.epoch

    async def __aiter__(self) -> AsyncIterator[StateChange]:
        while await self.more():
            for change in self.given():
                yield change

    async def page(self) -> Sequence[StateChange]:
        """The next changes, as many as have come together; none where nothing has changed for a while, or it was
        closed. Raises as AsyncClient.watch.
        """
        await self.more()
        return list(self.given())

    async def more(self) -> bool:
        """Waits for the next message, whose changes can be `given`. False: it was closed. Raises as
        AsyncClient.watch.
        """
        if self._read is not None and self._given < len(self._read.changes):
            return True
        if self._closed:
            return False
        if self._messages is None:
            self._messages = self._begin(self.token or "")
        try:
            read = await anext(self._messages, None)
        except BaseException:
            # It gives nothing any more; whoever asks again begins another behind what was given.
            self._messages = None
            raise
        if read is None:
            return False
        self._read, self._given = read, 0
        self._done = self._done or read.snapshot_done or self._has_all_rows(read)
        return True

    def _has_all_rows(self, read: WatchMessage) -> bool:
        """By the token: where it was cut off behind the last row, nobody says so any more."""
        return self._after is None and bool(read.whole) and not has_rows_left(read.whole)

    def given(self) -> Iterator[StateChange]:
        """The changes that have come and were not given, each of which is given then. Sends nothing."""
        while self._read is not None and self._given < len(self._read.changes):
            change = self._read.changes[self._given]
            if self._typed is not None:
                change = change._replace(
                    value=None if change.value is None else self._typed(change.value),
                    before=None if change.before is None else self._typed(change.before),
                )
            self._given += 1
            yield change

    def of_type(self, typed: Callable[[Any], Any]) -> AsyncWatch:
        """The same watch, not begun, with other values: what the function makes of each row."""
        return AsyncWatch(self._begin, self._after, typed)

    async def close(self) -> None:
        """Ends the watch; the servers let go of what they kept for it. Idempotent."""
        self._closed = True
        if self._messages is not None:
            await self._messages.aclose()


class Watch:
    """As AsyncWatch, for threads: it blocks while changes are waited for. Used by one thread at a time."""

    def __init__(self, run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any], of: AsyncWatch) -> None:
        self._run = run
        self._of = of

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def of_type(self, typed: Callable[[Any], Any]) -> Watch:
        """The same watch, not begun, with what the function makes of each row as values."""
        return Watch(self._run, self._of.of_type(typed))

    @property
    def token(self) -> str | None:
        """Where a later watch goes on: see AsyncWatch.token."""
        return self._of.token

    @property
    def snapshot_done(self) -> bool:
        """Whether all rows that were there were given: see AsyncWatch.snapshot_done."""
        return self._of.snapshot_done

    @property
    def as_of(self) -> datetime | None:
        """By when all that was committed was given: see AsyncWatch.as_of."""
        return self._of.as_of

    @property
    def epoch(self) -> int:
        """Up to which epoch all was given: see AsyncWatch.epoch."""
        return self._of.epoch

    def __iter__(self) -> Iterator[StateChange]:
        while self._run(self._of.more):
            yield from self._of.given()

    def page(self) -> Sequence[StateChange]:
        """The next changes; none where nothing has changed for a while. Blocks. Raises as Client.watch."""
        page: Sequence[StateChange] = self._run(self._of.page)
        return page

    def close(self) -> None:
        """Ends the watch. Blocks until it has. Idempotent."""
        self._run(self._of.close)
