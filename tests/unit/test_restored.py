"""The first run after a restore: every state of the savepoint is declared, or knowingly dropped."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable

import pytest

from keyhole.config import JobConfig
from keyhole.coordinator.coordinator import Coordinator
from keyhole.coordinator.fleet import Fleet
from keyhole.errors import EpochFailed, KeyholeError, SavepointMismatch
from keyhole.protocol.control import CompleteRecord, QueryRecord, SavepointRecord, read_control, record
from keyhole.protocol.epochs import EpochBatch, StatePlan
from keyhole.protocol.membership import Sighting
from keyhole.protocol.receipts import Target
from keyhole.protocol.takeover import check_restored, dropped_states, settled_records
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.clock import ManualClock
from tests.support.applications import control_of
from tests.support.states import descriptor

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


@pytest.mark.parametrize("query", ["main", "another"])
def test_no_query_starts_on_a_restore_that_was_broken_off(query: str) -> None:
    records = {name: of for name, of in record("savepoint", "main", BROKEN_OFF).items() if of is not None}
    with pytest.raises(SavepointMismatch, match="from savepoint id, or that was broken off"):
        check_restored(read_control(records, query))
    assert check_restored(read_control({}, query)).restoring == ""


def test_a_query_goes_on_that_earlier_versions_let_begin_beside_a_restore_that_was_broken_off() -> None:
    records = {name: of for name, of in record("savepoint", "main", BROKEN_OFF).items() if of is not None}
    records |= {name: of for name, of in record("state", "counts", descriptor(query="another")).items() if of}
    assert check_restored(read_control(records, "another")).states
    with pytest.raises(SavepointMismatch, match="that was broken off"):
        check_restored(read_control(records, "main"))


class OneThatIsGone(Fleet):
    """A server is there when it is looked for, and not when it is asked for something."""

    def observe(self) -> dict[str, Sighting]:
        return {"a": Sighting(Target("a", "127.0.0.1:1", "a-1"))}

    def refusing(
        self, application: str, targets: Iterable[Target], query: str = "", states: Collection[str] = ()
    ) -> list[KeyholeError]:
        return []


def first_run(kafka: MemoryKafka, state: str, *, allowed: bool = False) -> None:
    """The job's first batch after the restore. Its state server takes no grant, so it gets no further than that."""
    config = JobConfig("app", ("127.0.0.1:1",), "memory", epoch_deadline_seconds=0.01, server_wait_seconds=0.01)
    changelog = MemoryChangelog(kafka, "app")
    coordinator = Coordinator(
        config, "main", changelog, ManualClock(), allow_dropped_states=allowed, fleet=OneThatIsGone(tuple)
    )
    batch = EpochBatch("spark", 2, 0, 0, (StatePlan(descriptor(state=state)),), 1, lambda _: ())
    with contextlib.closing(coordinator):
        coordinator.run_epoch(batch)


@pytest.fixture
def restored() -> MemoryKafka:
    """app/counts was restored at epoch 5, which was Spark's batch 1."""
    kafka = MemoryKafka()
    control = MemoryChangelog(kafka, "app").control("main")
    control.open(1)
    of = descriptor(topic_id=MemoryChangelog(kafka, "app").admin().ensure(descriptor(), 1))
    control.append(
        record("state", "counts", of)
        | record("query", "main", QueryRecord("spark", base=4, first_epoch=4))
        | record("complete", "main", CompleteRecord(5, 1, 5000, 0, 0, {"counts": [-1] * of.key_groups}))
        | record("savepoint", "main", SavepointRecord("id", "fingerprint", ("counts",), finished=True)),
        1,
    )
    return kafka


def test_the_first_run_takes_note_and_goes_on(restored: MemoryKafka) -> None:
    with pytest.raises(EpochFailed):  # its state server is gone
        first_run(restored, "counts")
    records = control_of(restored, "app")
    assert read_control(records, "main").savepoint is None
    assert "state/counts" in records


def test_a_run_that_declares_another_state_changes_nothing(restored: MemoryKafka) -> None:
    with pytest.raises(SavepointMismatch, match="'counts'"):
        first_run(restored, "sums")
    records = control_of(restored, "app")
    assert read_control(records, "main").savepoint is not None
    assert "state/sums" not in records


def test_a_state_that_was_dropped_is_not_found_again_by_a_later_run(restored: MemoryKafka) -> None:
    with pytest.raises(EpochFailed):  # its state server is gone
        first_run(restored, "sums", allowed=True)
    assert set(read_control(control_of(restored, "app"), "main").states) == {"sums"}
