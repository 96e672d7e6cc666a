"""Of how rows come together, by the kinds of states."""

from __future__ import annotations

from tests.support.breakages.breakage import Breakage

_ENTRIES = "services/state_server/merge_entries.py"

KINDS = (
    Breakage(
        "complete mode leaves rows that are no part of the result",
        "kinds",
        "services/state_server/merge.py",
        "    changed.extend((key, None) for key in stored if key not in rows)\n",
        "",
        ("test_merge.py",),
    ),
    Breakage(
        "an appended element takes the place of the last one",
        "kinds",
        _ENTRIES,
        "            first = _position(last[0]) + 1 if last else 0\n",
        "            first = _position(last[0]) if last else 0\n",
        ("test_merge_entries.py",),
    ),
    Breakage(
        "a sum goes on from what the epoch has cleared",
        "kinds",
        _ENTRIES,
        "        written = self._merge.with_stored(entries, _Without(stored, frozenset(gone)), epoch)\n",
        "        written = self._merge.with_stored(entries, stored, epoch)\n",
        ("test_merge_entries.py",),
    ),
    Breakage(
        "an aggregate that is run again is merged with itself",
        "kinds",
        "src/keyhole/stored.py",
        "        return self.before if self.epoch >= epoch else self.accumulator\n",
        "        return self.before if self.epoch > epoch else self.accumulator\n",
        ("test_host.py",),
    ),
)
