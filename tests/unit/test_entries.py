"""What a scan gives cannot be changed."""

from __future__ import annotations

from typing import Any

import pytest

from keyhole.model.read import Entries, Entry, Role, Source

SOURCE = Source("server-0", Role.OWNER, 7, None, None, 1, 1, unconfirmed=False)
ENTRIES = Entries((Entry(1, "a"), Entry(2, "b")), SOURCE)


def test_entries_are_read_as_a_sequence() -> None:
    assert len(ENTRIES) == 2
    assert [entry.map_key for entry in ENTRIES] == [1, 2]
    assert ENTRIES[1].value == "b"
    assert ENTRIES.values == ("a", "b")
    assert ENTRIES.epoch == 7
    assert not Entries((), SOURCE)


@pytest.mark.parametrize(
    "change",
    [
        lambda of: setattr(of, "entries", ()),
        lambda of: setattr(of, "source", None),
        lambda of: setattr(of[0], "value", "c"),
        lambda of: setattr(of[0], "map_key", 3),
        lambda of: of.entries.append(Entry(3, "c")),
        lambda of: of.__setitem__(0, Entry(3, "c")),
        lambda of: of.__delitem__(0),
        lambda of: of.values.clear(),
        lambda of: iter(of).remove(),
    ],
)
def test_every_way_to_change_entries_is_refused(change: Any) -> None:
    with pytest.raises((AttributeError, TypeError)):
        change(ENTRIES)
    assert Entries((Entry(1, "a"), Entry(2, "b")), SOURCE) == ENTRIES
