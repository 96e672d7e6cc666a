"""Reads of several states as of one and the same epoch.

    snapshot = await client.snapshot("shop/orders", "shop/customers")
    order = await snapshot.state("shop/orders").get("o1")
    customer = await snapshot.state("shop/customers").get(order.value.customer)   # never of another epoch

Its epoch is the last one that all copies had when it was made, or the one that was asked for. Servers keep it while
`keep_epochs` say, from then on reads raise EpochGone: make a new one. Nothing is held for it, so it needs no closing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime
from typing import Any, Generic, TypeVar, Unpack, overload

from keyhole.client.bounds import Duration
from keyhole.client.epoch_choice import EpochChoice, moment_or_epoch
from keyhole.client.one_epoch import one_query
from keyhole.client.options import AggregateOptions, GetOptions, Key, ManyOptions, ScanAllOptions, ScanOptions
from keyhole.client.read_protocols import AsyncStates, States
from keyhole.client.scanned_entries import ScannedEntries
from keyhole.client.state_handles import AsyncState, State
from keyhole.client.state_scans import AsyncStateScan, StateScan
from keyhole.client.wire.connection import Connection
from keyhole.encoding.codec import StateCodec
from keyhole.errors import InvalidConfiguration, MalformedRequest, Unsupported
from keyhole.model.aggregate_answer import AggregateAnswer
from keyhole.model.aggregates import AskedAggregate
from keyhole.model.read import Answer, Source
from keyhole.model.state import StateDescriptor
from keyhole.model.state_path import state_path

T = TypeVar("T")
C = TypeVar("C", AsyncStates, States)


async def taken(
    client: AsyncStates, connection: Connection, paths: Iterable[str], seconds: float, as_of: datetime | int | None
) -> AsyncStateSnapshot:
    """States as of one epoch. Raises as AsyncClient.snapshot."""
    names, until, asked = _names(paths), connection.loop.time() + seconds, moment_or_epoch(as_of)
    described = [await connection.describe(*name, until - connection.loop.time()) for name in names]
    one_query(described)
    states = dict(zip(names, described, strict=True))
    choice = EpochChoice(connection, states, until)
    if isinstance(asked, datetime):
        return AsyncStateSnapshot(client, states, await choice.at(asked))
    return AsyncStateSnapshot(client, states, await (choice.named(asked) if asked else choice.last()))


def _names(paths: Iterable[str]) -> list[tuple[str, str]]:
    """Application and state of each. Raises InvalidConfiguration: one is none, or there is none."""
    names = list(dict.fromkeys(map(state_path, paths)))
    if not names:
        raise InvalidConfiguration('a snapshot is of states: name them, as snapshot("shop/orders", "shop/customers")')
    return names


class _OneEpoch(Generic[C]):
    """What both snapshots have in common.

    Attributes:
        states: Their paths.
        described: What each was when the snapshot was made, by application and state.
        source: Of a copy that was at the snapshot's epoch then.
    """

    def __init__(self, client: C, states: Mapping[tuple[str, str], StateDescriptor], source: Source) -> None:
        self._client: C = client
        self.described = dict(states)
        self.source = source
        self.states: tuple[str, ...] = tuple("/".join(name) for name in states)

    @property
    def epoch(self) -> int:
        """As of which all is read."""
        return self.source.epoch

    @property
    def commit_time(self) -> datetime | None:
        """When the epoch was decided, UTC, by the driver's clock."""
        return self.source.commit_time

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.states))}, epoch={self.epoch})"

    def known(self, application: str, state: str) -> StateCodec | None:
        """As the client that it is of."""
        return self._client.known(application, state)

    def _as_of(self, application: str, state: str, options: Any) -> Any:
        """The options with the epoch. Raises MalformedRequest or Unsupported."""
        if options.get("as_of"):
            raise MalformedRequest(f"a snapshot is as of epoch {self.epoch}: leave as_of out")
        if options.get("consistency") == "latest":
            raise MalformedRequest(
                f"a snapshot is as of epoch {self.epoch}, which is committed: read the latest by the client"
            )
        self._descriptor(application, state)
        options["as_of"] = self.epoch
        return options

    def _descriptor(self, application: str, state: str) -> StateDescriptor:
        found = self.described.get((application, state))
        if found is None:
            raise Unsupported(
                f"the snapshot is of {', '.join(self.states)}, and not of {application}/{state}; name it, too, where "
                "the snapshot is made",
                state=f"{application}/{state}",
            )
        return found

    def _path(self, path: str) -> str:
        self._descriptor(*state_path(path))
        return path


class AsyncStateSnapshot(_OneEpoch[AsyncStates]):
    """States as of one epoch, on the client's event loop. Made by AsyncClient.snapshot."""

    @overload
    def state(self, path: str) -> AsyncState[Any]: ...

    @overload
    def state(self, path: str, *, value: type[T]) -> AsyncState[T]: ...

    def state(self, path: str, *, value: type[T] | None = None) -> AsyncState[Any]:
        """One of its states, whose reads are as of its epoch. See AsyncClient.state. Raises Unsupported: not its."""
        return AsyncState(self, self, self._path(path), value)

    def get(self, application: str, state: str, key: Key, **options: Unpack[GetOptions]) -> asyncio.Future[Answer]:
        """The value of one key. Raises as AsyncClient.get, and EpochGone."""
        return self._client.get(application, state, key, **self._as_of(application, state, options))

    async def get_many(
        self, application: str, state: str, keys: Iterable[Key], **options: Unpack[ManyOptions]
    ) -> list[Answer]:
        """The values of many keys, in their order. Raises as AsyncClient.get_many, and EpochGone."""
        return await self._client.get_many(application, state, keys, **self._as_of(application, state, options))

    async def scan(self, application: str, state: str, key: Key, **options: Unpack[ScanOptions]) -> ScannedEntries:
        """The entries of one key. Raises as AsyncClient.scan, and EpochGone."""
        return await self._client.scan(application, state, key, **self._as_of(application, state, options))

    def scan_all(self, application: str, state: str, **options: Unpack[ScanAllOptions]) -> AsyncStateScan:
        """All keys of a state, and all of them as of the epoch. Raises as AsyncClient.scan_all, and EpochGone."""
        return self._client.scan_all(application, state, **self._as_of(application, state, options))

    async def aggregate(
        self,
        application: str,
        state: str,
        aggregates: Mapping[str, AskedAggregate],
        **options: Unpack[AggregateOptions],
    ) -> AggregateAnswer:
        """Figures over all entries of a state, all of them as of the epoch. Raises as AsyncClient.aggregate, and
        EpochGone.
        """
        asked = self._as_of(application, state, options)
        return await self._client.aggregate(application, state, aggregates, **asked)

    async def describe_state(
        self,
        application: str,
        state: str,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109 - as of a client
    ) -> StateDescriptor:
        """What one of its states was when the snapshot was made. Asks nobody."""
        return self._descriptor(application, state)


class StateSnapshot(_OneEpoch[States]):
    """States as of one epoch, for threads. Made by Client.snapshot."""

    @overload
    def state(self, path: str) -> State[Any]: ...

    @overload
    def state(self, path: str, *, value: type[T]) -> State[T]: ...

    def state(self, path: str, *, value: type[T] | None = None) -> State[Any]:
        """One of its states, whose reads are as of its epoch. See Client.state. Raises Unsupported: not its."""
        return State(self, self, self._path(path), value)

    def get(self, application: str, state: str, key: Key, **options: Unpack[GetOptions]) -> Answer:
        """The value of one key. Blocks. Raises as Client.get, and EpochGone."""
        return self._client.get(application, state, key, **self._as_of(application, state, options))

    def get_many(
        self, application: str, state: str, keys: Iterable[Key], **options: Unpack[ManyOptions]
    ) -> list[Answer]:
        """The values of many keys, in their order. Blocks. Raises as Client.get_many, and EpochGone."""
        return self._client.get_many(application, state, keys, **self._as_of(application, state, options))

    def get_async(self, application: str, state: str, key: Key, **options: Unpack[GetOptions]) -> Future[Answer]:
        """As `get`, without waiting: see Client.get_async."""
        return self._client.get_async(application, state, key, **self._as_of(application, state, options))

    def get_many_async(
        self, application: str, state: str, keys: Iterable[Key], **options: Unpack[ManyOptions]
    ) -> Future[list[Answer]]:
        """As `get_many`, without waiting: see Client.get_many_async."""
        return self._client.get_many_async(application, state, keys, **self._as_of(application, state, options))

    def scan(self, application: str, state: str, key: Key, **options: Unpack[ScanOptions]) -> ScannedEntries:
        """The entries of one key. Blocks. Raises as Client.scan, and EpochGone."""
        return self._client.scan(application, state, key, **self._as_of(application, state, options))

    def scan_all(self, application: str, state: str, **options: Unpack[ScanAllOptions]) -> StateScan:
        """All keys of a state, and all of them as of the epoch. Raises as Client.scan_all, and EpochGone."""
        return self._client.scan_all(application, state, **self._as_of(application, state, options))

    def aggregate(
        self,
        application: str,
        state: str,
        aggregates: Mapping[str, AskedAggregate],
        **options: Unpack[AggregateOptions],
    ) -> AggregateAnswer:
        """Figures over all entries of a state, all of them as of the epoch. Blocks. Raises as Client.aggregate, and
        EpochGone.
        """
        return self._client.aggregate(application, state, aggregates, **self._as_of(application, state, options))

    def describe_state(
        self,
        application: str,
        state: str,
        *,
        timeout: Duration | None = None,
    ) -> StateDescriptor:
        """What one of its states was when the snapshot was made. Asks nobody."""
        return self._descriptor(application, state)
