"""How a fake state server answers watches: from the changes that its copies remember, each in the order of its puts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import NamedTuple

from keyhole.clock import SystemClock
from keyhole.encoding.selected_changes import SelectedChanges, ShownChange
from keyhole.encoding.storage_key import GROUP_BYTES, group_of
from keyhole.encoding.watch_token import NOT_BEGUN, WatchMark, WatchPlace
from keyhole.errors import KeyholeError, NotReady, ResumeGone
from keyhole.rpc.watch_requests import watch_asked
from keyhole.testing.fake_copies import HostedState
from keyhole.v1 import query_pb2 as pb


class _Part(NamedTuple):
    """Changes of one epoch and key group, numbered from where they begin."""

    begins: int
    epoch: int
    changes: Sequence[ShownChange]


class FakeWatch:
    """One watch of a copy. Its places in the changelog are those in the copy's list of changes. Event loop.

    Args:
        change: Gives the event that is set with the next change of the server.
        check: Raises why the watch ends.
        selects: The server knows of selections.

    Raises:
        KeyholeError: As watch_asked.
        ValueMismatch: It selects by what the state has not.
    """

    def __init__(
        self,
        state: HostedState,
        request: pb.WatchRequest,
        change: Callable[[], asyncio.Event],
        check: Callable[[], KeyholeError | None],
        *,
        selects: bool,
    ) -> None:
        if not selects:
            older = pb.WatchRequest()
            older.CopyFrom(request)
            older.ClearField("selection")
            older.start = older.stop = b""
            request = older
        self._state = state
        self._asked = asked = watch_asked(state.codec, request)
        self._selected = request.HasField("selection")
        self._change = change
        self._check = check
        self._select = SelectedChanges(state.descriptor, asked.select, as_json=asked.as_json)
        self._marks: dict[int, WatchMark] = {}
        if asked.place is not None:
            self._marks = {group: asked.place.marks[group] for group in sorted(asked.key_groups)}
        else:
            begin = NOT_BEGUN if asked.snapshot else self._here
            self._marks = dict.fromkeys(sorted(asked.key_groups), begin)

    @property
    def _here(self) -> WatchMark:
        return WatchMark(len(self._state.changes), self._state.epoch)

    async def responses(self) -> AsyncIterator[pb.WatchResponse]:
        """For as long as it is read.

        Raises:
            ResumeGone, NotReady: The token is of changes that the copy has not.
            KeyholeError: What `check` gives.
        """
        self._check_all()
        beginning = self._asked.place is None or any(mark.below is not None for mark in self._marks.values())
        yield self._response(None)
        while True:
            change = self._change()
            self._check_all()
            told = False
            for group in self._marks:
                for response in self._of_group(group):
                    told = True
                    yield response
            if beginning:
                beginning = False
                yield self._response(None, snapshot_done=True)
            elif told:
                # That the last epoch of each key group is whole.
                yield self._response(None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._asked.progress_seconds):
                    await change.wait()
                    continue
            yield self._response(None)

    def _check_all(self) -> None:
        if (error := self._check()) is not None:
            raise error
        if not self._state.ready or not self._asked.key_groups <= self._state.key_groups:
            raise NotReady(f"this server does not have all key groups of state {self._state.descriptor.state}")
        if any(mark.begun and mark.offset > len(self._state.changes) for mark in self._marks.values()):
            raise ResumeGone("the fake's state was hosted anew since the token; begin without it")

    def _of_group(self, group: int) -> Iterator[pb.WatchResponse]:
        mark = self._marks[group]
        if mark.begun:
            for part in self._behind(group, mark):
                yield from self._of_changes(group, part, mark.below)
            self._marks[group] = WatchMark(len(self._state.changes), self._state.epoch, 0, mark.below)
        if mark.below is not None:
            self._marks[group] = self._here
            rows = sorted(
                (key, row)
                for key, row in self._state.rows.items()
                if group_of(key) == group and key > (mark.below or b"") and self._watches(key)
            )
            shown = [ShownChange(0, key, row, None) for key, row in self._select.entries.kept(rows)]
            if shown:
                yield self._response(self._columns(group, self._state.epoch, shown, snapshot=True))

    def _watches(self, key: bytes) -> bool:
        return self._asked.keys is None or self._asked.keys.has(key)

    def _behind(self, group: int, mark: WatchMark) -> Iterator[_Part]:
        """What the key group's changes are behind a mark, epoch by epoch."""
        begins, skip = mark.offset, mark.skip
        found: list[ShownChange] = []
        number, epoch = 0, 0
        for at, change in enumerate(self._state.changes[mark.offset :], mark.offset):
            if group_of(change.key) != group:
                continue
            if change.epoch != epoch:
                if found:
                    yield _Part(begins, epoch, found)
                if epoch:
                    begins, skip, number, found = at, 0, 0, []
                epoch = change.epoch
            if number >= skip:
                found.append(ShownChange(number, change.key, change.row, change.before))
            number += 1
        if found:
            yield _Part(begins, epoch, found)

    def _of_changes(self, group: int, part: _Part, below: bytes | None) -> Iterator[pb.WatchResponse]:
        watched = [of for of in part.changes if self._watches(of.key) and (below is None or of.key <= below)]
        told = self._select.given(watched, known=True)
        if not told:
            return
        last = part.changes[-1].number + 1
        self._marks[group] = WatchMark(part.begins, self._marks[group].epoch, last, below)
        columns = self._columns(group, part.epoch, told, snapshot=False)
        columns.numbers.extend(change.number for change in told)
        columns.begins = part.begins
        yield self._response(columns)

    def _columns(self, group: int, epoch: int, told: Sequence[ShownChange], *, snapshot: bool) -> pb.WatchedChanges:
        befores = self._asked.before and not snapshot
        return pb.WatchedChanges(
            key_group=group,
            epoch=epoch,
            commit_time_ms=1_000 * epoch,
            snapshot=snapshot,
            keys=[change.key[GROUP_BYTES:] for change in told],
            values=self._values([change.row for change in told]),
            befores=self._values([change.before for change in told]) if befores else [],
        )

    def _values(self, rows: Sequence[bytes | None]) -> list[bytes]:
        values = iter(self._select.entries.values([row for row in rows if row is not None]))
        return [b"" if row is None else next(values) for row in rows]

    def _response(self, changes: pb.WatchedChanges | None, *, snapshot_done: bool = False) -> pb.WatchResponse:
        now_ms, fed = SystemClock().now_ms(), bool(self._state.descriptor.updates_topic_id)
        all_given = all(mark == self._here for mark in self._marks.values())
        epoch = self._state.epoch if all_given and not fed else 0
        return pb.WatchResponse(
            changes=[] if changes is None else [changes],
            token=WatchPlace(self._marks, now_ms).token(self._state.descriptor, self._asked.digest),
            snapshot_done=snapshot_done,
            as_of_ms=now_ms,
            epoch=epoch,
            commit_time_ms=1_000 * epoch,
            selected=self._selected,
        )
