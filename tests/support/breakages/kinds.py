"""Of how rows come together, by the kinds of states."""

from __future__ import annotations

from tests.support.breakages.breakage import Breakage

_ENTRIES = "services/state_server/merge_entries.py"
_ROWS = "services/state_server/merge_rows.py"

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
    Breakage(
        "an older deletion deletes a newer row",
        "kinds",
        _ROWS,
        "is None or before is None or rank(row) >= rank(before)\n",
        "is None or before is None or row[:1] == DELETED or rank(row) >= rank(before)\n",
        ("test_ordered_deletions.py",),
    ),
    Breakage(
        "a deletion is not remembered",
        "kinds",
        _ROWS,
        "    return None if row == UNORDERED_DELETION else row\n",
        "    return None if row is None or row.startswith(DELETED) else row\n",
        ("test_ordered_deletions.py",),
    ),
    Breakage(
        "rows that are older than what has cleared their key come in",
        "kinds",
        _ENTRIES,
        "            if (prefix not in clearing or rank >= clearing[prefix]) and (before is None",
        "            if (before is None",
        ("test_ordered_deletions.py",),
    ),
    Breakage(
        "what clears a key by order clears newer entries",
        "kinds",
        _ENTRIES,
        "for key, entry in held if self.rank(entry) <= rank}",
        "for key, entry in held}",
        ("test_ordered_deletions.py",),
    ),
    Breakage(
        "a deletion that is remembered is answered as a row",
        "kinds",
        "src/keyhole/stored.py",
        "        if self._deletions:\n",
        "        if self._deletions and self._lives_from is not None:\n",
        ("test_ordered_deletions.py",),
    ),
    Breakage(
        "a scan shows deletions that are remembered",
        "kinds",
        "src/keyhole/stored.py",
        "        if self._deletions and entry.startswith(DELETED):\n",
        "        if self._deletions and self._aggregates:\n",
        ("test_ordered_deletions.py",),
    ),
    Breakage(
        "a deletion is remembered until it happens to be swept",
        "kinds",
        "src/keyhole/stored.py",
        "        return None if _FIRST_STAMP <= self.stamp_of(entry) < lives_from else self.bare(entry)\n",
        "        return self.bare(entry)\n",
        ("test_ordered_deletions.py",),
    ),
    Breakage(
        "deletions that were written during a round are never swept",
        "kinds",
        "services/state_server/sweep.py",
        "        self._at, self._due = course.at, min(course.due, self._written)\n",
        "        self._at, self._due = course.at, course.due\n",
        ("test_ordered_deletions.py",),
    ),
    Breakage(
        "deletions that are written between two rounds are never swept",
        "kinds",
        "services/state_server/sweep.py",
        "        self._due = min(self._due, self._written)\n",
        "",
        ("test_ordered_deletions.py",),
    ),
    Breakage(
        "an older release takes a deletion in the changelog for a row",
        "kinds",
        "services/state_server/commit.py",
        "        deletions=bool(state.descriptor.order_by),\n",
        "        deletions=False,\n",
        ("test_ordered_deletions.py",),
    ),
    Breakage(
        "what an epoch deletes is told as another batch where the job has gone over to orders",
        "kinds",
        "src/keyhole/coordinator/decisions.py",
        "        before.value != of.value or bool(before.keep_deleted_ms) is not bool(of.keep_deleted_ms)\n",
        "        before.value != of.value\n",
        ("test_decisions.py",),
    ),
)
