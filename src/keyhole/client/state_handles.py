"""One state, to be read again and again: its name and the type of its values are said once.

    sensors = client.state("temperature-monitor/sensors", value=Reading)
    answer = await sensors.get("sensor-42")
    answer = await sensors.get(sensor="sensor-42", stale="always")

Made by the `state` of a client or of a session; needs no closing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, Unpack

from keyhole.client.futures import then
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
from keyhole.client.read_protocols import AsyncCatalogue, AsyncReads, AsyncWatches, Catalogue, Reads, StateWatches
from keyhole.client.state_scans import AsyncStateScan, StateScan
from keyhole.client.state_watches import AsyncWatch, Watch
from keyhole.client.typed_values import TypedAnswer, TypedEntries, TypedValues
from keyhole.errors import KeyMismatch, Unsupported
from keyhole.model.aggregate_answer import AggregateAnswer
from keyhole.model.aggregates import AskedAggregate, count
from keyhole.model.html_tables import state_table
from keyhole.model.state import StateDescriptor
from keyhole.model.state_path import state_path

T = TypeVar("T")


class _NotGiven:
    """Stands where no key is given by position. None is one: it is refused as null."""


_NOT_GIVEN: Any = _NotGiven()


class _Handle(Generic[T]):
    """What the handles of both clients have in common. Sends nothing.

    Raises:
        InvalidConfiguration: The path is not application/state.
        TypeError: Rows can't be turned into values of this type.
    """

    def __init__(self, catalogue: AsyncCatalogue | Catalogue, path: str, value: type[T] | None) -> None:
        self.application, self.name = state_path(path)
        self._catalogue = catalogue
        self._typed: TypedValues[T] = TypedValues(path, value)
        self._described: StateDescriptor | None = None

    @property
    def path(self) -> str:
        """What it is called, in one word: application/state."""
        return f"{self.application}/{self.name}"

    @property
    def known(self) -> StateDescriptor | None:
        """The state's descriptor as the last read, or `describe`, had it; None: there was none. Asks nobody."""
        codec = self._catalogue.known(self.application, self.name)
        return self._described if codec is None else codec.descriptor

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, value={self._typed.type_name})"

    if not TYPE_CHECKING:  # a type checker says by itself that there is none

        def __getitem__(self, key: object) -> NoReturn:
            """Also what Python asks of one in a `for`, or behind `in`."""
            raise TypeError(
                "a state's handle is no mapping: read a key by get(key), several by get_many, all by scan_all"
            )

    def _repr_html_(self) -> str:
        """For notebooks: what is known of the state."""
        return state_table(self.path, self.known)

    def _parted(
        self, key: Key, given: Mapping[str, Any], options: type[GetOptions] | type[ScanOptions]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Options, and columns of the key. Raises TypeError: the key is given by position, and columns are, too."""
        columns = {name: value for name, value in given.items() if name not in options.__annotations__}
        if key is not _NOT_GIVEN and columns:
            raise TypeError(
                f"unexpected keyword argument {next(iter(columns))!r}: the key is given by position; the options are "
                f"{', '.join(options.__annotations__)}"
            )
        return {name: value for name, value in given.items() if name not in columns}, columns

    def _check_is_clients(self, reads: object) -> None:
        if reads is not self._catalogue:
            raise Unsupported(
                f"a session keeps the epochs of keys that were read, and not of all keys of {self.path}; scan all of "
                "it by the `state` of the client",
                state=self.path,
            )

    def _key(
        self, of: StateDescriptor, columns: Mapping[str, Any], options: type[GetOptions] | type[ScanOptions]
    ) -> tuple[Any, ...]:
        """The key whose columns are these: of a scan without the map key. Raises KeyMismatch."""
        wanted = [column.name for column in (*of.scan_key, *(() if options is ScanOptions else of.entry_key))]
        if sorted(columns) != sorted(wanted):
            raise KeyMismatch(
                f"the key of state {self.path} was given by {', '.join(sorted(columns)) or 'no column'}; give "
                f"{', '.join(wanted) or 'none: it is scanned whole'}",
                state=self.path,
            )
        return tuple(columns[name] for name in wanted)


def no_watches(path: str) -> Unsupported:
    """The error of a handle whose reads are of one epoch."""
    return Unsupported(f"a snapshot does not change: watch state {path} by the `state` of the client", state=path)


class AsyncState(_Handle[T]):
    """A state, read through an AsyncClient or an AsyncSession; on their event loop only.

    Attributes:
        application, name: What it is called.
    """

    def __init__(self, reads: AsyncReads, catalogue: AsyncCatalogue, path: str, value: type[T] | None) -> None:
        super().__init__(catalogue, path, value)
        self._reads = reads
        self._catalogue: AsyncCatalogue = catalogue

    async def describe(self) -> StateDescriptor:
        """What the state is now: its key, its schema. Raises as AsyncClient.describe_state."""
        self._described = await self._catalogue.describe_state(self.application, self.name)
        return self._described

    async def _asked(
        self, key: Key, given: Mapping[str, Any], options: type[GetOptions] | type[ScanOptions]
    ) -> tuple[Key, dict[str, Any]]:
        """The key, and the options. The state is described first where the key is given by its columns."""
        others, columns = self._parted(key, given, options)
        if key is _NOT_GIVEN:
            key = self._key(self.known or await self.describe(), columns, options)
        return key, others

    async def get(self, key: Key = _NOT_GIVEN, /, **given: Any) -> TypedAnswer[T]:
        """The value of one key. Several that are gathered travel together.

        Args:
            key: As AsyncClient.get takes it.
            given: The key by its columns, where it is not given by position: `get(customer="c1")`. And the options of
                AsyncClient.get: a column that is called like one of these can be given by position alone.

        Raises:
            KeyMismatch: The columns are not those of the key; the message names these.
            ValueMismatch: The value does not fit the type that the reader asked for.
            TypeError: An option that there is not.
            KeyholeError: As AsyncClient.get.
        """
        key, options = await self._asked(key, given, GetOptions)
        return self._typed.answer(await self._reads.get(self.application, self.name, key, **options))

    async def get_many(self, keys: Iterable[Key], **options: Unpack[ManyOptions]) -> list[TypedAnswer[T]]:
        """The values of many keys, in their order. Raises as AsyncClient.get_many, and ValueMismatch as `get`."""
        answers = await self._reads.get_many(self.application, self.name, keys, **options)
        return [self._typed.answer(answer) for answer in answers]

    async def scan(self, key: Key = _NOT_GIVEN, /, **given: Any) -> TypedEntries[T]:
        """The entries of one key in order, as AsyncClient.scan; of a broadcast state without a key.

        Args:
            key, given: As `get` takes them, without the map key, and the options of AsyncClient.scan.

        Raises:
            KeyMismatch, ValueMismatch, TypeError: As `get`.
            KeyholeError: As AsyncClient.scan.
        """
        key, options = await self._asked(key, given, ScanOptions)
        return self._typed.entries(await self._reads.scan(self.application, self.name, key, **options))

    def scan_all(self, **options: Unpack[ScanAllOptions]) -> AsyncStateScan:
        """All keys of the state, whose values are of the handle's type, as an async iterator. Sends nothing yet.

            async for entry in orders.scan_all():
                print(entry.key, entry.value)

        Raises:
            Unsupported: It is a session's handle: a session keeps epochs of keys that were read, and not of all.
            KeyholeError: As AsyncClient.scan_all; and ValueMismatch as `get`.
        """
        self._check_is_clients(self._reads)
        return self._catalogue.scan_all(self.application, self.name, **options).of_type(self._typed.value)

    async def aggregate(
        self, aggregates: Mapping[str, AskedAggregate], /, **options: Unpack[AggregateOptions]
    ) -> AggregateAnswer:
        """Figures over all entries of the state, over those of `where`, or of a range of keys, computed by the servers
        that hold them.

            found = await orders.aggregate({"n": agg.count(), "most": agg.max("spent")}, where=field("city") == "Bern")

        Raises:
            Unsupported: It is a session's handle: a session keeps epochs of keys that were read, and not of all.
            KeyholeError: As AsyncClient.aggregate; and ValueMismatch as `get`, of the entries of a top.
        """
        self._check_is_clients(self._reads)
        return self._typed.aggregates(
            await self._catalogue.aggregate(self.application, self.name, aggregates, **options)
        )

    async def count(self, **options: Unpack[AggregateOptions]) -> int:
        """How many entries the state, or a range of its keys, has, or of how many `where` is true. Raises as
        `aggregate`.
        """
        found: int = (await self.aggregate({"count": count()}, **options))["count"]
        return found

    def watch(self, *keys: Key, **options: Unpack[WatchingOptions]) -> AsyncWatch:
        """The rows of keys, or of the whole state, and then each committed change, with values of the handle's type.

            async for change in orders.watch("o1"):
                print(change.kind, change.key, change.value)

        Raises:
            Unsupported: It is a session's handle, or a snapshot's.
            KeyholeError: As AsyncClient.watch; and ValueMismatch as `get`.
        """
        self._check_is_clients(self._reads)
        if not isinstance(self._catalogue, AsyncWatches):
            raise no_watches(self.path)
        return self._catalogue.watch(self.application, self.name, *keys, **options).of_type(self._typed.value)

    def mirror(self, *keys: Key, **options: Unpack[MirrorOptions]) -> AsyncMirror[TypedAnswer[T]]:
        """A copy of keys, or of the whole state, in this process, which a watch keeps current, with values of the
        handle's type.

            async with orders.mirror() as mirror:
                print(mirror.get("o1").value)

        Raises:
            Unsupported: It is a session's handle, or a snapshot's.
            KeyholeError: As AsyncClient.mirror; and its reads ValueMismatch as `get`.
        """
        self._check_is_clients(self._reads)
        if not isinstance(self._catalogue, AsyncWatches):
            raise no_watches(self.path)
        return self._catalogue.mirror(self.path, *keys, **options).of_type(self._typed)


class State(_Handle[T]):
    """A state, read through a Client, from any thread, or through a Session, from its thread. Each read blocks,
    but for `get_async` and `get_many_async`.

    Attributes:
        application, name: What it is called.
    """

    def __init__(self, reads: Reads, catalogue: Catalogue, path: str, value: type[T] | None) -> None:
        super().__init__(catalogue, path, value)
        self._reads = reads
        self._catalogue: Catalogue = catalogue

    def describe(self) -> StateDescriptor:
        """What the state is now: its key, its schema. Raises as Client.describe_state."""
        self._described = self._catalogue.describe_state(self.application, self.name)
        return self._described

    def _asked(
        self, key: Key, given: Mapping[str, Any], options: type[GetOptions] | type[ScanOptions]
    ) -> tuple[Key, dict[str, Any]]:
        """The same as AsyncState has it, but it blocks."""
        others, columns = self._parted(key, given, options)
        if key is _NOT_GIVEN:
            key = self._key(self.known or self.describe(), columns, options)
        return key, others

    def get(self, key: Key = _NOT_GIVEN, /, **given: Any) -> TypedAnswer[T]:
        """The value of one key. Takes and raises what AsyncState.get does."""
        key, options = self._asked(key, given, GetOptions)
        return self._typed.answer(self._reads.get(self.application, self.name, key, **options))

    def get_many(self, keys: Iterable[Key], **options: Unpack[ManyOptions]) -> list[TypedAnswer[T]]:
        """The values of many keys, in their order. Raises as Client.get_many, and ValueMismatch as `get`."""
        answers = self._reads.get_many(self.application, self.name, keys, **options)
        return [self._typed.answer(answer) for answer in answers]

    def get_async(self, key: Key = _NOT_GIVEN, /, **given: Any) -> Future[TypedAnswer[T]]:
        """As `get`, without waiting: see Client.get_async. A key by its columns waits where nothing is known of the
        state yet: `describe` first.
        """
        key, options = self._asked(key, given, GetOptions)
        return then(self._reads.get_async(self.application, self.name, key, **options), self._typed.answer)

    def get_many_async(self, keys: Iterable[Key], **options: Unpack[ManyOptions]) -> Future[list[TypedAnswer[T]]]:
        """As `get_many`, without waiting: see Client.get_many_async."""
        asked = self._reads.get_many_async(self.application, self.name, keys, **options)
        return then(asked, lambda answers: [self._typed.answer(answer) for answer in answers])

    def scan(self, key: Key = _NOT_GIVEN, /, **given: Any) -> TypedEntries[T]:
        """The entries of one key in order. Takes and raises what AsyncState.scan does."""
        key, options = self._asked(key, given, ScanOptions)
        return self._typed.entries(self._reads.scan(self.application, self.name, key, **options))

    def scan_all(self, **options: Unpack[ScanAllOptions]) -> StateScan:
        """All keys of the state, as an iterator that blocks. Takes and raises what AsyncState.scan_all does."""
        self._check_is_clients(self._reads)
        return self._catalogue.scan_all(self.application, self.name, **options).of_type(self._typed.value)

    def aggregate(
        self, aggregates: Mapping[str, AskedAggregate], /, **options: Unpack[AggregateOptions]
    ) -> AggregateAnswer:
        """Figures over entries of the state, computed by its servers. As AsyncState.aggregate."""
        self._check_is_clients(self._reads)
        return self._typed.aggregates(self._catalogue.aggregate(self.application, self.name, aggregates, **options))

    def count(self, **options: Unpack[AggregateOptions]) -> int:
        """How many entries the state, or a range of its keys, has, or of how many `where` is true. Raises as
        `aggregate`.
        """
        found: int = self.aggregate({"count": count()}, **options)["count"]
        return found

    def watch(self, *keys: Key, **options: Unpack[WatchingOptions]) -> Watch:
        """The rows of keys, or of the whole state, and then each committed change, with values of the handle's type.

            for change in orders.watch("o1"):
                print(change.kind, change.key, change.value)

        Raises:
            Unsupported: It is a session's handle, or a snapshot's.
            KeyholeError: As Client.watch; and ValueMismatch as `get`.
        """
        self._check_is_clients(self._reads)
        if not isinstance(self._catalogue, StateWatches):
            raise no_watches(self.path)
        return self._catalogue.watch(self.application, self.name, *keys, **options).of_type(self._typed.value)

    def mirror(self, *keys: Key, **options: Unpack[MirrorOptions]) -> Mirror[TypedAnswer[T]]:
        """A copy of keys, or of the whole state, in this process, with values of the handle's type. Takes and raises
        what AsyncState.mirror does.

            with orders.mirror() as mirror:
                print(mirror.get("o1").value)
        """
        self._check_is_clients(self._reads)
        if not isinstance(self._catalogue, StateWatches):
            raise no_watches(self.path)
        return self._catalogue.mirror(self.path, *keys, **options).of_type(self._typed)
