"""Readers that watch, or mirror, one key group of a simulated state, at whichever server says that it owns it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import NamedTuple

from keyhole.client.mirror_copy import MirrorCopy
from keyhole.client.mirror_intake import MirrorLimits
from keyhole.client.wire.watch_stream import StoredMessage, WatchOptions
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import prefix_of
from keyhole.errors import UnavailableError, UnknownApplication, UnknownState
from keyhole.model.selection import EVERYTHING
from keyhole.testing.changelog import MemoryChangelog
from keyhole.v1 import query_pb2 as pb
from services.state_server.read.table import Table
from services.state_server.servicers.watches import Watches
from tests.support.simulation import SimulatedServer, World
from tests.support.waiting import LONG_SECONDS


class Change(NamedTuple):
    """A row or a change. `row` None: deleted."""

    key: bytes
    row: bytes | None
    epoch: int
    snapshot: bool


class WatchedGroup:
    """Goes on behind its token each time that it reads.

    Attributes:
        kept: What the key group holds, by all that was told.
        last: By key, the epoch of what was told last.
        seen: All changes.
        complete: All until this epoch was told; None: nothing was, so far.
    """

    def __init__(self, key_group: int) -> None:
        self.key_group = key_group
        self.forget()

    def forget(self) -> None:
        """It begins again: the changelog may not have any more what has changed since."""
        self.token = ""
        self.kept: dict[bytes, bytes] = {}
        self.last: dict[bytes, int] = {}
        self.seen = set[tuple[bytes, int]]()
        self.complete: int | None = None

    def read(self, world: World, server: SimulatedServer, most: int) -> list[Change]:
        """What the server tells it now, at most so many messages with changes. Nothing where it owns nothing of it."""
        table = server.tables.get((world.descriptor.application, world.descriptor.state))
        if server.servicer is None or table is None or self.key_group not in table.groups:
            return []
        watches = Watches(server._registry, world.clock, partial(MemoryChangelog, world.kafka))
        changes: list[Change] = []
        # Not this one, or not now: it has another owner by now, of which it does not know.
        with suppress(UnavailableError, UnknownState, UnknownApplication):
            world.run(asyncio.wait_for(self._read(world, watches, most, changes, table), LONG_SECONDS))
        return changes

    async def _read(self, world: World, watches: Watches, most: int, changes: list[Change], table: Table) -> None:
        request = pb.WatchRequest(
            state=pb.StateRef(application=world.descriptor.application, state=world.descriptor.state),
            token=self.token,
            key_groups=[self.key_group],
        )
        async with aclosing(watches.responses(request)) as responses:
            greeted = False
            async for message in responses:
                for part in message.changes:
                    for key, row in zip(part.keys, part.values, strict=True):
                        changes.append(Change(prefix_of(part.key_group) + key, row or None, part.epoch, part.snapshot))
                self.token = message.token or self.token
                self.heard(StoredMessage(table.codec, message, self.token))
                most -= bool(message.changes)
                if message.epoch:
                    self.complete = max(message.epoch, self.complete or 0)
                # The first message says that it is heard, and nothing else.
                if message.epoch or not most or (greeted and not message.changes and not message.snapshot_done):
                    return
                greeted = True

    def heard(self, message: StoredMessage) -> None:
        """Of each message, by the descriptor that its server has."""

    def take(self, change: Change) -> None:
        """Takes in what was told."""
        self.last[change.key] = change.epoch
        if change.row is None:
            self.kept.pop(change.key, None)
        else:
            self.kept[change.key] = change.row
        if not change.snapshot:
            self.seen.add((change.key, change.epoch))

    def expected(self, of_epoch: Mapping[bytes, bytes], complete: int) -> bool:
        """Whether it has what the epoch has, but for keys of which it was told more."""
        keys = {key for key in of_epoch.keys() | self.kept.keys() if self.last.get(key, 0) <= complete}
        return all(self.kept.get(key) == of_epoch.get(key) for key in keys)


class MirroredGroup(WatchedGroup):
    """A watch, and a mirror that is kept by it.

    Attributes:
        copy: What it shows.
        codec: By which its rows are read; None: it was sent nothing yet.
        shown_epoch: Of which it was last seen to be.
    """

    def __init__(self, key_group: int, world: World) -> None:
        self._world = world
        super().__init__(key_group)

    def forget(self) -> None:
        """Another copy is begun with, as where a watch ends with RESUME_GONE."""
        super().forget()
        clock = self._world.clock
        asked = WatchOptions((), True, False, False, EVERYTHING)
        self.copy = MirrorCopy(
            self._world.descriptor.path,
            asked,
            MirrorLimits(10_000, 1 << 20),
            (lambda: clock.now_ms() / 1000, clock.monotonic),
        )
        self.codec: StateCodec | None = None
        self.shown_epoch = 0

    def heard(self, message: StoredMessage) -> None:
        self.codec = message.codec
        self.copy.take(message)
