"""Watches as gRPC has them: how many there are, and their messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from itertools import chain

from keyhole.changelog.base import Changelog
from keyhole.clock import Clock
from keyhole.encoding.storage_key import GROUP_BYTES
from keyhole.encoding.watch_token import marks_of, token_within
from keyhole.errors import Overloaded
from keyhole.model.epoch import NO_EPOCH, EpochStamp
from keyhole.rpc.convert_stamps import put_watched_stamp
from keyhole.rpc.frames import portions
from keyhole.rpc.watch_marks import marks_behind
from keyhole.rpc.watch_requests import watch_asked
from keyhole.v1 import query_pb2 as pb
from services.state_server.read.read_turns import ReadTurns
from services.state_server.read.table import Table
from services.state_server.read.watch_messages import Message, Sent, SpelledChanges
from services.state_server.read.watch_parts import WatchLimits
from services.state_server.read.watch_selection import Selections, WatchSelection
from services.state_server.read.watch_snapshots import WatchSnapshots
from services.state_server.read.watching import Watching
from services.state_server.registry import Registry
from services.state_server.servicers.changelog_history import ChangelogHistory
from services.state_server.servicers.large_entries import check_entries

MOST_WATCHES = 20_000
"""On one server."""


class Watches:
    """The watches of one server. Event loop.

    Args:
        changelog: Makes the changelog of an application.
        turns: Of all who look at many entries of this server.
    """

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        changelog: Callable[[str], Changelog],
        limits: WatchLimits | None = None,
        turns: ReadTurns | None = None,
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._history = ChangelogHistory(changelog)
        self._limits = limits or WatchLimits()
        self._snapshots = WatchSnapshots(self._limits.most_snapshots, self._limits.hold_seconds, turns)
        self._selections = Selections()
        self.under_way = 0

    async def responses(self, request: pb.WatchRequest) -> AsyncGenerator[pb.WatchResponse]:
        """The messages of a watch. Close it.

        Raises:
            Overloaded: There are too many.
            ValueMismatch: What it selects by the state has not.
            KeyholeError: As watch_asked and Watching.messages.
        """
        if self.under_way >= MOST_WATCHES:
            raise Overloaded(f"{self.under_way:,} watches are under way on this server, and no more may be")
        self.under_way += 1
        try:
            table = self._registry.table(request.state.application, request.state.state)
            asked = watch_asked(table.codec, request)
            select = WatchSelection(table, asked, self._selections, self._limits.turn)
            selected = request.HasField("selection")
            watching = Watching(
                table,
                asked,
                self._history,
                self._clock,
                lambda: self._registry.ended_watch(table),
                self._limits,
                self._snapshots,
                select,
            )
            before, as_of_ms, stamp = "", 0, NO_EPOCH
            async with aclosing(watching.messages()) as messages:
                async for message in messages:
                    *parts, last = _parts(table, message, select)
                    given: list[pb.WatchedChanges] = []
                    for part in parts:
                        given += part
                        token = _token_within(before, message, [*chain.from_iterable(parts), *last], given)
                        yield _response(part, token, as_of_ms, stamp, selected=selected)
                    before, as_of_ms, stamp = message.token, message.as_of_ms, message.stamp
                    response = _response(last, message.token, as_of_ms, stamp, selected=selected)
                    response.snapshot_done = message.snapshot_done
                    yield response
        finally:
            self.under_way -= 1


def _response(
    changes: Sequence[pb.WatchedChanges], token: str, as_of_ms: int, stamp: EpochStamp, *, selected: bool
) -> pb.WatchResponse:
    response = pb.WatchResponse(changes=changes, token=token, as_of_ms=as_of_ms, selected=selected)
    put_watched_stamp(stamp, response)
    return response


def _parts(table: Table, message: Message, select: WatchSelection) -> list[list[pb.WatchedChanges]]:
    """What each response has of a message: as JSON that may be hundreds of times as large as it is stored."""
    spelled = [part for sent in message.sent for part in _changes(table, sent, select)]
    parts = [[part.changes for part in spelled[run]] for run in portions(part.size for part in spelled)]
    return parts or [[]]


def _token_within(
    before: str, message: Message, changes: Sequence[pb.WatchedChanges], given: Sequence[pb.WatchedChanges]
) -> str:
    """Behind the first parts of a message.

    A part without a token would be behind no place of any reader, while the token of what another server sends goes on:
    the one would have changes twice, and the other half an epoch.

    Args:
        before: The token behind the messages before.
        changes: All of the message.
        given: Of these: all that those parts have.
    """
    count = sum(len(part.keys) for part in given)
    marks = marks_behind(changes, count, marks_of(before), marks_of(message.token))
    return token_within(before, marks)


def _changes(table: Table, sent: Sent, select: WatchSelection) -> Sequence[SpelledChanges]:
    if sent.spelled is not None:
        return sent.spelled
    spelled = list(_spelled(table, sent, select))
    if sent.shared:
        sent.spelled = spelled
    return spelled


def _spelled(table: Table, sent: Sent, select: WatchSelection) -> Iterator[SpelledChanges]:
    """In parts of a message's size, each of at least one change."""
    values = _values(table, sent.keys, sent.rows, select, "the value")
    befores = [] if sent.befores is None else _values(table, sent.keys, sent.befores, select, "the earlier value")
    sizes = [len(key) + len(value) for key, value in zip(sent.keys, values, strict=True)]
    if befores:
        sizes = [size + len(before) for size, before in zip(sizes, befores, strict=True)]
    for run in portions(sizes) if sizes else [slice(0)]:
        changes = pb.WatchedChanges(
            key_group=sent.key_group,
            snapshot=sent.snapshot,
            keys=[key[GROUP_BYTES:] for key in sent.keys[run]],
            values=values[run],
            numbers=sent.numbers[run],
            begins=sent.begins,
            befores=befores[run],
            expires_ms=None if sent.expires is None else sent.expires[run],
        )
        put_watched_stamp(sent.stamp, changes)
        yield SpelledChanges(changes, sum(sizes[run]))


def _values(
    table: Table, keys: Sequence[bytes], rows: Sequence[bytes | None], select: WatchSelection, what: str
) -> list[bytes]:
    """Rows as they are sent; empty: none."""
    there = iter(select.values([row for row in rows if row is not None]))
    values = [b"" if row is None else next(there) for row in rows]
    check_entries(table, keys, values, what)
    return values
