"""Of the write path: whose word counts, and what is committed once."""

from __future__ import annotations

from tests.support.breakages.breakage import Breakage

_HOST = "services/state_server/host.py"
_COMMIT = "services/state_server/commit.py"
_DECISIONS = "src/keyhole/coordinator/decisions.py"
_COORDINATOR = "src/keyhole/coordinator/coordinator.py"
_RUN = "src/keyhole/coordinator/run.py"

PROTOCOL = (
    Breakage(
        "an earlier run is let in after a newer one",
        "protocol",
        _HOST,
        "            if run.generation < self._run.generation or (\n",
        "            if (\n",
        ("test_host_protocol.py",),
    ),
    Breakage(
        "a late OpenRun takes a grant that was fenced since",
        "protocol",
        _HOST,
        "            if run == self._run and serial < self._serial:\n",
        "            if run != self._run and serial < self._serial:\n",
        ("test_late_messages.py",),
    ),
    Breakage(
        "a grant that was given up is good again when it is asked for again",
        "protocol",
        _HOST,
        "                self._check_grant()\n                return\n",
        "                return\n",
        ("test_host.py",),
    ),
    Breakage(
        "a late Assign takes back what a later one has given to others",
        "protocol",
        _HOST,
        "        if version < self._version:\n",
        "        if version < 0:\n",
        ("test_late_messages.py",),
    ),
    Breakage(
        "a Commit for another assignment is carried out",
        "protocol",
        _HOST,
        "        self._check_incarnation(incarnation)\n        if version != self._version:\n",
        "        self._check_incarnation(incarnation)\n        if version > self._version:\n",
        ("test_host_protocol.py",),
    ),
    Breakage(
        "a late confirmation of an older assignment renews the lease",
        "protocol",
        _HOST,
        "        if version != self._version:\n            raise NotReady(",
        "        if version > self._version:\n            raise NotReady(",
        ("test_late_messages.py",),
    ),
    Breakage(
        "an attempt of an older round that ends late is staged",
        "protocol",
        _HOST,
        "        self._check_run(run)\n        self._check_newest(name)\n",
        "        self._check_run(run)\n",
        ("test_host.py",),
    ),
    Breakage(
        "a server goes on under its grant after an unknown outcome",
        "protocol",
        _HOST,
        "            if not sound:\n                self._give_up_grant()\n",
        "            if not sound and self._writer is None:\n                self._give_up_grant()\n",
        ("test_host_protocol.py",),
    ),
    Breakage(
        "Release answers before what was committed can be read",
        "protocol",
        _HOST,
        "            await self._on_thread(self._await_readable, hosted, groups)\n",
        "",
        ("test_take_over.py",),
    ),
    Breakage(
        "rows are committed that are not those of the receipts",
        "protocol",
        "services/state_server/staged.py",
        "    if sorted(held, key=_by_group) != sorted(expected, key=_by_group):\n",
        "    if len(held) != len(expected):\n",
        ("test_staged.py",),
    ),
    Breakage(
        "an epoch that is delivered again is committed again",
        "protocol",
        _COMMIT,
        "            if position.epoch >= epoch.epoch:\n                plan.already",
        "            if position.epoch > epoch.epoch:\n                plan.already",
        ("test_commit.py",),
    ),
    Breakage(
        "a replay that lacks all rows of a key group does not differ",
        "protocol",
        _COMMIT,
        "else staged.keys() | committed):\n",
        "else staged.keys()):\n",
        ("test_commit.py",),
    ),
    Breakage(
        "the last epoch from other source offsets is taken for its replay",
        "protocol",
        _DECISIONS,
        "known.base + batch_id > last or complete",
        "known.base + batch_id >= last or complete",
        ("test_decisions.py",),
    ),
    Breakage(
        "a new checkpoint begins with an epoch that may be committed in part",
        "protocol",
        "src/keyhole/coordinator/bootstrapping.py",
        "    return 1 + max(last + 1, known",
        "    return 1 + max(last, known",
        ("test_decisions.py",),
    ),
    Breakage(
        "a query declares a state without looking whether another one has",
        "protocol",
        "src/keyhole/coordinator/declaring.py",
        "    stored = known()\n    # Before anything",
        "    stored: Mapping[str, StateDescriptor] = {}\n    # Before anything",
        ("test_declaring.py::test_one_of_two_queries_has_the_state_and_the_other_is_refused",),
    ),
    Breakage(
        "a run reads the control topic without a record of its own to read as far as",
        "protocol",
        _RUN,
        '        self._append(record("opened", self._query, None))\n',
        "",
        ("test_declaring.py::test_of_two_runs_of_one_query_the_one_that_took_it_last_has_the_state",),
    ),
    Breakage(
        "a new run does not fence the grants of the one before",
        "protocol",
        _RUN,
        "        self._fence(change.fence)\n",
        "",
        (
            "test_schedules.py::test_a_driver_and_its_servers_that_are_suspended_and_woken_after_a_new_run_can_change_nothing",
        ),
    ),
    Breakage(
        "a server takes a grant that is not on record",
        "protocol",
        _RUN,
        "        if forgotten or new:\n",
        "        if forgotten and new:\n",
        (
            "test_schedules.py::test_a_driver_and_its_servers_that_are_suspended_and_woken_after_a_new_run_can_change_nothing",
        ),
    ),
    Breakage(
        "two grants of a run have one name",
        "protocol",
        _RUN,
        "        self._serial += 1\n",
        "        self._serial = 1\n",
        ("test_run.py",),
    ),
    Breakage(
        "what was released, and not heard of, is owned by nobody",
        "protocol",
        _RUN,
        "            self.membership = replace(self.membership, released=True)\n",
        "",
        ("test_handover.py::test_what_was_released_unheard_is_owned_again_before_the_next_epoch",),
    ),
    Breakage(
        "a run begins on a changelog that lacks complete epochs",
        "protocol",
        _RUN,
        "        if not handover:\n            self._check_changelogs()\n",
        "",
        ("test_schedules.py::test_a_changelog_that_lacks_the_last_transaction_of_one_key_group_is_refused",),
    ),
    Breakage(
        "a driver that can't write to the control topic confirms its servers",
        "protocol",
        _COORDINATOR,
        "            self._run.repeat_complete()\n"
        "            for server in self._run.confirm():\n                self._distrust(server)\n",
        "            for server in self._run.confirm():\n                self._distrust(server)\n"
        "            self._run.repeat_complete()\n",
        ("test_late_messages.py",),
    ),
    Breakage(
        "the complete record of a replayed epoch has not the markers of what was there",
        "protocol",
        _COORDINATOR,
        "for group in (*r.committed, *r.already_committed)):\n",
        "for group in r.committed):\n",
        ("test_recovery.py::test_the_complete_record_of_a_replayed_epoch_has_the_markers_of_what_was_there",),
    ),
    Breakage(
        "a transaction whose first records are lost is committed",
        "protocol",
        "src/keyhole/changelog/transactions.py",
        "        return self.first >= 0 and self.last - self.first >= self.count - 1\n",
        "        return self.last >= 0\n",
        ("test_transactions.py",),
    ),
)
