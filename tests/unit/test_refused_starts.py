"""A start that is refused leaves the world as it was: a query that runs well goes on.

What random sequences of them do: tests/property/test_starts_beside_a_query.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping

import msgspec
import pytest

from keyhole.changelog.base import TopicRight
from keyhole.errors import (
    ChangelogRecreated,
    CheckpointMismatch,
    EpochFailed,
    Fenced,
    KafkaUnreachable,
    KeyholeError,
    SavepointMismatch,
    ServerLost,
    StateConflict,
)
from keyhole.protocol.control import GenerationRecord, OpenedRecord, SavepointRecord, record
from keyhole.testing.changelog import MemoryAdmin, MemoryChangelog, MemoryControlLog
from tests.support.applications import control_of
from tests.support.refused_starts import NEW, REFUSALS, Refusal, healthy, snapshot, start
from tests.support.simulation import World
from tests.support.states import descriptor
from tests.support.sums import ONE, SUM, sums


@pytest.fixture
def world() -> Iterator[World]:
    """A query that has completed two epochs."""
    made = healthy()
    yield made
    made.close()


@pytest.mark.parametrize("refusal", REFUSALS, ids=[of.name for of in REFUSALS])
def test_a_start_that_is_refused_changes_nothing_and_the_query_goes_on(world: World, refusal: Refusal) -> None:
    with refusal.arrange(world):
        before, answered = snapshot(world), len(world.answered)
        with pytest.raises(refusal.error, match=refusal.says):
            start(world, refusal, batch_id=2)
        assert snapshot(world) == before
    assert {letter.method for letter in world.answered[answered:]} <= {"Describe"}
    world.beat()
    assert world.run_epoch(2, ONE).epoch == 3
    assert sums(world) == [3.0] * len(ONE)


def test_a_start_and_each_server_ask_kafka_once_for_their_rights_before_the_query_is_taken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Mapping[str, TopicRight]] = []
    ids = dict(world.kafka._epochs)

    def ask(self: MemoryAdmin, needed: Mapping[str, TopicRight], deadline_seconds: float) -> None:
        assert world.kafka._epochs == ids
        asked.append(needed)

    monkeypatch.setattr(MemoryAdmin, "check_rights", ask)
    right(world)
    # Not for the changelog, which servers write as whom they are.
    driver, *servers = asked
    assert driver == {"keyhole.app.control": TopicRight.WRITE}
    read = ("keyhole.app.control", SUM.topic, f"{SUM.topic}.updates")
    assert servers == 2 * [{SUM.topic: TopicRight.WRITE}, dict.fromkeys(read, TopicRight.READ)]


ANOTHER_CHECKPOINT = next(of for of in REFUSALS if of.name == "another checkpoint")


def right(world: World) -> None:
    """The query is started again, as it should be, beside the driver that runs."""
    driver = world.another_driver("refuse")
    with contextlib.closing(driver):
        assert driver.run_epoch(world.batch(2, ONE)).epoch == 3


# --- what is recorded while the start looks on ------------------------------------------------------------------------


def declared_by_another(world: World) -> None:
    changelog = MemoryChangelog(world.kafka, "app")
    with contextlib.closing(changelog.control("another")) as log:
        log.open(1)
        of = descriptor(state="new", query="another")
        of = msgspec.structs.replace(of, topic_id=changelog.admin().ensure(of, 1))
        log.append(record("state", "new", of), 1)


def test_one_that_is_refused_only_once_it_has_the_query_has_recorded_that_it_began_and_nothing_else(
    world: World,
) -> None:
    before = control_of(world.kafka, "app")
    world.meanwhile["a", "Describe"] = lambda: declared_by_another(world)
    with pytest.raises(StateConflict, match="fed by query 'another'"):
        start(world, Refusal("a race", StateConflict, "", also=(NEW,)), batch_id=2)
    after = control_of(world.kafka, "app")
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert changed == {"opened/main", "generation/main", "state/new"}
    # The driver that was well has to end, and says by whom; its servers have kept what they own.
    with pytest.raises(Fenced, match=rf"by run 2 \(.*process {os.getpid()} on .*\)\. Is the job running twice"):
        world.run_epoch(2, ONE)
    assert all(server.tables["app", "counts"].groups for server in world.servers.values())
    # Started again, it goes on.
    assert world.run_epoch(2, ONE).epoch == 3
    assert sums(world) == [3.0] * len(ONE)


def test_what_is_lost_of_a_changelog_while_a_run_begins_is_found_before_any_server_owns_it(world: World) -> None:
    world.driver_dies()
    answered = len(world.answered)
    world.meanwhile["a", "Describe"] = lambda: world.kafka.truncate(SUM.topic, 1, world.kafka.end(SUM.topic, 1) - 2)
    with pytest.raises(ChangelogRecreated, match="lacks records that were complete"):
        world.run_epoch(2, ONE)
    assert "Assign" not in {letter.method for letter in world.answered[answered:]}


def test_a_start_waits_for_a_server_before_it_takes_the_query_and_then_looks_once_more(world: World) -> None:
    silent = iter([ServerLost("not started yet")] * 4)
    savepoint = SavepointRecord("saved", "fingerprint", ("counts",), finished=False)
    befores = iter([snapshot(world)])

    def describe() -> KeyholeError | None:
        if (error := next(silent, None)) is not None:
            return error
        for untouched in befores:
            assert snapshot(world) == untouched
            begin_a_restore()
        return None

    def begin_a_restore() -> None:
        with contextlib.closing(MemoryChangelog(world.kafka, "app").control("*restore")) as log:
            log.open(1)
            log.append(record("savepoint", "main", savepoint), 1)

    with pytest.raises(SavepointMismatch, match="is being restored"):
        start(world, Refusal("waits", SavepointMismatch, "", describe=describe), batch_id=2)
    world.beat()
    assert world.run_epoch(2, ONE).epoch == 3


def test_a_start_that_finds_no_server_tells_whom_it_waited_for_and_takes_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gone = Refusal("gone", EpochFailed, "", describe=lambda: ServerLost("away"))
    with pytest.raises(EpochFailed, match="gave up waiting for the state servers: no state server answers at a:1, b:1"):
        start(world, gone, batch_id=2)
    assert "waiting for the state servers" in caplog.text


# --- a control topic that can't be read to its end --------------------------------------------------------------------


@pytest.fixture
def behind(world: World, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, bytes]:
    """Another query's transaction is open since before the last epoch: who has not opened the log reads no further."""
    older = control_of(world.kafka, "app")
    world.run_epoch(2, ONE)
    world.run_epoch(3, ONE)
    read = MemoryControlLog.read

    def read_behind(log: MemoryControlLog, deadline_seconds: float) -> Mapping[str, bytes]:
        return older if log._epoch < 0 else read(log, deadline_seconds)

    monkeypatch.setattr(MemoryControlLog, "read", read_behind)
    monkeypatch.setattr(MemoryControlLog, "read_decided", read)
    return older


@pytest.mark.usefixtures("behind")
def test_a_right_start_is_not_refused_because_of_what_can_not_be_read_yet(world: World) -> None:
    world.driver_dies()
    assert world.run_epoch(4, ONE).epoch == 5
    assert sums(world) == [5.0] * len(ONE)


@pytest.mark.usefixtures("behind")
def test_a_wrong_start_is_refused_by_all_that_is_on_record(world: World) -> None:
    with pytest.raises(CheckpointMismatch, match="has completed epoch 4"):
        start(world, ANOTHER_CHECKPOINT, batch_id=4)
    world.beat()
    assert world.run_epoch(4, ONE).epoch == 5


@pytest.mark.usefixtures("behind")
def test_a_start_that_can_not_tell_takes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def stays_open(log: MemoryControlLog, deadline_seconds: float) -> Mapping[str, bytes]:
        assert deadline_seconds > 60
        raise KafkaUnreachable("a transaction stays open")

    monkeypatch.setattr(MemoryControlLog, "read_decided", stays_open)
    before = snapshot(world)
    with pytest.raises(KafkaUnreachable, match="stays open"):
        start(world, ANOTHER_CHECKPOINT, batch_id=4)
    assert snapshot(world) == before
    world.beat()
    assert world.run_epoch(4, ONE).epoch == 5


# --- who took over ----------------------------------------------------------------------------------------------------


def fenced(world: World) -> Fenced:
    """What the driver that runs ends with."""
    assert world.coordinator is not None
    with pytest.raises(Fenced) as caught:
        world.coordinator.beat()
    with pytest.raises(Fenced) as again:
        world.run_epoch(2, ONE)
    assert again.value is caught.value
    return caught.value


def test_a_driver_that_is_replaced_names_the_run_its_process_and_its_spark_query(world: World) -> None:
    right(world)
    error = fenced(world)
    host, process = socket.gethostname(), os.getpid()
    assert error.message.startswith(
        "query 'main' was taken over from its run 1, which must stop: by run 2 (run id "
        f"{error.facts['run_id']}, process {process} on {host}, Spark query spark-1). Is the job running twice?"
    )
    assert error.facts.items() >= {
        "generation": "2", "host": host, "process": str(process), "spark_query_id": "spark-1"
    }.items()  # fmt: skip


def opened(*records: dict[str, bytes | None]) -> Callable[[World], None]:
    def by_somebody(world: World) -> None:
        with contextlib.closing(MemoryChangelog(world.kafka, "app").control("main")) as log:
            log.open(1)
            for of in records:
                log.append(of, 1)

    return by_somebody


@pytest.mark.parametrize(
    ("by_somebody", "says"),
    [
        (
            opened(record("opened", "main", OpenedRecord("other", "elsewhere", 7))),
            r"by a start that has no generation yet, or was refused \(run id other, process 7 on elsewhere\)",
        ),
        (
            # As an earlier version does.
            opened({"opened/main": None, "generation/main": b'{"generation":2,"run_id":"older"}'}),
            r"by run 2 \(run id older\)",
        ),
        (opened(), "nobody is on record who has"),
        (opened({"opened/main": None}), "nobody is on record who has"),
    ],
)
def test_a_driver_that_is_fenced_by_who_is_no_run_says_what_is_known(
    world: World, by_somebody: Callable[[World], None], says: str
) -> None:
    by_somebody(world)
    error = fenced(world)
    assert re.search(f"query 'main' was taken over from its run 1, which must stop: {says}", error.message)


def test_who_has_fenced_a_driver_is_waited_for_until_that_is_on_record(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened()(world)
    newer = record("generation", "main", GenerationRecord(2, "other"))
    on_record = opened(record("opened", "main", OpenedRecord("other", "elsewhere", 7)), newer)
    monkeypatch.setattr(world.clock, "sleep", lambda seconds: on_record(world))
    assert "by run 2 (run id other, process 7 on elsewhere)" in fenced(world).message


def test_that_it_could_not_be_read_is_told_in_place_of_who(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    right(world)

    def away(log: MemoryControlLog, deadline_seconds: float) -> Mapping[str, bytes]:
        raise KafkaUnreachable("no broker")

    monkeypatch.setattr(MemoryControlLog, "read", away)
    assert "by whom could not be read (no broker)" in fenced(world).message
