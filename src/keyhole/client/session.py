"""Reads that never go backwards, whichever copy answers them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from keyhole.client.bounds import Duration, StalePolicy
from keyhole.client.wire.scans import MapKey
from keyhole.model.read import Answer, Entries, Stale

if TYPE_CHECKING:
    from keyhole.client.async_client import AsyncClient, Key
    from keyhole.client.sync_client import Client


class Seen:
    """The highest epoch that was seen of each state."""

    def __init__(self, epochs: Mapping[tuple[str, str], int]) -> None:
        self._epochs = dict(epochs)

    @property
    def epochs(self) -> dict[tuple[str, str], int]:
        """By application and state; a copy. Given to a session elsewhere, that one goes on from here."""
        return dict(self._epochs)

    def least(self, application: str, state: str, min_epoch: int) -> int:
        """What the next answer must hold."""
        return max(min_epoch, self._epochs.get((application, state), 0))

    def note(self, application: str, state: str, answers: Iterable[Answer | Entries]) -> None:
        """Takes what was answered."""
        name = (application, state)
        newest = max((answer.epoch for answer in answers), default=0)
        self._epochs[name] = max(newest, self._epochs.get(name, 0))


class AsyncSession:
    """Reads through a client; each answer holds all that earlier answers of the same state held.

    A copy that is behind is passed over, or waited for until the timeout; then EpochNotReached says how far it is.
    Reads that are under way at the same time don't wait for each other. Made by AsyncClient.session; needs no closing.
    """

    def __init__(self, client: AsyncClient, epochs: Mapping[tuple[str, str], int]) -> None:
        self._client = client
        self._seen = Seen(epochs)

    @property
    def epochs(self) -> dict[tuple[str, str], int]:
        """The highest epoch seen, by application and state: what another session can be begun with."""
        return self._seen.epochs

    def get(
        self,
        application: str,
        state: str,
        key: Key,
        *,
        stale: StalePolicy = Stale.WHEN_NEEDED,
        max_staleness: Duration | None = None,
        min_epoch: int = 0,
        timeout: Duration | None = None,
    ) -> asyncio.Future[Answer]:
        """As AsyncClient.get."""
        least = self._seen.least(application, state, min_epoch)
        future = self._client.get(
            application, state, key, stale=stale, max_staleness=max_staleness, min_epoch=least, timeout=timeout
        )

        def note(future: asyncio.Future[Answer]) -> None:
            if not future.cancelled() and future.exception() is None:
                self._seen.note(application, state, [future.result()])

        future.add_done_callback(note)
        return future

    async def get_many(
        self,
        application: str,
        state: str,
        keys: Iterable[Key],
        *,
        stale: StalePolicy = Stale.WHEN_NEEDED,
        max_staleness: Duration | None = None,
        min_epoch: int = 0,
        timeout: Duration | None = None,  # noqa: ASYNC109 - as AsyncClient
    ) -> list[Answer]:
        """As AsyncClient.get_many."""
        least = self._seen.least(application, state, min_epoch)
        answers = await self._client.get_many(
            application, state, keys, stale=stale, max_staleness=max_staleness, min_epoch=least, timeout=timeout
        )
        self._seen.note(application, state, answers)
        return answers

    async def scan(
        self,
        application: str,
        state: str,
        key: Key,
        *,
        start: MapKey | None = None,
        stop: MapKey | None = None,
        descending: bool = False,
        limit: int | None = None,
        stale: StalePolicy = Stale.WHEN_NEEDED,
        max_staleness: Duration | None = None,
        min_epoch: int = 0,
        timeout: Duration | None = None,  # noqa: ASYNC109 - as AsyncClient
    ) -> Entries:
        """As AsyncClient.scan."""
        entries = await self._client.scan(
            application,
            state,
            key,
            start=start,
            stop=stop,
            descending=descending,
            limit=limit,
            stale=stale,
            max_staleness=max_staleness,
            min_epoch=self._seen.least(application, state, min_epoch),
            timeout=timeout,
        )
        self._seen.note(application, state, [entries])
        return entries


class Session:
    """As AsyncSession, for threads. Made by Client.session."""

    def __init__(self, client: Client, epochs: Mapping[tuple[str, str], int]) -> None:
        self._client = client
        self._seen = Seen(epochs)

    @property
    def epochs(self) -> dict[tuple[str, str], int]:
        """As AsyncSession.epochs."""
        return self._seen.epochs

    def get(
        self,
        application: str,
        state: str,
        key: Key,
        *,
        stale: StalePolicy = Stale.WHEN_NEEDED,
        max_staleness: Duration | None = None,
        min_epoch: int = 0,
        timeout: Duration | None = None,
    ) -> Answer:
        """As Client.get."""
        least = self._seen.least(application, state, min_epoch)
        answer = self._client.get(
            application, state, key, stale=stale, max_staleness=max_staleness, min_epoch=least, timeout=timeout
        )
        self._seen.note(application, state, [answer])
        return answer

    def get_many(
        self,
        application: str,
        state: str,
        keys: Iterable[Key],
        *,
        stale: StalePolicy = Stale.WHEN_NEEDED,
        max_staleness: Duration | None = None,
        min_epoch: int = 0,
        timeout: Duration | None = None,
    ) -> list[Answer]:
        """As Client.get_many."""
        least = self._seen.least(application, state, min_epoch)
        answers = self._client.get_many(
            application, state, keys, stale=stale, max_staleness=max_staleness, min_epoch=least, timeout=timeout
        )
        self._seen.note(application, state, answers)
        return answers

    def scan(
        self,
        application: str,
        state: str,
        key: Key,
        *,
        start: MapKey | None = None,
        stop: MapKey | None = None,
        descending: bool = False,
        limit: int | None = None,
        stale: StalePolicy = Stale.WHEN_NEEDED,
        max_staleness: Duration | None = None,
        min_epoch: int = 0,
        timeout: Duration | None = None,
    ) -> Entries:
        """As Client.scan."""
        entries = self._client.scan(
            application,
            state,
            key,
            start=start,
            stop=stop,
            descending=descending,
            limit=limit,
            stale=stale,
            max_staleness=max_staleness,
            min_epoch=self._seen.least(application, state, min_epoch),
            timeout=timeout,
        )
        self._seen.note(application, state, [entries])
        return entries
