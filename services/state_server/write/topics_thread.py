"""A thread that asks Kafka about the updates topics of a query's states, as long as that takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from keyhole.changelog.base import Changelog, UpdatesTopics

_Result = TypeVar("_Result")


class TopicsThread:
    """See the module's text. It is begun with the first call. Event loop, but for `topics`."""

    def __init__(self, changelog: Changelog, name: str) -> None:
        self._changelog = changelog
        self._name = name
        self._executor: ThreadPoolExecutor | None = None
        self._topics: UpdatesTopics | None = None

    async def call(self, call: Callable[..., _Result], *args: object) -> _Result:
        """The result of a call on the thread. Calls run in the order in which they were handed over."""
        self._executor = self._executor or ThreadPoolExecutor(1, thread_name_prefix=self._name)
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *args)

    def topics(self) -> UpdatesTopics:
        """By what it asks. The thread itself; closed with it."""
        self._topics = self._topics or self._changelog.updates_topics()
        return self._topics

    async def close(self) -> None:
        """Ends the thread. Nothing is under way, and it is not called again."""
        if self._executor is not None:
            if self._topics is not None:
                await self.call(self._topics.close)
            self._executor.shutdown()
