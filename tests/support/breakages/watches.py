"""Of watches: what they miss, give twice, or show too early."""

from __future__ import annotations

from tests.support.breakages.breakage import Breakage

_READ_BACK = "services/state_server/read/watch_read_back.py"
_CHANGES = "services/state_server/read/watched_changes.py"
_PROXY = "services/client_proxy/forwarding/watch.py"

_SELECTED = "src/keyhole/encoding/selected_changes.py"

WATCHES = (
    Breakage(
        "an entry that is not selected any more stays with those whose watch was read back",
        "watch",
        _SELECTED,
        "            if is_there or was_there or not known:\n",
        "            if is_there or was_there:\n",
        ("test_watch_selections.py",),
    ),
    Breakage(
        "what has expired before it is replaced by what is not selected stays with the reader",
        "watch",
        "services/state_server/read/watch_selection.py",
        "        of_before = NO_EPOCH if self._asked.predicate else stamp\n",
        "        of_before = stamp\n",
        ("test_watch_selections.py",),
    ),
    Breakage(
        "a token is taken for that of another predicate",
        "watch",
        "src/keyhole/rpc/watch_requests.py",
        '        parts += [b"where", predicate]\n',
        '        parts += [b"where"]\n',
        ("test_watches.py",),
    ),
    Breakage(
        "rows that are too much as JSON for a message end their watch",
        "watch",
        "services/state_server/servicers/watches.py",
        "for run in portions(sizes) if sizes else [slice(0)]:",
        "for run in [slice(None)]:",
        (
            "test_large_watches.py::test_rows_and_changes_that_are_too_much_as_json_for_a_message_come_in_several_each_once",
        ),
    ),
    Breakage(
        "a part of a watch's message has no token, so that others' tokens are taken for behind it",
        "watch",
        "services/state_server/servicers/watches.py",
        "    return token_within(before, marks) if",
        '    return "" if',
        ("test_split_watches.py",),
    ),
    Breakage(
        "a watch goes on behind rows of a message that has yet to come",
        "watch",
        "services/state_server/servicers/watches.py",
        "    return token_within(before, marks) if",
        "    return message.token if",
        (
            "test_large_watches.py::test_rows_and_changes_that_are_too_much_as_json_for_a_message_come_in_several_each_once",
        ),
    ),
    Breakage(
        "a watch that is left within an epoch misses the next change of it",
        "watch",
        "services/state_server/read/watch_parts.py",
        "WatchMark(pending.before, mark.epoch, change.number + 1, below)",
        "WatchMark(pending.before, mark.epoch, change.number + 2, below)",
        ("test_watching.py",),
    ),
    Breakage(
        "what is not in memory is not noticed to be missing",
        "watch",
        _CHANGES,
        "any(mark.offset < self._floors[group] for group, mark in behind.items())",
        "any(mark.offset < 0 for mark in behind.values())",
        ("test_watchers.py",),
    ),
    Breakage(
        "an epoch that came by way of another owner is passed over",
        "watch",
        _CHANGES,
        "            if at is None or position.offset > at.offset:\n                self._gap(group, position)\n",
        "",
        ("test_watchers.py",),
    ),
    Breakage(
        "rows that were given before a break keep their values, whatever has changed until the next snapshot",
        "watch",
        _READ_BACK,
        "        if mark.begun and mark.offset < position.offset:\n",
        "        if mark.begun and mark.offset > position.offset:\n",
        ("test_watch_rows.py::test_what_has_changed_of_rows_that_were_given_is_read_back_before_a_snapshot_is_held",),
    ),
    Breakage(
        "a token that is too old goes on, and misses what was compacted",
        "watch",
        "services/state_server/read/watch_times.py",
        "        if age_ms > RESUMABLE_MS:\n",
        "        if age_ms < 0:\n",
        ("test_watching.py",),
    ),
    Breakage(
        "who leaves a watch within a message of several key groups gets what it has again",
        "watch",
        "src/keyhole/client/wire/watch_stream.py",
        "        return token_within(before, self._marks(given)) if given and before else before\n",
        "        return before\n",
        ("test_watch_streams.py", "test_watches.py"),
    ),
    Breakage(
        "a watch whose rows take longer than a token lives never has them all",
        "watch",
        _READ_BACK,
        "                given.times.given(group, complete_ms)\n\n",
        "                pass\n\n",
        ("test_watch_rows.py",),
    ),
    Breakage(
        "who is slow is waited for, without a bound",
        "watch",
        "services/state_server/read/watcher.py",
        "        if self._bytes > self._most_bytes and len(self._pending) > 1:\n",
        "        if self._bytes < 0:\n",
        ("test_watchers.py",),
    ),
    Breakage(
        "the first watcher misses a commit of updates that was under way when it came",
        "watch",
        "services/state_server/write/feed_commits.py",
        "state.table.changes.published(changed, positions)",
        "state.table.changes.published(changed, {})",
        ("test_watched_updates.py",),
    ),
    Breakage(
        "a watch says that it has a commit which is under way",
        "watch",
        "services/state_server/read/standing.py",
        "return self._before_commit_ms if self._committing else self.confirmed_ms",
        "return self.confirmed_ms",
        ("test_watch_rows.py",),
    ),
    Breakage(
        "that a key had no row before is said where that is not known",
        "watch",
        "services/state_server/read/watcher.py",
        "                known=id(pending) not in unknown,\n",
        "",
        ("test_watchers.py",),
    ),
    Breakage(
        "what is committed while a watch is given its rows is dropped behind it",
        "watch",
        _CHANGES,
        "        if not self._expected:\n",
        "        if not self._watchers:\n",
        ("test_watchers.py",),
    ),
    Breakage(
        "a proxy does not ask the next owner for what another one has by now",
        "watch",
        _PROXY,
        "            if owners - {part.address}:\n",
        "            if not owners:\n",
        ("test_fanned_watches.py",),
    ),
    Breakage(
        "a proxy says how far a watch is though key groups of it have no owner",
        "watch",
        _PROXY,
        "        if not self._homeless:\n            self._forwarded.reach(",
        "        if True:\n            self._forwarded.reach(",
        ("test_fanned_watches.py",),
    ),
    Breakage(
        "a proxy forwards what some owners say before all have begun",
        "watch",
        _PROXY,
        "        if not self._all_begun.is_set():\n            # Its reader",
        "        if False:\n            # Its reader",
        ("test_fanned_watches.py",),
    ),
    Breakage(
        "a verb that is taken out of the policy leaves open watches as they are",
        "watch",
        "src/keyhole/rpc/authorization.py",
        "                    else:\n                        may()\n",
        "",
        ("test_access.py",),
    ),
)
