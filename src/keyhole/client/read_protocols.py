"""What a session or a state's handle reads through: the methods of a client, by part."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Protocol, Unpack, runtime_checkable

from keyhole.client.bounds import Duration
from keyhole.client.mirrors import AsyncMirror, Mirror
from keyhole.client.options import (
    AggregateOptions,
    GetOptions,
    Key,
    ManyOptions,
    MirrorOptions,
    ScanAllOptions,
    ScanOptions,
    WatchingOptions,
)
from keyhole.client.scanned_entries import ScannedEntries
from keyhole.client.state_scans import AsyncStateScan, StateScan
from keyhole.client.state_watches import AsyncWatch, Watch
from keyhole.encoding.codec import StateCodec
from keyhole.model.aggregate_answer import AggregateAnswer
from keyhole.model.aggregates import AskedAggregate
from keyhole.model.read import Answer
from keyhole.model.state import StateDescriptor

# ruff: noqa: ASYNC109 - a timeout is part of the request


class AsyncReads(Protocol):
    """An AsyncClient's reads, or an AsyncSession's."""

    def get(self, application: str, state: str, key: Key, **options: Unpack[GetOptions]) -> asyncio.Future[Answer]: ...

    async def get_many(
        self, application: str, state: str, keys: Iterable[Key], **options: Unpack[ManyOptions]
    ) -> list[Answer]: ...

    async def scan(self, application: str, state: str, key: Key, **options: Unpack[ScanOptions]) -> ScannedEntries: ...


class AsyncCatalogue(Protocol):
    """What an AsyncClient says of states, and what it reads of a whole one."""

    async def describe_state(
        self, application: str, state: str, *, timeout: Duration | None = None
    ) -> StateDescriptor: ...

    def known(self, application: str, state: str) -> StateCodec | None: ...

    def scan_all(self, application: str, state: str, **options: Unpack[ScanAllOptions]) -> AsyncStateScan: ...

    async def aggregate(
        self,
        application: str,
        state: str,
        aggregates: Mapping[str, AskedAggregate],
        **options: Unpack[AggregateOptions],
    ) -> AggregateAnswer: ...


class AsyncStates(AsyncReads, AsyncCatalogue, Protocol):
    """Reads, and what is said of states: an AsyncClient."""


@runtime_checkable
class AsyncWatches(Protocol):
    """What an AsyncClient has, and a snapshot or a session has not: watches, and mirrors, which are kept by them."""

    def watch(self, application: str, state: str, *keys: Key, **options: Unpack[WatchingOptions]) -> AsyncWatch: ...

    def mirror(self, path: str, *keys: Key, **options: Unpack[MirrorOptions]) -> AsyncMirror[Answer]: ...


@runtime_checkable
class StateWatches(Protocol):
    """What a Client has, and a snapshot or a session has not: watches, and mirrors, which are kept by them."""

    def watch(self, application: str, state: str, *keys: Key, **options: Unpack[WatchingOptions]) -> Watch: ...

    def mirror(self, path: str, *keys: Key, **options: Unpack[MirrorOptions]) -> Mirror[Answer]: ...


class Reads(Protocol):
    """A Client's reads, or a Session's."""

    def get(self, application: str, state: str, key: Key, **options: Unpack[GetOptions]) -> Answer: ...

    def get_many(
        self, application: str, state: str, keys: Iterable[Key], **options: Unpack[ManyOptions]
    ) -> list[Answer]: ...

    def get_async(self, application: str, state: str, key: Key, **options: Unpack[GetOptions]) -> Future[Answer]: ...

    def get_many_async(
        self, application: str, state: str, keys: Iterable[Key], **options: Unpack[ManyOptions]
    ) -> Future[list[Answer]]: ...

    def scan(self, application: str, state: str, key: Key, **options: Unpack[ScanOptions]) -> ScannedEntries: ...


class Catalogue(Protocol):
    """What a Client says of states, and what it reads of a whole one."""

    def describe_state(self, application: str, state: str, *, timeout: Duration | None = None) -> StateDescriptor: ...

    def known(self, application: str, state: str) -> StateCodec | None: ...

    def scan_all(self, application: str, state: str, **options: Unpack[ScanAllOptions]) -> StateScan: ...

    def aggregate(
        self,
        application: str,
        state: str,
        aggregates: Mapping[str, AskedAggregate],
        **options: Unpack[AggregateOptions],
    ) -> AggregateAnswer: ...


class States(Reads, Catalogue, Protocol):
    """Reads, and what is said of states: a Client."""
