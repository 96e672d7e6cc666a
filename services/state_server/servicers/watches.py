"""Watches as gRPC has them: how many there are, and their messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from keyhole.changelog.base import Changelog
from keyhole.clock import Clock
from keyhole.encoding.storage_key import GROUP_BYTES
from keyhole.errors import Overloaded
from keyhole.rpc.convert_stamps import put_watched_stamp
from keyhole.rpc.frames import check_values
from keyhole.rpc.watch_requests import watch_asked
from keyhole.v1 import query_pb2 as pb
from services.state_server.read.table import Table
from services.state_server.read.watch_messages import Message, Sent
from services.state_server.read.watch_parts import WatchLimits
from services.state_server.read.watch_selection import Selections, WatchSelection
from services.state_server.read.watch_snapshots import WatchSnapshots
from services.state_server.read.watching import Watching
from services.state_server.registry import Registry
from services.state_server.servicers.changelog_history import ChangelogHistory

MOST_WATCHES = 20_000
"""On one server."""


class Watches:
    """The watches of one server. Event loop.

    Args:
        changelog: Makes the changelog of an application.
    """

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        changelog: Callable[[str], Changelog],
        limits: WatchLimits | None = None,
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._history = ChangelogHistory(changelog)
        self._limits = limits or WatchLimits()
        self._snapshots = WatchSnapshots(self._limits.most_snapshots, self._limits.hold_seconds)
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
            async with aclosing(watching.messages()) as messages:
                async for message in messages:
                    yield _response(table, message, select, selected=selected)
        finally:
            self.under_way -= 1


def _response(table: Table, message: Message, select: WatchSelection, *, selected: bool) -> pb.WatchResponse:
    response = pb.WatchResponse(
        changes=[_changes(table, sent, select) for sent in message.sent],
        token=message.token,
        snapshot_done=message.snapshot_done,
        as_of_ms=message.as_of_ms,
        selected=selected,
    )
    put_watched_stamp(message.stamp, response)
    return response


def _changes(table: Table, sent: Sent, select: WatchSelection) -> pb.WatchedChanges:
    if sent.spelled is not None:
        return sent.spelled
    spelled = _spelled(table, sent, select)
    if sent.shared:
        sent.spelled = spelled
    return spelled


def _spelled(table: Table, sent: Sent, select: WatchSelection) -> pb.WatchedChanges:
    changes = pb.WatchedChanges(
        key_group=sent.key_group,
        snapshot=sent.snapshot,
        keys=[key[GROUP_BYTES:] for key in sent.keys],
        values=_values(table, sent.rows, select),
        numbers=sent.numbers,
        begins=sent.begins,
        befores=[] if sent.befores is None else _values(table, sent.befores, select),
        expires_ms=sent.expires,
    )
    put_watched_stamp(sent.stamp, changes)
    return changes


def _values(table: Table, rows: Sequence[bytes | None], select: WatchSelection) -> list[bytes]:
    """Rows as they are sent; empty: none."""
    there = select.values([row for row in rows if row is not None])
    check_values(table.name, there, "a change")
    values = iter(there)
    return [b"" if row is None else next(values) for row in rows]
