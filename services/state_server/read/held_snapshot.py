"""A snapshot that several readers share: the last one that lets go of it closes it."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from keyhole.model.epoch import Position
from keyhole.stores.base import Snapshot
from keyhole.stores.overlay import OverlaySnapshot


class HeldSnapshot:
    """A snapshot that is closed when nobody holds it any more: a scan may outlive the epoch that it reads. Event loop.

    Attributes:
        snapshot: What readers see.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._holders = 1

    @functools.cached_property
    def positions(self) -> Mapping[int, Position]:
        """How far each key group of it is in the changelog. All are decoded, once for all who share the snapshot."""
        return self.snapshot.positions()

    @property
    def stored(self) -> Snapshot:
        """Of it, what the store has: all of that is committed. Closed with it."""
        return self.snapshot.stored if isinstance(self.snapshot, OverlaySnapshot) else self.snapshot

    def hold(self) -> HeldSnapshot:
        """Takes a share in it: it stays open until as many have called `release`."""
        self._holders += 1
        return self

    def release(self) -> None:
        """Gives a share back; the last one closes the snapshot."""
        self._holders -= 1
        if not self._holders:
            self.snapshot.close()
