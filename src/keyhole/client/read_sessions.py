"""Reads that never go backwards, whichever copy answers them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, TypeVar, Unpack, overload

from keyhole.client.futures import then
from keyhole.client.options import GetOptions, Key, ManyOptions, ReadOptions, ScanOptions
from keyhole.client.read_protocols import AsyncStates, States
from keyhole.client.scanned_entries import ScannedEntries
from keyhole.client.session_epochs import Epochs, Seen, StateName
from keyhole.client.state_handles import AsyncState, State
from keyhole.client.wire.lookups import keys_of
from keyhole.encoding.codec import StateCodec
from keyhole.model.read import Answer
from keyhole.model.state import StateDescriptor

T = TypeVar("T")


class _Codecs:
    """By which the key groups of keys are known, of the states that a session has read."""

    def __init__(self, client: AsyncStates | States) -> None:
        self._client = client
        self._codecs: dict[StateName, StateCodec] = {}

    def get(self, name: StateName) -> StateCodec | None:
        known = self._client.known(*name)
        if known is not None:
            self._codecs[name] = known
        return self._codecs.get(name)

    def put(self, name: StateName, descriptor: StateDescriptor) -> None:
        self._codecs[name] = StateCodec(descriptor)


class AsyncSession:
    """Reads through a client; each answer holds all that earlier answers of the same state held: of one that is fed by
    updates, earlier answers of the same key group.

    A copy that is behind is passed over, or waited for until the timeout; then EpochNotReached says how far it is.
    Reads that are under way at the same time don't wait for each other. Made by AsyncClient.session; needs no closing.
    Used on the client's event loop only.
    """

    def __init__(self, client: AsyncStates, epochs: Epochs) -> None:
        self._client = client
        self._seen = Seen(epochs)
        self._codecs = _Codecs(client)

    @property
    def epochs(self) -> dict[tuple[str, str], int | dict[int, int]]:
        """The highest epoch seen of each state, by application and state; of one that is fed by updates, by key group.
        A copy. Another session can go on from it.
        """
        return self._seen.epochs

    @overload
    def state(self, path: str) -> AsyncState[Any]: ...

    @overload
    def state(self, path: str, *, value: type[T]) -> AsyncState[T]: ...

    def state(self, path: str, *, value: type[T] | None = None) -> AsyncState[Any]:
        """One state, whose reads are this session's. See AsyncClient.state."""
        return AsyncState(self, self._client, path, value)

    def get(self, application: str, state: str, key: Key, **options: Unpack[GetOptions]) -> asyncio.Future[Answer]:
        """The value of one key, at the highest epoch seen or a later one. Raises as AsyncClient.get."""
        name = application, state
        if self._seen.needs_key_groups(name, options) and self._codecs.get(name) is None:
            return asyncio.ensure_future(self._get_described(name, key, options))
        return self._get(name, key, options)

    async def _get_described(self, name: StateName, key: Key, options: GetOptions) -> Answer:
        await self._describe(name, options)
        return await self._get(name, key, options)

    def _get(self, name: StateName, key: Key, options: GetOptions) -> asyncio.Future[Answer]:
        codec = self._codecs.get(name)
        self._seen.hold(name, options, (key,), codec)
        future = self._client.get(*name, key, **options)

        def note(future: asyncio.Future[Answer]) -> None:
            if not future.cancelled() and future.exception() is None:
                self._seen.note(name, [(key, future.result().epoch)], self._codecs.get(name))

        future.add_done_callback(note)
        return future

    async def get_many(
        self, application: str, state: str, keys: Iterable[Key], **options: Unpack[ManyOptions]
    ) -> list[Answer]:
        """The values of many keys, in their order; none is of an epoch before the highest one seen.

        Raises as AsyncClient.get_many.
        """
        name, wanted = (application, state), keys_of(keys)
        await self._describe(name, options)
        codec = self._codecs.get(name)
        self._seen.hold(name, options, wanted, codec)
        answers = await self._client.get_many(application, state, wanted, **options)
        self._seen.note(name, _epochs(wanted, answers), self._codecs.get(name))
        return answers

    async def scan(self, application: str, state: str, key: Key, **options: Unpack[ScanOptions]) -> ScannedEntries:
        """The entries of one key, at the highest epoch seen or a later one. Raises as AsyncClient.scan."""
        name = application, state
        await self._describe(name, options)
        codec = self._codecs.get(name)
        self._seen.hold(name, options, (key,), codec, scan=True)
        entries = await self._client.scan(application, state, key, **options)
        self._seen.note(name, [(key, entries.epoch)], self._codecs.get(name), scan=True)
        return entries

    async def _describe(self, name: StateName, options: ReadOptions) -> None:
        """Where key groups must be known, and this client has read nothing of the state yet."""
        if self._seen.needs_key_groups(name, options) and self._codecs.get(name) is None:
            self._codecs.put(name, await self._client.describe_state(*name, timeout=options.get("timeout")))


class Session:
    """Reads through a client; each answer holds all that earlier answers of the same state held: of one that is fed by
    updates, earlier answers of the same key group. Made by Client.session.

    For one thread at a time: each read but `get_async` and `get_many_async` blocks until it is answered, or its timeout
    has passed. Needs no closing.
    """

    def __init__(self, client: States, epochs: Epochs) -> None:
        self._client = client
        self._seen = Seen(epochs)
        self._codecs = _Codecs(client)
        # Answers that nobody waits for come in the client's thread.
        self._lock = threading.Lock()

    @property
    def epochs(self) -> dict[tuple[str, str], int | dict[int, int]]:
        """The highest epoch seen of each state, by application and state; of one that is fed by updates, by key group.
        A copy. Another session can go on from it.
        """
        with self._lock:
            return self._seen.epochs

    @overload
    def state(self, path: str) -> State[Any]: ...

    @overload
    def state(self, path: str, *, value: type[T]) -> State[T]: ...

    def state(self, path: str, *, value: type[T] | None = None) -> State[Any]:
        """One state, whose reads are this session's. See Client.state."""
        return State(self, self._client, path, value)

    def get(self, application: str, state: str, key: Key, **options: Unpack[GetOptions]) -> Answer:
        """The value of one key, at the highest epoch seen or a later one. Blocks. Raises as Client.get."""
        name = application, state
        codec = self._described(name, options)
        self._hold(name, options, (key,), codec)
        answer = self._client.get(application, state, key, **options)
        return self._noted(name, [(key, answer.epoch)], answer)

    def get_many(
        self, application: str, state: str, keys: Iterable[Key], **options: Unpack[ManyOptions]
    ) -> list[Answer]:
        """The values of many keys, in their order; none is of an epoch before the highest one seen.

        Blocks. Raises as Client.get_many.
        """
        name, wanted = (application, state), keys_of(keys)
        codec = self._described(name, options)
        self._hold(name, options, wanted, codec)
        answers = self._client.get_many(application, state, wanted, **options)
        return self._noted(name, _epochs(wanted, answers), answers)

    def get_async(self, application: str, state: str, key: Key, **options: Unpack[GetOptions]) -> Future[Answer]:
        """As `get`, without waiting: see Client.get_async.

        Reads that are under way at the same time don't wait for each other: an answer holds what was seen before its
        read began. It waits once, where nothing is known yet of a state that is fed by updates.
        """
        name = application, state
        codec = self._described(name, options)
        self._hold(name, options, (key,), codec)
        asked = self._client.get_async(application, state, key, **options)
        return then(asked, lambda answer: self._noted(name, [(key, answer.epoch)], answer))

    def get_many_async(
        self, application: str, state: str, keys: Iterable[Key], **options: Unpack[ManyOptions]
    ) -> Future[list[Answer]]:
        """As `get_many`, without waiting; as `get_async`."""
        name, wanted = (application, state), keys_of(keys)
        codec = self._described(name, options)
        self._hold(name, options, wanted, codec)
        asked = self._client.get_many_async(application, state, wanted, **options)
        return then(asked, lambda answers: self._noted(name, _epochs(wanted, answers), answers))

    def scan(self, application: str, state: str, key: Key, **options: Unpack[ScanOptions]) -> ScannedEntries:
        """The entries of one key, at the highest epoch seen or a later one.

        Blocks. Raises as Client.scan.
        """
        name = application, state
        codec = self._described(name, options)
        self._hold(name, options, (key,), codec, scan=True)
        entries = self._client.scan(application, state, key, **options)
        return self._noted(name, [(key, entries.epoch)], entries, scan=True)

    def _hold(
        self,
        name: StateName,
        options: ReadOptions,
        keys: Iterable[Key],
        codec: StateCodec | None,
        *,
        scan: bool = False,
    ) -> None:
        with self._lock:
            self._seen.hold(name, options, keys, codec, scan=scan)

    def _noted(self, name: StateName, epochs: Iterable[tuple[Key, int]], of: T, *, scan: bool = False) -> T:
        with self._lock:
            self._seen.note(name, epochs, self._codecs.get(name), scan=scan)
        return of

    def _described(self, name: StateName, options: ReadOptions) -> StateCodec | None:
        """As the client knows the state; asked for where key groups must be known, and it has read nothing of it."""
        with self._lock:
            lacking = self._seen.needs_key_groups(name, options) and self._codecs.get(name) is None
        if lacking:
            self._codecs.put(name, self._client.describe_state(*name, timeout=options.get("timeout")))
        return self._codecs.get(name)


def _epochs(keys: Iterable[Key], answers: Iterable[Answer]) -> list[tuple[Key, int]]:
    return [(key, answer.epoch) for key, answer in zip(keys, answers, strict=True)]
