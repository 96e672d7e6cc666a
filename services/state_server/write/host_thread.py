"""The thread of one query on this server: all that blocks or changes a store runs on it, one call after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from keyhole.errors import NotReady

_Result = TypeVar("_Result")


class HostThread:
    """See the module's text. Calls run in the order in which they were handed over. Event loop, but for `submit`."""

    def __init__(self, server: str, application: str, query: str) -> None:
        self._server = server
        self._query = query
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"keyhole-{application}-{query}")
        self._refusing = False

    @property
    def refusing(self) -> bool:
        """The query is being forgotten: no new call is taken."""
        return self._refusing

    def refuse(self) -> None:
        """From now on `call` raises NotReady. What was handed over before still runs. Idempotent."""
        self._refusing = True

    async def call(self, call: Callable[..., _Result], *args: object) -> _Result:
        """The result of a call on the thread.

        Raises:
            NotReady: The query is being forgotten here.
        """
        self._check_takes_calls()
        return await self.call_always(call, *args)

    def _check_takes_calls(self) -> None:
        if self._refusing:
            raise NotReady(f"server {self._server} is forgetting query {self._query!r}")

    async def call_always(self, call: Callable[..., _Result], *args: object) -> _Result:
        """As `call`, also while the query is being forgotten: for what closes it."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *args)

    async def call_or_drop(self, call: Callable[[], _Result], drop: Callable[[_Result], None]) -> _Result:
        """As `call`, for what has to be closed: where the caller is cancelled, nothing of the result is left.

        Args:
            drop: Is called with the result that nobody waits for any more, before the thread's next call, or here.
        """
        self._check_takes_calls()
        given = self._executor.submit(call)
        try:
            return await asyncio.wrap_future(given)
        except asyncio.CancelledError:  # what has not begun never does
            given.add_done_callback(lambda of: _drop(of, drop))
            raise

    def submit(self, call: Callable[..., _Result], *args: object) -> Future[_Result]:
        """Hands a call over without waiting for it. Any thread.

        Raises:
            RuntimeError: The thread has ended.
        """
        return self._executor.submit(call, *args)

    def end(self) -> None:
        """Ends the thread once all that was handed over has run. Blocks until then."""
        self._executor.shutdown()


def _drop(given: Future[_Result], drop: Callable[[_Result], None]) -> None:
    if not given.cancelled() and given.exception() is None:
        drop(given.result())
