"""One watch on the wire: its messages, decoded, and its next call where one was cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar

import grpc

from keyhole.client.wire.key_bounds import ALL_KEYS, KeyBounds
from keyhole.client.wire.link import Link
from keyhole.client.wire.links import CallAttempts, Links
from keyhole.client.wire.newer_schema import await_newer
from keyhole.client.wire.selected_rows import SelectedRows
from keyhole.client.wire.state_reads import StateReads
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.key_reading import entry_reader
from keyhole.encoding.storage_key import prefix_of
from keyhole.encoding.watch_token import WatchMark, marks_of, token_within
from keyhole.errors import (
    KeyholeError,
    Overloaded,
    ServerLost,
    StaleDescriptor,
    TooSlow,
    Unauthenticated,
    UnavailableError,
    ValueMismatch,
)
from keyhole.model.change import ChangeKind, StateChange
from keyhole.model.selection import EVERYTHING, Selection
from keyhole.rpc.convert import key_to_proto, time_from_ms
from keyhole.rpc.convert_predicates import selection_to_proto
from keyhole.rpc.watch_marks import marks_behind
from keyhole.rpc.watch_requests import check_watch_heeded
from keyhole.v1 import query_pb2 as pb

_PROGRESS_MS = 2_000
# A proxy says something each two seconds, and gives up a server that is silent after thirty.
_SILENT_SECONDS = 45.0
# Of a row of less than 16 fields, whose schema's version is below 128: how many fields, and the version.
_SCHEMA_BYTES, _ARRAY, _ONE_BYTE = 2, 0xA0, 0x80

_T = TypeVar("_T")


class WatchOptions(NamedTuple):
    """What a watch is asked for beside its state. `keys` empty: all that is `within`."""

    keys: Sequence[Any]
    snapshot: bool
    before: bool
    latest_only: bool
    select: Selection = EVERYTHING
    within: KeyBounds = ALL_KEYS


class WatchMessage(NamedTuple):
    """What came together.

    Attributes:
        changes: In the order in which they are to be taken in.
        whole: The token behind all of them.
        came: The token before them, and the message: from these comes the token between two changes.
        snapshot_done: All rows that were there have come.
        as_of: All that was committed by then has come; None: not known.
        epoch: The last one of which all has come.
    """

    changes: Sequence[StateChange]
    whole: str
    came: tuple[str, pb.WatchResponse]
    snapshot_done: bool
    as_of: datetime | None
    epoch: int

    def token(self, given: int) -> str:
        """Where a watch goes on once so many of the changes were given."""
        if given >= len(self.changes):
            return self.whole
        before, _ = self.came
        return token_within(before, self._marks(given)) if given and before else before

    def of_parts(self) -> WatchMessage:
        """The same where it came without a token: behind what was given of each key group one can go on all the same,
        unless its changes have no numbers.
        """
        before, message = self.came
        if message.token or not self.changes or not before:
            return self
        return self._replace(whole=token_within(before, self._marks(len(self.changes))))

    def _marks(self, given: int) -> Mapping[int, WatchMark]:
        """How far it is with the key groups of which something was given, and not all that has come."""
        before, message = self.came
        known, whole = marks_of(before), marks_of(self.whole)
        return marks_behind(message.changes, given, known, whole, is_end=bool(message.token))


class StoredMessage(NamedTuple):
    """What came together, as it came.

    Attributes:
        codec: Reads its keys and rows, and all that came before.
        response: Its changes, in the order in which they are to be taken in.
        whole: The token behind all of them.
    """

    codec: StateCodec
    response: pb.WatchResponse
    whole: str


class WatchStream:
    """One watch. Used from the event loop's thread only.

    Args:
        reads: Of the state.
        seconds: For how long nobody may be there who answers.
    """

    def __init__(
        self,
        links: Links,
        name: tuple[str, str],
        reads: Callable[[], StateReads],
        options: WatchOptions,
        seconds: float,
        after: str,
    ) -> None:
        self._links = links
        self._name = name
        self._reads = reads
        self._options = options
        self._seconds = seconds
        self._token = after
        self._loop = asyncio.get_running_loop()
        self._topic_id = ""
        self._as_of_ms = 0
        # How rows begin that the last codec reads.
        self._readable: tuple[StateCodec | None, set[bytes]] = (None, set())
        self._rows: tuple[StateCodec, SelectedRows] | None = None

    def messages(self) -> AsyncGenerator[WatchMessage]:
        """For as long as it is read. Close it. Raises as AsyncClient.watch."""
        return self._each(self._decoded)

    def stored(self) -> AsyncGenerator[StoredMessage]:
        """The same, and nothing of it decoded. Close it. Raises as AsyncClient.watch."""
        return self._each(self._as_it_came)

    async def _each(self, take: Callable[[pb.WatchResponse], Awaitable[_T]]) -> AsyncGenerator[_T]:
        deadline, attempts = self._anew()
        while True:
            request = await self._request(deadline)
            link = await attempts.link()
            heard = got_on = False
            try:
                async with aclosing(self._call(link, request)) as responses:
                    async for response in responses:
                        check_watch_heeded(request, response, link.target)
                        heard, got_on = True, self._gets_on(response) or got_on
                        yield await take(response)
            except UnavailableError as error:
                if not error.retryable or isinstance(error, (TooSlow, Overloaded, StaleDescriptor)):
                    raise attempts.error_for_caller(error) from error.__cause__
                if got_on:
                    deadline, attempts = self._anew()
                await attempts.again(error, link)
            except Unauthenticated as error:
                # What the stream was begun with has expired. The next call shows what the files have now.
                if not heard or "expired" not in error.facts:
                    raise
                if got_on:
                    deadline, attempts = self._anew()

    def _anew(self) -> tuple[float, CallAttempts]:
        """The time that it has from now on, and its attempts within that."""
        deadline = self._loop.time() + self._seconds
        return deadline, CallAttempts(self._links, deadline)

    def _gets_on(self, response: pb.WatchResponse) -> bool:
        """Whether somebody has all that is watched: a watch that was merely begun may end again as it has before."""
        later = response.as_of_ms > self._as_of_ms
        self._as_of_ms = max(self._as_of_ms, response.as_of_ms)
        return later or bool(response.changes) or response.snapshot_done

    async def _request(self, deadline: float) -> pb.WatchRequest:
        codec = await self._codec(deadline)
        columns = (*codec.descriptor.scan_key, *codec.descriptor.entry_key)
        try:
            keys = [_key(codec, columns, key) for key in self._options.keys]
            start, stop = self._options.within.encoded(codec)
            self._rows_of(codec)
        except KeyholeError:
            # The state may have been made anew since it was described.
            self._reads().outdated(codec)
            if (await self._codec(deadline)).descriptor == codec.descriptor:
                raise
            return await self._request(deadline)
        return pb.WatchRequest(
            state=pb.StateRef(application=self._name[0], state=self._name[1]),
            keys=keys,
            token=self._token,
            no_snapshot=not self._options.snapshot,
            before=self._options.before,
            latest_only=self._options.latest_only,
            progress_ms=_PROGRESS_MS,
            topic_id=codec.descriptor.topic_id,
            start=start,
            stop=stop,
            # One that is empty makes servers say whether they know of ranges.
            selection=selection_to_proto(self._options.select) or (pb.Selection() if start or stop else None),
        )

    def _rows_of(self, codec: StateCodec) -> SelectedRows:
        """What reads the rows that come. Raises ValueMismatch: They are selected by what the state has not."""
        if self._rows is None or self._rows[0] is not codec:
            self._rows = codec, SelectedRows(codec, self._options.select)
        return self._rows[1]

    async def _call(self, link: Link, request: pb.WatchRequest) -> AsyncGenerator[pb.WatchResponse]:
        call = link.stub.Watch(request)
        responses = aiter(call)
        try:
            while True:
                async with asyncio.timeout(_SILENT_SECONDS):
                    response = await anext(responses, None)
                if response is None:
                    break
                link.heard()
                yield response
        except TimeoutError:
            raise ServerLost(
                f"{link.target} has said nothing of a watch for {_SILENT_SECONDS:g} s, though its connection is there",
                address=link.target,
            ) from None
        except grpc.RpcError as error:
            raise link.failed(error) from error
        finally:
            call.cancel()
        raise ServerLost(f"{link.target} ended a watch; it is probably shutting down", address=link.target)

    async def _codec(self, deadline: float) -> StateCodec:
        codec = await self._reads().codec(deadline)
        self._topic_id = self._topic_id or codec.descriptor.topic_id
        if codec.descriptor.topic_id != self._topic_id:
            raise StaleDescriptor(
                f"state {'/'.join(self._name)} was made anew while it was watched; begin the watch without a token",
                topic_id=codec.descriptor.topic_id,
            )
        return codec

    async def _decoded(self, message: pb.WatchResponse) -> WatchMessage:
        _, changes = await self._read(
            lambda codec: [change for part in message.changes for change in _changes(codec, self._rows_of(codec), part)]
        )
        before, whole, as_of = self._token, message.token or self._token, time_from_ms(message.as_of_ms)
        came = WatchMessage(changes, whole, (before, message), message.snapshot_done, as_of, message.epoch).of_parts()
        self._token = came.whole
        return came

    async def _as_it_came(self, message: pb.WatchResponse) -> StoredMessage:
        codec, _ = await self._read(
            lambda codec: self._check_readable(codec, (row for part in message.changes for row in part.values))
        )
        self._token = message.token or self._token
        return StoredMessage(codec, message, self._token)

    async def _read(self, read: Callable[[StateCodec], _T]) -> tuple[StateCodec, _T]:
        """What is read of a message, and the codec that reads it."""
        deadline = self._loop.time() + self._seconds
        while True:
            codec = await self._codec(deadline)
            try:
                return codec, read(codec)
            except (StaleDescriptor, ValueMismatch) as error:
                # A row of a schema that was added since the state was described.
                self._reads().outdated(codec)
                await await_newer(self._links, partial(self._codec, deadline), codec, error, deadline)

    def _check_readable(self, codec: StateCodec, rows: Iterable[bytes]) -> None:
        """Whether the codec knows their schemas, which their first bytes say. Raises as RowCodec.decode."""
        of, known = self._readable
        if of is not codec:
            self._readable = _, known = codec, set[bytes]()
        for row in rows:
            if row and row[:_SCHEMA_BYTES] not in known:
                self._rows_of(codec).value(row)
                if row[0] < _ARRAY and row[1] < _ONE_BYTE:
                    known.add(row[:_SCHEMA_BYTES])


def _key(codec: StateCodec, columns: Sequence[Any], key: Any) -> pb.Key:
    """A key, with its map key or without."""
    of_key = codec.descriptor.scan_key
    given = len(key) if isinstance(key, (tuple, list)) else 1
    return key_to_proto(of_key if of_key and given == len(of_key) else columns, key)


def _changes(codec: StateCodec, rows: SelectedRows, part: pb.WatchedChanges) -> list[StateChange]:
    prefix, commit_time = prefix_of(part.key_group), time_from_ms(part.commit_time_ms)
    befores = part.befores or [b""] * len(part.keys)
    known, value = bool(part.befores), rows.value
    read = entry_reader(codec)
    changes = []
    for encoded, row, before in zip(part.keys, part.values, befores, strict=True):
        key, map_key = read(prefix + encoded)
        changes.append(
            StateChange(
                ChangeKind.PUT if row else ChangeKind.DELETE,
                key,
                map_key,
                value(row) if row else None,
                value(before) if before else None,
                known,
                part.epoch,
                commit_time,
                part.snapshot,
            )
        )
    return changes
