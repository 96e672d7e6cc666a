"""Reads that never go backwards, whichever copy answers them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol, Unpack

from keyhole.client.options import Key, ReadOptions, ScanOptions
from keyhole.model.read import Answer, Entries


class AsyncReads(Protocol):
    """What an AsyncSession reads through: an AsyncClient, whose methods these are."""

    def get(self, application: str, state: str, key: Key, **options: Unpack[ReadOptions]) -> asyncio.Future[Answer]: ...

    async def get_many(
        self, application: str, state: str, keys: Iterable[Key], **options: Unpack[ReadOptions]
    ) -> list[Answer]: ...

    async def scan(self, application: str, state: str, key: Key, **options: Unpack[ScanOptions]) -> Entries: ...


class Reads(Protocol):
    """What a Session reads through: a Client, whose methods these are."""

    def get(self, application: str, state: str, key: Key, **options: Unpack[ReadOptions]) -> Answer: ...

    def get_many(
        self, application: str, state: str, keys: Iterable[Key], **options: Unpack[ReadOptions]
    ) -> list[Answer]: ...

    def scan(self, application: str, state: str, key: Key, **options: Unpack[ScanOptions]) -> Entries: ...


class Seen:
    """The highest epoch that was seen of each state."""

    def __init__(self, epochs: Mapping[tuple[str, str], int]) -> None:
        self._epochs = dict(epochs)

    @property
    def epochs(self) -> dict[tuple[str, str], int]:
        """The highest epoch seen of each state, by application and state; a copy."""
        return dict(self._epochs)

    def least(self, application: str, state: str, min_epoch: int) -> int:
        """The epoch that the next answer of the state must hold."""
        return max(min_epoch, self._epochs.get((application, state), 0))

    def hold(self, application: str, state: str, options: ReadOptions) -> None:
        """Raises the `min_epoch` of a read's options to the highest epoch seen of the state."""
        options["min_epoch"] = self.least(application, state, options.get("min_epoch", 0))

    def note(self, application: str, state: str, answers: Iterable[Answer | Entries]) -> None:
        """Remembers the newest epoch of these answers: reads after them see none that is older."""
        name = (application, state)
        newest = max((answer.epoch for answer in answers), default=0)
        self._epochs[name] = max(newest, self._epochs.get(name, 0))


class AsyncSession:
    """Reads through a client; each answer holds all that earlier answers of the same state held.

    A copy that is behind is passed over, or waited for until the timeout; then EpochNotReached says how far it is.
    Reads that are under way at the same time don't wait for each other. Made by AsyncClient.session; needs no closing.
    Used on the client's event loop only.
    """

    def __init__(self, client: AsyncReads, epochs: Mapping[tuple[str, str], int]) -> None:
        self._client = client
        self._seen = Seen(epochs)

    @property
    def epochs(self) -> dict[tuple[str, str], int]:
        """The highest epoch seen of each state, by application and state; a copy. Another session can go on from it."""
        return self._seen.epochs

    def get(self, application: str, state: str, key: Key, **options: Unpack[ReadOptions]) -> asyncio.Future[Answer]:
        """The value of one key, at the highest epoch seen of the state or a later one. Raises as AsyncClient.get."""
        self._seen.hold(application, state, options)
        future = self._client.get(application, state, key, **options)

        def note(future: asyncio.Future[Answer]) -> None:
            if not future.cancelled() and future.exception() is None:
                self._seen.note(application, state, [future.result()])

        future.add_done_callback(note)
        return future

    async def get_many(
        self, application: str, state: str, keys: Iterable[Key], **options: Unpack[ReadOptions]
    ) -> list[Answer]:
        """The values of many keys, in their order; none is of an epoch before the highest one seen of the state.

        Raises as AsyncClient.get_many.
        """
        self._seen.hold(application, state, options)
        answers = await self._client.get_many(application, state, keys, **options)
        self._seen.note(application, state, answers)
        return answers

    async def scan(self, application: str, state: str, key: Key, **options: Unpack[ScanOptions]) -> Entries:
        """The entries of one key, at the highest epoch seen of the state or a later one. Raises as AsyncClient.scan."""
        self._seen.hold(application, state, options)
        entries = await self._client.scan(application, state, key, **options)
        self._seen.note(application, state, [entries])
        return entries


class Session:
    """Reads through a client; each answer holds all that earlier answers of the same state held. Made by
    Client.session.

    For one thread at a time: each read blocks until it is answered, or its timeout has passed. Needs no closing.
    """

    def __init__(self, client: Reads, epochs: Mapping[tuple[str, str], int]) -> None:
        self._client = client
        self._seen = Seen(epochs)

    @property
    def epochs(self) -> dict[tuple[str, str], int]:
        """The highest epoch seen of each state, by application and state; a copy. Another session can go on from it."""
        return self._seen.epochs

    def get(self, application: str, state: str, key: Key, **options: Unpack[ReadOptions]) -> Answer:
        """The value of one key, at the highest epoch seen of the state or a later one. Blocks. Raises as Client.get."""
        self._seen.hold(application, state, options)
        answer = self._client.get(application, state, key, **options)
        self._seen.note(application, state, [answer])
        return answer

    def get_many(
        self, application: str, state: str, keys: Iterable[Key], **options: Unpack[ReadOptions]
    ) -> list[Answer]:
        """The values of many keys, in their order; none is of an epoch before the highest one seen of the state.

        Blocks. Raises as Client.get_many.
        """
        self._seen.hold(application, state, options)
        answers = self._client.get_many(application, state, keys, **options)
        self._seen.note(application, state, answers)
        return answers

    def scan(self, application: str, state: str, key: Key, **options: Unpack[ScanOptions]) -> Entries:
        """The entries of one key, at the highest epoch seen of the state or a later one.

        Blocks. Raises as Client.scan.
        """
        self._seen.hold(application, state, options)
        entries = self._client.scan(application, state, key, **options)
        self._seen.note(application, state, [entries])
        return entries
