"""A copy of a state in the reader's own process, which a watch keeps current: `client.mirror("shop/orders")`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

from keyhole.client.bounds import Duration, seconds_of
from keyhole.client.event_loop_client import running_loop
from keyhole.client.mirror_copy import MirrorCopy
from keyhole.client.mirror_intake import MirrorLimits
from keyhole.client.mirror_keeping import BeginWatch, MirrorKeeper
from keyhole.client.options import (
    Key,
    MapKey,
    MirrorOptions,
    ReadOptions,
    RequestedRead,
    asked_of,
    defaults,
    watched_of,
)
from keyhole.client.typed_values import TypedAnswer, TypedValues
from keyhole.client.wire.key_bounds import columns_given
from keyhole.client.wire.lookups import keys_of
from keyhole.client.wire.scanner import checked_limit
from keyhole.client.wire.watch_stream import WatchOptions
from keyhole.errors import ClientClosed, MalformedRequest, Unsupported
from keyhole.model.given import flag_of, whole_of
from keyhole.model.read import Answer, Entries, KeyedEntry, ReadBounds
from keyhole.rpc import forked
from keyhole.rpc.convert import time_from_ms

A_co = TypeVar("A_co", bound=Answer, covariant=True)
T = TypeVar("T")

_BEGIN_SECONDS = 60.0
_ENTRIES, _BYTES = 1_000_000, 256 << 20
_ANY, _UNBOUND = ReadBounds(), defaults(0.0)


@dataclass(frozen=True)
class Mirrored:
    """Of what a mirror is, and by what it reads.

    Attributes:
        path: application/state.
        keys: None: all.
        watch: (what is asked for, seconds) -> begins watches; a call may take so long to find somebody who answers.
        ask: Lookups of these keys, by the client.
    """

    path: str
    keys: Sequence[Key]
    watch: Callable[[WatchOptions, float], BeginWatch]
    ask: Callable[[Sequence[Key], ReadOptions], Awaitable[Sequence[Answer]]]


class _MirrorReads(Generic[A_co]):
    """What is read of a copy, in any thread, and without asking anybody."""

    def __init__(
        self,
        kept: MirrorKeeper,
        path: str,
        typed: TypedValues[Any] | None,
    ) -> None:
        self._kept = kept
        self._typed = typed
        self._answer: Callable[[Answer], Any] | None = None if typed is None else typed.answer
        self.path = path

    def _copy(self) -> MirrorCopy:
        copy = self._kept.shown
        if copy is None or forked.process.cut_off:
            forked.check()
            raise self._kept.refusal()
        return copy

    def get(self, key: Key) -> A_co:
        """The value of one key, as the copy has it; an absent key is an answer with `found` False. Asks nobody.

        Any thread; it takes microseconds. The answer says of which epoch it is, and in `source.as_of` how old.

        Raises:
            KeyMismatch, NullKey: The key does not fit the state.
            MalformedRequest: The mirror is of some keys, and this is none of them.
            ClientClosed: It was closed, or its client was.
            Unsupported: It has not begun; or this process was forked since.
            KeyholeError: Why it has ended: UnknownState, StaleDescriptor, PermissionDenied, TooLarge and others.
        """
        # The hot path: as `_copy`.
        copy = self._kept.shown
        if copy is None or forked.process.cut_off:
            copy = self._copy()
        answer, typed = copy.answer(key), self._answer
        return answer if typed is None else typed(answer)  # type: ignore[return-value] # without a type A_co is Answer

    def get_many(self, keys: Iterable[Key]) -> list[A_co]:
        """The values of many keys, in their order, all of one moment of the copy. Raises as `get`."""
        return self._all_typed(self._copy().answers(keys_of(keys)))

    def _all_typed(self, answers: list[Answer]) -> list[A_co]:
        typed = self._answer
        return answers if typed is None else [typed(answer) for answer in answers]  # type: ignore[return-value]

    def scan(
        self,
        key: Key,
        *,
        start: MapKey | None = None,
        stop: MapKey | None = None,
        descending: bool = False,
        limit: int | None = None,
    ) -> Entries:
        """The entries of one key, ordered by map key; of a list state, its elements. All of one moment. Asks nobody.

        The first one makes an index of the copy, which is kept from then on.

        Args:
            key, start, stop, descending, limit: As AsyncClient.scan takes them.

        Raises:
            Unsupported: The state has no map keys.
            MalformedRequest: A limit below 1; or the mirror is not of all entries of the key.
            KeyholeError: As `get`.
        """
        asked, descending = (columns_given(start), columns_given(stop)), flag_of("descending", descending)
        entries = self._copy().entries_of(key, asked, checked_limit(limit), descending=descending)
        return entries if self._typed is None else self._typed.entries(entries)

    def __contains__(self, key: Key) -> bool:
        return self._copy().answer(key).found

    def __len__(self) -> int:
        """Of map and list states each entry counts."""
        return self._copy().entries

    def __bool__(self) -> bool:
        """Always: whether it has entries is for `len`."""
        return True

    def __iter__(self) -> Iterator[KeyedEntry]:
        """All entries as of one moment of the copy, in no order that means something."""
        typed, entries = self._typed, self._copy().keyed_entries()
        return entries if typed is None else (entry._replace(value=typed.value(entry.value)) for entry in entries)

    @property
    def epoch(self) -> int:
        """The last epoch of which the copy has all; 0: none, or the state is fed by updates."""
        return self._copy().epoch

    @property
    def as_of(self) -> datetime | None:
        """The copy has all that was committed by then, UTC; None: not known."""
        return time_from_ms(self._copy().as_of_ms)

    @property
    def staleness_seconds(self) -> float:
        """How long ago that was: the copy's age, infinite where it is not known. What `max_staleness` bounds."""
        return self._copy().age_seconds

    @property
    def age_seconds(self) -> float:
        """The same by its earlier name."""
        return self.staleness_seconds

    @property
    def size_bytes(self) -> int:
        """About what the copy takes in memory: what `max_bytes` bounds."""
        return self._copy().size

    @property
    def copies_taken(self) -> int:
        """How often all rows were taken: 1, and one more each time that the watch could not go on."""
        return self._kept.taken

    def __repr__(self) -> str:
        copy = self._kept.shown
        at = "not there" if copy is None else f"{copy.entries} entries, epoch={copy.epoch}"
        return f"<{type(self).__name__} {self.path!r}: {at}>"


class AsyncMirror(_MirrorReads[A_co]):
    """A copy that a watch keeps current, made by AsyncClient.mirror, on the client's event loop.

        async with client.mirror("shop/orders") as mirror:
            answer = mirror.get("o1")
            fresh = await mirror.fetch("o1", max_staleness=5)

    `async with` waits until all rows are there. `get`, `get_many`, `len` and loops are plain calls, in any thread.
    """

    def __init__(
        self,
        of: Mirrored,
        options: MirrorOptions,
        typed: TypedValues[Any] | None = None,
    ) -> None:
        asked = WatchOptions(of.keys, True, False, False, *watched_of(of.keys, options, MirrorOptions))
        timeout = options.get("timeout")
        self._seconds = seconds_of("timeout", _BEGIN_SECONDS if timeout is None else timeout)
        if self._seconds <= 0:
            raise MalformedRequest(
                f"timeout is {timeout}; the rows take some time: give it a number of seconds above 0"
            )
        limits = MirrorLimits(
            _bound("max_entries", options.get("max_entries", _ENTRIES)),
            _bound("max_bytes", options.get("max_bytes", _BYTES)),
        )
        kept = MirrorKeeper(of.path, of.watch(asked, self._seconds), lambda: MirrorCopy(of.path, asked, limits))
        super().__init__(kept, of.path, typed)
        self._of = of
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        """Waits for all rows.

        Raises:
            DeadlineExceeded: They have not come within the timeout.
            TooLarge: There are more than its bounds allow, or it names too many keys.
            Unsupported: It was begun before; make another one.
            KeyholeError: As AsyncClient.watch.
        """
        if self._loop is not None:
            raise Unsupported(f"a mirror begins once; make another one of {self.path}", state=self.path)
        self._loop = asyncio.get_running_loop()
        try:
            await self._kept.begin(self._seconds)
        except BaseException:
            await self._kept.end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends it, and lets go of the copy. Idempotent. Raises Unsupported: on another event loop than its own."""
        loop = self._loop
        if forked.process.cut_off:
            # Its task is the parent's.
            return
        if loop is not None and loop.is_closed():
            self._kept.abandon()
            return
        if loop is not None and loop is not running_loop():
            raise self._elsewhere()
        await self._kept.end()

    def _elsewhere(self) -> Unsupported:
        of = f"the mirror of {self.path} belongs to the event loop that began it, and this is another one"
        return Unsupported(f"{of}: there its plain calls alone can be used", state=self.path)

    async def fetch(self, key: Key, **options: Unpack[ReadOptions]) -> A_co:
        """The value of one key, by the copy where that meets `max_staleness` and `min_epoch`, else by a server.

        A server is also asked for `stale="never"`, for `as_of`, and for a key that the mirror is not of. What it
        answers does not change the copy.

        Raises:
            KeyholeError: As `get`, and as AsyncClient.get.
        """
        answer = self._held_of(key, options)
        if answer is None:
            (answer,) = await self._of.ask([key], options)
        typed = self._answer
        return answer if typed is None else typed(answer)  # type: ignore[return-value]

    def _held_of(self, key: Key, options: ReadOptions) -> Answer | None:
        """What the copy has of one key, as `_held`."""
        return self._copy().good_enough(key, _bounds(options))

    async def fetch_many(self, keys: Iterable[Key], **options: Unpack[ReadOptions]) -> list[A_co]:
        """The values of many keys, in their order, each as `fetch` has it. One request asks for all that need it."""
        found, lacking = self._held(keys, options)
        return self._filled(found, lacking, await self._of.ask(list(lacking.values()), options) if lacking else [])

    def _held(self, keys: Iterable[Key], options: ReadOptions) -> tuple[list[Answer | None], dict[int, Key]]:
        """What the copy has of these keys that meets the bounds, and the keys that a server is to be asked for, by
        their index. Asks nobody. Raises as `get`.
        """
        copy, wanted = self._copy(), keys_of(keys)
        bounds = _bounds(options)
        found = [copy.good_enough(key, bounds) for key in wanted]
        return found, {index: wanted[index] for index, answer in enumerate(found) if answer is None}

    def _filled(
        self, found: Sequence[Answer | None], lacking: Mapping[int, Key], asked: Sequence[Answer]
    ) -> list[A_co]:
        """The answers of the copy, and those of a server in their places."""
        of_server = dict(zip(lacking, asked, strict=True))
        answers = [of_server[index] if answer is None else answer for index, answer in enumerate(found)]
        return self._all_typed(answers)

    async def wait_for(self, epoch: int | Mapping[int, int], *, timeout: Duration = _BEGIN_SECONDS) -> None:  # noqa: ASYNC109 - as of a read
        """Returns once the copy has all of an epoch; or epochs by key group, as a WriteToken has them.

        Raises:
            EpochNotReached: It has not within the timeout.
            MalformedRequest: There is no such epoch, or key group.
            Unsupported: On another event loop than its own.
            KeyholeError: Why the mirror has ended.
        """
        self._copy()
        if self._loop is not running_loop():
            raise self._elsewhere()
        _bounds({"min_epoch": epoch})
        await self._kept.reached(epoch, seconds_of("timeout", timeout))

    def of_type(self, typed: TypedValues[T]) -> AsyncMirror[TypedAnswer[T]]:
        """The same mirror, not begun, whose values are of another type."""
        return AsyncMirror(self._of, self._options, typed)


class Mirror(_MirrorReads[A_co]):
    """As AsyncMirror, for threads, any number of which may read one. Made by Client.mirror.

        with client.mirror("shop/orders") as mirror:
            answer = mirror.get("o1")
            fresh = mirror.fetch("o1", max_staleness=5)

    `with` blocks until all rows are there.
    """

    def __init__(self, run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any], of: AsyncMirror[A_co]) -> None:
        super().__init__(of._kept, of.path, of._typed)
        self._run = run
        self._async = of

    def __enter__(self) -> Self:
        """Blocks until all rows are there. Raises as AsyncMirror."""
        self._run(self._async.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends it, and lets go of the copy. Blocks until it has. Idempotent."""
        if forked.process.cut_off:
            return
        # A client that is closed has ended it.
        with contextlib.suppress(ClientClosed):
            self._run(self._async.close)

    def fetch(self, key: Key, **options: Unpack[ReadOptions]) -> A_co:
        """The value of one key, by the copy where that is good enough. Blocks where it is not. As AsyncMirror.fetch."""
        answer = self._async._held_of(key, options)
        if answer is None:
            (answer,) = self._run(lambda: self._asked([key], options))
        typed = self._answer
        return answer if typed is None else typed(answer)  # type: ignore[return-value]

    def fetch_many(self, keys: Iterable[Key], **options: Unpack[ReadOptions]) -> list[A_co]:
        """The values of many keys, in their order. Blocks where a server is asked. As AsyncMirror.fetch_many."""
        found, lacking = self._async._held(keys, options)
        asked = self._run(lambda: self._asked(list(lacking.values()), options)) if lacking else []
        return self._async._filled(found, lacking, asked)

    async def _asked(self, keys: Sequence[Key], options: ReadOptions) -> Sequence[Answer]:
        return await self._async._of.ask(keys, options)

    def wait_for(self, epoch: int | Mapping[int, int], *, timeout: Duration = _BEGIN_SECONDS) -> None:
        """Blocks until the copy has all of an epoch. As AsyncMirror.wait_for."""
        self._run(lambda: self._async.wait_for(epoch, timeout=timeout))

    def of_type(self, typed: TypedValues[T]) -> Mirror[TypedAnswer[T]]:
        """The same mirror, not begun, whose values are of another type."""
        return Mirror(self._run, self._async.of_type(typed))


def _bounds(options: ReadOptions) -> ReadBounds:
    """What an answer must meet. Raises as AsyncClient.get."""
    return _bounds_of(asked_of(options, _UNBOUND)) if options else _ANY


@functools.lru_cache
def _bounds_of(asked: RequestedRead) -> ReadBounds:
    # A read of the copy takes less than what its bounds are made of.
    return asked.read()[0]


def _bound(name: str, most: int) -> int:
    whole = whole_of(most)
    if whole is None or whole < 1:
        raise MalformedRequest(f"{name} is {most!r}; give a whole number from 1 on")
    return whole
