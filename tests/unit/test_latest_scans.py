"""Scans of the latest on a state server: of what was staged when they began, in bounded memory, with turns for others.

What they give of each kind: tests/property/test_scans_of_the_latest.py.
"""

from __future__ import annotations

from unittest import mock

import pytest

from keyhole.errors import ValueMismatch
from keyhole.model.read import ReadBounds
from keyhole.model.state import StateKind
from services.state_server.read import copies
from services.state_server.read.copies import Scanned
from services.state_server.write import staged
from tests.support.hosts import Hosted
from tests.support.states import descriptor, group, key, names_in, row

LATEST = ReadBounds(latest=True)
NAMES = sorted(map(key, names_in(group("a"), 9)))
A, B, C = NAMES[:3]


def begun(hosted: Hosted) -> Scanned:
    """A scan of the key group."""
    return hosted.table.scan(hosted.table.codec.group_range(group("a")), LATEST)


def rest(scanned: Scanned) -> dict[bytes, bytes]:
    return {name: stored for name, stored in scanned.entries if stored is not None}


def found(hosted: Hosted) -> tuple[int, dict[bytes, bytes]]:
    """Of which epoch anything is staged, and the entries."""
    scanned = begun(hosted)
    try:
        return scanned.source.staged_epoch, rest(scanned)
    finally:
        scanned.close()


async def test_a_scan_has_what_was_staged_when_it_began_until_it_is_closed() -> None:
    hosted = Hosted(of=descriptor(kind=StateKind.REDUCING, reducers=("sum",)))
    await hosted.own()
    await hosted.apply(1, {A: row(1.0), B: row(2.0)})
    assert found(hosted) == (0, {A: row(1.0), B: row(2.0)})
    receipts = await hosted.stage(2, {A: row(5.0), C: row(3.0)})
    laid = {A: row(6.0), B: row(2.0), C: row(3.0)}
    assert found(hosted) == (2, laid)
    before, unread = begun(hosted), begun(hosted)
    first = next(before.entries)
    await hosted.commit(2, receipts)
    assert (before.source.epoch, before.source.staged_epoch, {first[0]: first[1]} | rest(before)) == (1, 2, laid)
    assert found(hosted) == (0, laid)
    before.close()
    unread.close()
    assert list(unread.entries) == [], "a scan that is closed keeps rows"
    # What is given up is not in a scan that begins later.
    await hosted.stage(3, {A: row(9.0)})
    again = begun(hosted)
    await hosted.stage(3, {B: row(9.0)}, round_=1)
    assert rest(again)[A] == row(15.0)
    assert found(hosted) == (3, {A: row(6.0), B: row(11.0), C: row(3.0)})
    again.close()
    # More than a scan may keep: what is committed, and says so. Look-ups keep nothing.
    with mock.patch.object(copies, "MOST_STAGED_BYTES", 100):
        assert found(hosted) == (0, laid)
        answers = hosted.table.lookup([B], LATEST)
        assert (answers.rows[0], answers.sources[0].staged_epoch) == (row(11.0), 3)
    hosted.clock.advance(3.5)  # the lease has passed
    assert found(hosted) == (0, laid)
    hosted.host.confirm(hosted.run, hosted.version)
    await hosted.stage(3, {C: b"no row"}, round_=2)
    with pytest.raises(ValueMismatch):  # as its commit will
        found(hosted)
    await hosted.host.close()


async def test_others_have_their_turn_while_keys_are_sorted_and_rows_are_merged() -> None:
    hosted = Hosted()
    await hosted.own()
    await hosted.stage(1, {name: row(float(at)) for at, name in enumerate(reversed(NAMES))})
    part = hosted.host.attempts.part("counts", A[:2])
    assert part is not None
    rows = part.rows.in_memory()
    assert rows is not None
    with mock.patch.object(staged, "_RUN_KEYS", 2):
        # Five runs of two keys, and as many pieces of the merged ones.
        assert len(list(part.rows.ordering(rows))) == 4 + 5
    assert list(part.rows.ordering(rows)) == []
    assert part.rows.keys_between(b"", None) == NAMES
    assert part.rows.keys_between(NAMES[2], NAMES[4]) == NAMES[2:4]
    scanned = begun(hosted)
    entries = list(scanned.entries)
    assert [name for name, stored in entries if stored is not None] == NAMES
    assert len([name for name, stored in entries if stored is None]) >= 8 * len(NAMES)
    scanned.close()
    await hosted.host.close()
