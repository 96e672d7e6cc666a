"""Bugs of scans of whole states that are planted into a state server: a scan of one key is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keyhole.encoding.codec import EntryRange
from keyhole.encoding.storage_key import GROUP_BYTES
from keyhole.model.read import ReadBounds
from services.state_server.read.copies import Scanned
from services.state_server.read.table import Table
from tests.fault.workload import CHAINS, SUMS, TALLIES

_Entries = Iterator[tuple[bytes, bytes | None]]


def mix_epochs() -> None:
    """A scan of all sums is of two epochs: of each key group all but the first row is as it was when first scanned."""
    before: dict[bytes, bytes | None] = {}

    def mixed(entries: _Entries) -> _Entries:
        for at, (key, row) in enumerate(entries):
            first = before.setdefault(key, row)
            yield key, first if at else row

    _of_key_groups(SUMS, mixed)


def lose_keys() -> None:
    """A scan of all chains lacks the third row of each key group, as if it had been lost between two pages."""

    def losing(entries: _Entries) -> _Entries:
        return (entry for at, entry in enumerate(entries) if at != 2)

    _of_key_groups(CHAINS, losing)


def scan_the_last() -> None:
    """A scan of all tallies that is to be as of an epoch is as of the last one."""
    scan = Table.scan

    def last(self: Table, within: EntryRange, bounds: ReadBounds, **more: Any) -> Scanned:
        if self.descriptor.state == TALLIES and len(within.prefix) == GROUP_BYTES:
            bounds = bounds._replace(as_of=0)
        return scan(self, within, bounds, **more)

    Table.scan = last  # type: ignore[method-assign,assignment]


def _of_key_groups(state: str, changed: Any) -> None:
    """What a scan of a key group of this state finds is changed so."""
    scan = Table.scan

    def scanned(self: Table, within: EntryRange, bounds: ReadBounds, **more: Any) -> Scanned:
        found = scan(self, within, bounds, **more)
        if self.descriptor.state == state and len(within.prefix) == GROUP_BYTES:
            found.entries = changed(found.entries)
        return found

    Table.scan = scanned  # type: ignore[method-assign,assignment]
