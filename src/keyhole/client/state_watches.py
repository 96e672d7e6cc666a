"""What changes in a state, as a stream: `async for change in client.watch("shop", "orders"): ...`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any

from keyhole.client.item_streams import AsyncItemStream, ItemStream
from keyhole.client.wire.watch_stream import WatchMessage
from keyhole.encoding.watch_token import has_rows_left
from keyhole.model.change import StateChange


class AsyncWatch(AsyncItemStream[WatchMessage, StateChange]):
    """A watch, on the client's event loop. It asks once the first change is asked for.

        async with client.watch("shop", "orders") as changes:
            async for change in changes:
                ...

    It has no end of its own: leave the loop, and close it. Where its connection, a proxy or an owner goes, it goes on
    by itself. After an error, another one goes on behind its `token`. `page` gives the next changes, as many as have
    come together; none where nothing has changed for a while, or it was closed.
    """

    def __init__(
        self,
        begin: Callable[[str], AsyncGenerator[WatchMessage]],
        after: str | None,
        typed: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(typed)
        self._begin = begin
        self._after = after
        self._done = False

    @property
    def token(self) -> str | None:
        """Where a later watch of the same keys goes on behind the changes that were given, as its `after`: nothing is
        missed, and nothing comes twice. None: nothing has come, and there was no `after`.
        """
        return self._after if self._read is None else self._read.token(self._given) or None

    @property
    def snapshot_done(self) -> bool:
        """Whether all rows that were there when it began were given. Not of a watch that goes on from a token."""
        return self._done and not self._waits

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

    async def more(self) -> bool:
        """Waits for the next message, whose changes can be `given`. False: it was closed. Raises as
        AsyncClient.watch.
        """
        self._check_alone()
        if self._waits:
            return True
        if self._closed:
            return False
        if self._messages is None:
            self._messages = self._begin(self.token or "")
        try:
            read = await self._received(self._messages)
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

    def _items(self, read: WatchMessage) -> Sequence[StateChange]:
        return read.changes

    def _retyped(self, item: StateChange, typed: Callable[[Any], Any]) -> StateChange:
        return item._replace(
            value=None if item.value is None else typed(item.value),
            before=None if item.before is None else typed(item.before),
        )

    def of_type(self, typed: Callable[[Any], Any]) -> AsyncWatch:
        """The same watch, not begun, with other values: what the function makes of each row."""
        return AsyncWatch(self._begin, self._after, typed)


class Watch(ItemStream[StateChange]):
    """As AsyncWatch, for threads: it blocks while changes are waited for. Used by one thread at a time."""

    def __init__(self, run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any], of: AsyncWatch) -> None:
        super().__init__(run, of)
        self._of: AsyncWatch = of

    def of_type(self, typed: Callable[[Any], Any]) -> Watch:
        """The same watch, not begun, with what the function makes of each row as values."""
        return Watch(self._run, self._of.of_type(typed))

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
