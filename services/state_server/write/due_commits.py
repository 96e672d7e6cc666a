"""When what was applied of updates is committed: each 250 ms, one commit after the other, beside what goes on."""

from __future__ import annotations

import asyncio
import logging

from keyhole.clock import Clock
from keyhole.errors import KeyholeError
from services.state_server.write.feed_commits import FeedCommits
from services.state_server.write.host_thread import HostThread

_log = logging.getLogger(__name__)

_COMMIT_SECONDS = 0.25
_AGAIN_SECONDS = 1.0


class DueCommits:
    """Of one query. Event loop.

    Attributes:
        under_way: The commit that was begun last; None: none was.
    """

    def __init__(self, query: str, commits: FeedCommits, thread: HostThread, clock: Clock) -> None:
        self.under_way: asyncio.Task[None] | None = None
        self._query = query
        self._commits = commits
        self._thread = thread
        self._clock = clock
        self._commit_at = clock.monotonic() + _COMMIT_SECONDS
        # Why the last commit failed, which is logged once; empty: it did not.
        self._failure = ""

    def begin_if_due(self, *, early: bool) -> None:
        """Begins a commit, unless one is under way.

        Args:
            early: It is not waited for until it is due, unless the last one failed.
        """
        now = self._clock.monotonic()
        if self.under_way is not None and not self.under_way.done():
            return
        if now >= self._commit_at or (early and not self._failure):
            self._commit_at = now + _COMMIT_SECONDS
            self.under_way = asyncio.create_task(self._commit())

    async def _commit(self) -> None:
        """Where it fails, it is tried again a second later; why is logged once."""
        why = ""
        try:
            await self._commits.commit()
        except KeyholeError as error:
            why = error.message
            if why != self._failure and not self._thread.refusing:
                _log.warning("updates are not committed", extra={"query": self._query, "why": why})
        except Exception as error:  # noqa: BLE001 - nobody waits for it
            why = type(error).__name__
            _log.exception("updates are not committed", extra={"query": self._query})
        self._failure = why
        if why:
            self._commit_at = self._clock.monotonic() + _AGAIN_SECONDS

    async def ended(self) -> None:
        """Returns once none is under way. None may be begun meanwhile."""
        if self.under_way is not None:
            await asyncio.wait([self.under_way])
