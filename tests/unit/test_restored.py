"""The first run after a restore: every state of the savepoint is declared, or knowingly dropped."""

from __future__ import annotations

import pytest

from keyhole.coordinator.control import SavepointRecord
from keyhole.coordinator.restored import dropped_states, settled_records
from keyhole.errors import SavepointMismatch

RESTORED = SavepointRecord("id", "fingerprint", ("a", "b"), finished=True)
BROKEN_OFF = SavepointRecord("id", "fingerprint", ("a", "b"), finished=False)


def test_a_query_that_was_never_restored_may_declare_what_it_likes() -> None:
    assert dropped_states("main", None, ["c"], allowed=False) == ()
    assert settled_records("main", None, ()) == {}


def test_a_job_that_declares_all_states_takes_note_once() -> None:
    assert dropped_states("main", RESTORED, ["b", "a", "new"], allowed=False) == ()
    assert settled_records("main", RESTORED, ()) == {"savepoint/main": None}


def test_a_state_that_the_job_does_not_declare_is_refused_by_name_with_the_ways_out() -> None:
    with pytest.raises(SavepointMismatch, match=r"'b'.*--rename.*allow_dropped_states"):
        dropped_states("main", RESTORED, ["a"], allowed=False)


def test_a_state_is_dropped_where_that_is_allowed() -> None:
    assert dropped_states("main", RESTORED, ["a"], allowed=True) == ("b",)
    assert settled_records("main", RESTORED, ("b",)) == {"savepoint/main": None, "state/b": None}


def test_no_job_starts_on_a_restore_that_was_broken_off() -> None:
    with pytest.raises(SavepointMismatch, match="broken off"):
        dropped_states("main", BROKEN_OFF, ["a", "b"], allowed=True)
