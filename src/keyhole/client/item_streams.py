"""What scans of all keys and watches have in common as streams: items that come together, and are given one by one."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from keyhole.client.event_loop_client import running_loop
from keyhole.errors import ClientClosed, Unsupported
from keyhole.rpc import forked

R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - an item


class AsyncItemStream(ABC, Generic[R, I]):
    """See the module's text. On the client's event loop.

    Args:
        typed: Makes the values that are given, of rows; None: rows are given.
    """

    def __init__(self, typed: Callable[[Any], Any] | None) -> None:
        self._typed = typed
        self._closed = False
        self._messages: AsyncGenerator[R] | None = None
        self._receiving: asyncio.Future[R | None] | None = None
        # Of `_messages`.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._read: R | None = None
        # Of the items of `_read`.
        self._given = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    @abstractmethod
    def token(self) -> str | None:
        """Where a later one goes on behind what was given, as its `after`."""

    async def __aiter__(self) -> AsyncIterator[I]:
        while await self.more():
            for item in self.given():
                yield item

    async def page(self) -> Sequence[I]:
        """The next ones, as many as have come together; none where `more` gives False. Raises as `more`."""
        await self.more()
        before = self._given
        try:
            return list(self.given())
        except BaseException:
            # The caller has none of them.
            self._given = before
            raise

    @abstractmethod
    async def more(self) -> bool:
        """Waits for what can be `given`.

        Raises:
            Unsupported: It was begun on another event loop; or somebody else waits for its next items.
        """

    def _check_alone(self) -> None:
        """Raises Unsupported: as `more`. What is under way goes on."""
        if self._closed:
            return
        if self._messages is not None and self._loop is not running_loop():
            raise self._elsewhere()
        if self._receiving is not None and not self._receiving.done():
            raise Unsupported(
                "another task or thread waits for the next items of this scan or watch: make one for each, or have one "
                "read, and hand on what it has read"
            )

    def _elsewhere(self) -> Unsupported:
        return Unsupported(
            "this scan or watch belongs to the event loop that began it, and this is another one (each thread and each "
            "asyncio.run has its own); make one in each, or use keyhole.Client"
        )

    def given(self) -> Iterator[I]:
        """Those that have come and were not given, each of which is given then. Sends nothing."""
        if (read := self._read) is None:
            return
        # The hot path of a scan. Another loop over the same may go on meanwhile.
        items, typed = self._items(read), self._typed
        while self._read is read and self._given < len(items):
            item = items[self._given]
            if typed is not None:
                item = self._retyped(item, typed)
            self._given += 1
            yield item

    @property
    def _waits(self) -> bool:
        """Whether there is one that has come and was not given."""
        return self._read is not None and self._given < len(self._items(self._read))

    @abstractmethod
    def _items(self, read: R) -> Sequence[I]:
        """Those that have come together, in their order."""

    @abstractmethod
    def _retyped(self, item: I, typed: Callable[[Any], Any]) -> I:
        """The same with other values. Raises what the function does."""

    async def _received(self, messages: AsyncGenerator[R]) -> R | None:
        """The next message; None: there are no more, or another task has closed the stream."""
        # A generator that waits can't be closed; the task that it waits in can be cancelled.
        self._loop = running_loop()
        self._receiving = asyncio.ensure_future(anext(messages, None))
        try:
            return await self._receiving
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                return None
            raise

    async def close(self) -> None:
        """Ends it; the servers let go of what they kept for it. Idempotent. Whoever waits for more hears that there
        is none.

        Raises:
            Unsupported: It was begun on another event loop, which still goes on.
        """
        loop = None if self._messages is None else self._loop
        if forked.process.cut_off or (loop is not None and loop.is_closed()):
            # What is left of it is the parent's, or has ended with its loop.
            self._closed = True
            return
        if loop is not None and loop is not running_loop():
            raise self._elsewhere()
        self._closed = True
        messages, receiving = self._messages, self._receiving
        if receiving is not None and not receiving.done():
            receiving.cancel()
            await asyncio.wait({receiving})
        if messages is not None:
            await messages.aclose()


class ItemStream(Generic[I]):
    """As AsyncItemStream, for threads: it blocks while items are waited for. Used by one thread at a time; another one
    may close it.
    """

    def __init__(
        self, run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any], of: AsyncItemStream[Any, I]
    ) -> None:
        self._run = run
        self._of = of

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def token(self) -> str | None:
        """Where a later one goes on behind what was given, as its `after`."""
        return self._of.token

    def __iter__(self) -> Iterator[I]:
        while self._run(self._of.more):
            yield from self._of.given()

    def page(self) -> Sequence[I]:
        """The next ones, as many as have come together; see AsyncItemStream.page. Blocks."""
        page: Sequence[I] = self._run(self._of.page)
        return page

    def close(self) -> None:
        """Ends it. Blocks until it has. Idempotent."""
        if forked.process.cut_off:
            return
        # A client that is closed has ended it.
        with contextlib.suppress(ClientClosed):
            self._run(self._of.close)
