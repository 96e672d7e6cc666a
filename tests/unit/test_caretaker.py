"""A query that is started again and gets no new data: who takes it, and who leaves it alone, step by step."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from keyhole.changelog.settings import topic_name
from keyhole.coordinator.caretaker import FRESH_SECONDS, SELDOM_SECONDS, STEP_SECONDS, Caretaker
from keyhole.coordinator.counts import QueryCounts
from keyhole.errors import (
    CheckpointMismatch,
    Fenced,
    InvalidConfiguration,
    KafkaUnreachable,
    OutcomeUnknown,
    ProtocolMismatch,
)
from keyhole.model.read import ReadBounds, Stale
from keyhole.protocol.caretaking import QUIET_SECONDS
from keyhole.protocol.control import QueryControl, SavepointRecord, read_control, record
from keyhole.testing.changelog import MemoryChangelog, MemoryControlLog
from tests.support.applications import control_of
from tests.support.caretaking import caretaker_of
from tests.support.refused_starts import snapshot
from tests.support.simulation import DriverDiedError, Fault, SimulatedFleet, SimulatedLink, World
from tests.support.states import KEY_GROUPS
from tests.support.sums import KEYS, ONE, SUM, sums
from tests.support.waiting import LONG_SECONDS

STEPS = round((3.0 + QUIET_SECONDS) / STEP_SECONDS) + 3
"""More than it takes until the leases of the last run have passed, to see that nobody has the query, and to take it."""
NEVER_STALE = ReadBounds(stale=Stale.NEVER)


@pytest.fixture
def world() -> Iterator[World]:
    """A query that has completed two epochs on two servers."""
    made = begun()
    yield made
    made.close()


def begun() -> World:
    """As `world`, for whoever closes it."""
    made = World(SUM, "ab")
    for batch_id in range(2):
        made.run_epoch(batch_id, ONE)
    return made


def all_is_lost(world: World) -> None:
    """The driver, and the servers with what they had stored. Empty ones come in their place."""
    world.driver_dies()
    for server in world.servers.values():
        server.die(lose_store=True)
        server.start()


def the_driver_is_lost(world: World) -> None:
    world.driver_dies()


def stepped(world: World, caretaker: Caretaker, meanwhile: Callable[[], object] = lambda: None) -> bool:
    """It looks, as often as it takes, and its heartbeats come; returns whether it has anything left to do."""
    goes_on = True
    for _ in range(STEPS):
        goes_on = goes_on and caretaker._stepped()
        if goes_on and caretaker.membership.members:
            caretaker.beat()
        world.clock.advance(STEP_SECONDS)
        meanwhile()
    return goes_on


def confirmed(world: World) -> list[float]:
    """The sums by key group, of owners that confirm them."""
    found: dict[int, float] = {}
    for server in world.servers.values():
        table = server.tables.get(("app", "counts"))
        for group in table.groups if table is not None else ():
            assert table is not None
            assert group not in found
            (value,) = table.lookup([KEYS[group]], NEVER_STALE).rows
            assert value is not None
            found[group] = world.codec.decode_row(value)["n"]
    return [found[group] for group in range(KEY_GROUPS)]


def recorded(world: World, records: dict[str, bytes | None]) -> None:
    """By somebody else, of the same application."""
    with contextlib.closing(MemoryChangelog(world.kafka, "app").control("test")) as log:
        log.open(1)
        log.append(records, 1)


def control(world: World) -> QueryControl:
    return read_control(control_of(world.kafka, "app"), "main")


@pytest.mark.parametrize("lost", [all_is_lost, the_driver_is_lost])
def test_an_idle_query_is_restored_and_its_answers_confirmed_before_its_first_batch(
    world: World, lost: Callable[[World], None]
) -> None:
    before = control(world)
    lost(world)
    with contextlib.closing(caretaker_of(world)) as caretaker:
        assert stepped(world, caretaker)
        assert confirmed(world) == [2.0] * KEY_GROUPS
        # For as long as it is not needed for more.
        for _ in range(20):
            world.clock.advance(1.0)
            caretaker.beat()
            assert confirmed(world) == [2.0] * KEY_GROUPS
        after = control(world)
    assert (after.generation, after.query) == (before.generation + 1, before.query)
    assert before.complete is not None
    assert after.complete is not None
    assert after.complete.stamp == before.complete.stamp
    assert after.complete.told_ms == world.clock.now_ms()  # those who follow the control topic hear of it, too


def test_an_idle_query_is_restored_on_servers_that_all_drain_and_go_on(world: World) -> None:
    all_is_lost(world)
    for server in world.servers.values():
        server.drain()
    with contextlib.closing(caretaker_of(world)) as caretaker:
        assert stepped(world, caretaker)
        assert confirmed(world) == [2.0] * KEY_GROUPS


def test_the_first_batch_takes_the_query_over_and_is_the_next_epoch_once(world: World) -> None:
    all_is_lost(world)
    with contextlib.closing(caretaker_of(world)) as caretaker:
        stepped(world, caretaker)
        caretaker.leave()
        result = world.run_epoch(2, ONE)
        assert (result.epoch, result.replayed) == (3, False)
        assert sums(world) == [3.0] * KEY_GROUPS
        with pytest.raises(Fenced):
            caretaker.beat()
        assert not caretaker._stepped()
    # Spark runs the batch again: it is in already.
    world.driver_dies()
    result = world.run_epoch(2, ONE)
    assert (result.epoch, result.replayed) == (3, True)
    assert sums(world) == [3.0] * KEY_GROUPS


def test_a_batch_that_was_committed_and_not_recorded_is_run_again_after_a_caretaker_and_counts_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = MemoryControlLog.append

    def unrecorded(log: MemoryControlLog, records: dict[str, bytes | None], deadline_seconds: float) -> None:
        if any(name.startswith("complete/") for name in records):
            raise DriverDiedError
        append(log, records, deadline_seconds)

    monkeypatch.setattr(MemoryControlLog, "append", unrecorded)
    with pytest.raises(DriverDiedError):
        world.run_epoch(2, ONE)
    monkeypatch.setattr(MemoryControlLog, "append", append)
    all_is_lost(world)
    with contextlib.closing(caretaker_of(world)) as caretaker:
        stepped(world, caretaker)
        caretaker.leave()
        assert confirmed(world) == [3.0] * KEY_GROUPS
        result = world.run_epoch(2, ONE)
    assert (result.epoch, result.replayed) == (3, True)
    assert sums(world) == [3.0] * KEY_GROUPS


def test_servers_that_come_and_go_before_the_first_batch_are_followed(world: World) -> None:
    all_is_lost(world)
    with contextlib.closing(caretaker_of(world)) as caretaker:
        stepped(world, caretaker)
        world.servers["a"].die(lose_store=True)
        world.clock.advance(1.0)
        caretaker.beat()
        assert confirmed(world) == [2.0] * KEY_GROUPS


# --- who is left alone ------------------------------------------------------------------------------------------------


def test_a_run_that_is_idle_is_left_alone(world: World) -> None:
    with contextlib.closing(caretaker_of(world)) as caretaker:
        before = control(world).generation
        assert stepped(world, caretaker, world.beat)
        assert control(world).generation == before
    assert world.run_epoch(2, ONE).epoch == 3


def test_a_run_that_is_busy_is_left_alone_though_it_records_nothing(world: World) -> None:
    """Its tasks stage for longer than anybody would wait; its heartbeats renew the leases meanwhile."""
    stage, caretaker = world._stage, caretaker_of(world)
    found: list[bool] = []

    def long(*arguments: object) -> object:
        if not found:
            found.append(stepped(world, caretaker, world.beats_meanwhile))
        return stage(*arguments)  # type: ignore[arg-type]

    world._stage = long  # type: ignore[method-assign,assignment]
    with contextlib.closing(caretaker):
        before = snapshot(world)["ids"]
        result = world.run_epoch(2, ONE)
        assert snapshot(world)["ids"] == before
    assert (found, result.epoch, result.rounds) == ([True], 3, 1)


def test_a_run_that_has_lost_all_its_servers_is_left_alone_while_it_repeats_its_record(world: World) -> None:
    """Servers that nobody has given anything yet are no sign that there is no run."""
    driver, log = world.coordinator, world.coordinator._run if world.coordinator else None
    assert driver is not None
    assert log is not None
    for server in world.servers.values():
        server.die(lose_store=True)
        server.start()
    with contextlib.closing(caretaker_of(world)) as caretaker:
        before = control(world).generation
        assert stepped(world, caretaker, log.repeat_complete)
        assert control(world).generation == before
    world.beat()
    assert world.run_epoch(2, ONE).epoch == 3


@pytest.mark.parametrize(
    ("options", "records"),
    [
        ({"spark_query_id": "spark-2"}, {}),
        ({"spark_query_id": ""}, {}),
        ({"query": "unknown"}, {}),
        ({"standbys": {"counts": 0, "new": 0}}, {}),
        ({"standbys": {"counts": 0, "others": 0}}, record("state", "others", msgspec.structs.replace(SUM, query="x"))),
        ({}, {"complete/main": None}),
        ({}, record("savepoint", "main", SavepointRecord("s", "f", ("counts", "dropped"), finished=True))),
    ],
    ids=[
        "another checkpoint",
        "no checkpoint",
        "a query that is not on record",
        "a state that is not on record",
        "a state of another query",
        "nothing is complete",
        "a savepoint's state is not declared",
    ],
)
def test_what_the_first_batch_has_to_decide_is_left_to_it(
    world: World, options: dict[str, object], records: dict[str, bytes | None]
) -> None:
    all_is_lost(world)
    recorded(world, records)
    before = snapshot(world)
    with contextlib.closing(caretaker_of(world, **options)) as caretaker:  # type: ignore[arg-type]
        assert not stepped(world, caretaker)
    assert snapshot(world) == before


@pytest.mark.parametrize("query", ["main", "other"])
def test_a_restore_is_waited_for_and_looked_at_seldom(
    world: World, caplog: pytest.LogCaptureFixture, query: str
) -> None:
    all_is_lost(world)
    restoring = record("savepoint", query, SavepointRecord("s", "f", ("counts",), finished=False))
    recorded(world, restoring)
    before = snapshot(world)
    with contextlib.closing(caretaker_of(world)) as caretaker:
        assert stepped(world, caretaker)
        assert caretaker._pause_seconds == SELDOM_SECONDS
        assert snapshot(world) == before
        assert len(caplog.records) == 1
        recorded(world, dict.fromkeys(restoring))
        stepped(world, caretaker)
        assert confirmed(world) == [2.0] * KEY_GROUPS


@pytest.mark.parametrize("all_of_them", [True, False], ids=["all of them", "one beside others"])
def test_servers_of_another_version_are_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch, all_of_them: bool
) -> None:
    """An upgrade, server by server."""
    all_is_lost(world)
    mismatch = ProtocolMismatch("another version")
    if all_of_them:
        monkeypatch.setattr(SimulatedFleet, "refusing", lambda *_: [mismatch])
    else:
        note = SimulatedFleet._note_refusals
        monkeypatch.setattr(SimulatedFleet, "_note_refusals", lambda fleet, of: note(fleet, {**of, "c:1": mismatch}))
    before = snapshot(world)
    with contextlib.closing(caretaker_of(world)) as caretaker:
        assert stepped(world, caretaker)
        assert caretaker._pause_seconds == SELDOM_SECONDS
        assert snapshot(world) == before
        monkeypatch.undo()
        stepped(world, caretaker)
        assert confirmed(world) == [2.0] * KEY_GROUPS


def test_a_topic_that_was_made_anew_is_left_to_the_first_batch_to_refuse(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    all_is_lost(world)
    world.kafka.delete_topic(topic_name("app", "counts"))
    before = snapshot(world)
    with contextlib.closing(caretaker_of(world)) as caretaker:
        assert not stepped(world, caretaker)
    assert snapshot(world) == before
    assert [getattr(of, "why", "") for of in caplog.records] != []


def test_where_no_server_answers_nobody_takes_the_query(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    all_is_lost(world)
    monkeypatch.setattr(SimulatedFleet, "observe", lambda fleet: {})
    before = snapshot(world)
    with contextlib.closing(caretaker_of(world)) as caretaker:
        assert stepped(world, caretaker)
        assert snapshot(world) == before
        monkeypatch.undo()
        world.clock.advance(1.0)
        # As long as before: who has the query may just be giving it to them.
        assert caretaker._stepped()
        assert snapshot(world) == before
        stepped(world, caretaker)
        assert confirmed(world) == [2.0] * KEY_GROUPS


def test_a_server_that_does_not_answer_in_time_may_have_the_query(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_is_lost(world)
    monkeypatch.setattr(SimulatedFleet, "silent", lambda fleet: ["a:1"])
    before = snapshot(world)
    with contextlib.closing(caretaker_of(world)) as caretaker:
        assert stepped(world, caretaker)
        assert snapshot(world) == before
        monkeypatch.undo()
        stepped(world, caretaker)
        assert confirmed(world) == [2.0] * KEY_GROUPS


def test_another_driver_that_takes_the_query_before_the_last_question_keeps_it(world: World) -> None:
    """In the very step in which the caretaker would have taken it."""
    all_is_lost(world)
    with (
        contextlib.closing(world.another_driver("refuse")) as driver,
        contextlib.closing(caretaker_of(world)) as caretaker,
    ):
        quiet(world, caretaker)

        def overtaken() -> bool:
            assert driver.run_epoch(world.batch(2, ONE)).epoch == 3
            return True

        assert caretaker.step(overtaken)
        driver.beat()
        assert stepped(world, caretaker, driver.beat)
        assert driver.run_epoch(world.batch(3, ONE)).epoch == 4


def test_a_caretaker_that_was_suspended_after_the_last_question_asks_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or waits so long for Kafka's answer. Meanwhile another driver's first batch has taken the query."""
    all_is_lost(world)
    read = MemoryControlLog.read
    with (
        contextlib.closing(world.another_driver("refuse")) as driver,
        contextlib.closing(caretaker_of(world)) as caretaker,
    ):
        quiet(world, caretaker)

        def suspended(log: MemoryControlLog, deadline_seconds: float) -> object:
            found = read(log, deadline_seconds)
            monkeypatch.setattr(MemoryControlLog, "read", read)
            assert driver.run_epoch(world.batch(2, ONE)).epoch == 3
            world.clock.advance(FRESH_SECONDS + 0.1)
            return found

        monkeypatch.setattr(MemoryControlLog, "read", suspended)
        assert caretaker.step()
        driver.beat()
        assert stepped(world, caretaker, driver.beat)
        assert driver.run_epoch(world.batch(3, ONE)).epoch == 4


def test_topics_are_looked_at_before_the_time_in_which_nobody_may_be_heard_of(world: World) -> None:
    all_is_lost(world)
    with (
        contextlib.closing(world.another_driver("refuse")) as driver,
        contextlib.closing(caretaker_of(world)) as caretaker,
    ):
        check = caretaker._admission.check_records

        def slow(decide: Any) -> None:
            check(decide)
            world.clock.advance(30.0)
            assert driver.run_epoch(world.batch(2, ONE)).epoch == 3

        caretaker._admission.check_records = slow  # type: ignore[method-assign]
        assert stepped(world, caretaker, driver.beat)
        assert driver.run_epoch(world.batch(3, ONE)).epoch == 4


def test_the_query_that_has_ended_by_now_is_not_taken(world: World) -> None:
    all_is_lost(world)
    with contextlib.closing(caretaker_of(world)) as caretaker:
        quiet(world, caretaker)
        before = snapshot(world)
        assert caretaker.step(lambda: False)
        assert snapshot(world) == before


def quiet(world: World, caretaker: Caretaker) -> None:
    """The next step takes the query, if nothing comes in between."""
    for _ in range(round(QUIET_SECONDS / STEP_SECONDS)):
        assert caretaker.step()
        world.clock.advance(STEP_SECONDS)
    assert not caretaker._taken


def test_a_query_that_is_another_one_s_when_it_is_taken_is_not_given_to_any_server(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last look and that: as with any start, the run before is fenced then, and nothing else is done."""
    all_is_lost(world)
    opened = MemoryControlLog.open

    def overtaken(log: MemoryControlLog, deadline_seconds: float) -> None:
        monkeypatch.setattr(MemoryControlLog, "open", opened)
        opened(log, deadline_seconds)
        known = control(world).query
        assert known is not None
        log.append(record("query", "main", msgspec.structs.replace(known, spark_query_id="spark-2")), 1)
        opened(log, deadline_seconds)

    monkeypatch.setattr(MemoryControlLog, "open", overtaken)
    answered = len(world.answered)
    with contextlib.closing(caretaker_of(world)) as caretaker:
        assert not stepped(world, caretaker)
    assert {letter.method for letter in world.answered[answered:]} <= {"Describe"}


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.DRIVER_DIES, Fault.DRIVER_DIES_AFTER], ids=["before", "after"])
def test_a_caretaker_that_is_killed_at_any_message_is_followed_by_another_or_by_the_batch(fault: Fault) -> None:
    first, last = messages_of_a_caretaker()
    assert last - first > 8
    for at in range(first, last + 1):
        with contextlib.closing(begun()) as world:
            all_is_lost(world)
            world.faults[world.steps + at] = fault
            with contextlib.closing(caretaker_of(world)) as killed, contextlib.suppress(DriverDiedError):
                stepped(world, killed)
            if at % 2:
                with contextlib.closing(caretaker_of(world)) as caretaker:
                    assert stepped(world, caretaker)
                    assert confirmed(world) == [2.0] * KEY_GROUPS
            result = world.run_epoch(2, ONE)
            assert (result.epoch, result.replayed) == (3, False)
            assert sums(world) == [3.0] * KEY_GROUPS


def messages_of_a_caretaker() -> tuple[int, int]:
    """The numbers of the last one before it takes the query, and of the last one of its first heartbeat."""
    with contextlib.closing(begun()) as world, contextlib.closing(caretaker_of(world)) as caretaker:
        all_is_lost(world)
        before = world.steps
        while not caretaker._taken:
            last_look = world.steps - before
            world.clock.advance(STEP_SECONDS)
            assert caretaker.step()
        caretaker.beat()
        return last_look, world.steps - before


def test_kafka_that_is_away_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    all_is_lost(world)
    opened = MemoryControlLog.open

    def away(log: MemoryControlLog, deadline_seconds: float) -> None:
        raise KafkaUnreachable("away")

    monkeypatch.setattr(MemoryControlLog, "open", away)
    with contextlib.closing(caretaker_of(world)) as caretaker:
        assert stepped(world, caretaker)
        monkeypatch.setattr(MemoryControlLog, "open", opened)
        assert stepped(world, caretaker)
        assert confirmed(world) == [2.0] * KEY_GROUPS


@pytest.mark.parametrize("fails_at", ["append", "read"])
def test_a_caretaker_that_opened_the_control_log_in_vain_is_followed_by_another(
    world: World, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    """As Kafka's producer, a log is opened once."""
    all_is_lost(world)
    opened, opens = MemoryControlLog.open, {"opened": 0}
    fails = getattr(MemoryControlLog, fails_at)

    def away(log: MemoryControlLog, *arguments: Any) -> object:
        if log._epoch >= 0:  # it is open
            raise KafkaUnreachable("away")
        return fails(log, *arguments)

    def once(log: MemoryControlLog, deadline_seconds: float) -> None:
        if log._epoch >= 0:
            raise KafkaUnreachable("Operation not valid in state Ready")
        opens["opened"] += 1
        opened(log, deadline_seconds)

    monkeypatch.setattr(MemoryControlLog, "open", once)
    monkeypatch.setattr(MemoryControlLog, fails_at, away)
    asked = iter([True] * 2 * STEPS)
    assert caretaker_of(world).run(lambda: next(asked, False))
    assert opens == {"opened": 1}
    monkeypatch.setattr(MemoryControlLog, fails_at, fails)
    with contextlib.closing(caretaker_of(world)) as caretaker:
        stepped(world, caretaker)
        assert confirmed(world) == [2.0] * KEY_GROUPS


def test_whose_figures_can_not_be_told_takes_nothing(world: World) -> None:
    all_is_lost(world)
    working = [False]

    def counts() -> QueryCounts:
        if not working[0]:
            raise InvalidConfiguration("another one has the port")
        return QueryCounts()

    with contextlib.closing(caretaker_of(world, counts=counts)) as caretaker:
        before = snapshot(world)
        assert stepped(world, caretaker)
        assert snapshot(world) == before
        working[0] = True
        stepped(world, caretaker)
        assert confirmed(world) == [2.0] * KEY_GROUPS


def test_who_waits_for_servers_does_not_say_that_the_query_ends(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    all_is_lost(world)
    with contextlib.closing(caretaker_of(world, server_wait_seconds=5.0)) as caretaker:
        quiet(world, caretaker)
        observe = SimulatedFleet.observe
        looks = iter([observe])
        monkeypatch.setattr(SimulatedFleet, "observe", lambda fleet: next(looks, lambda _: {})(fleet))
        assert caretaker.step()
        assert caretaker._taken
    (message,) = [of.getMessage() for of in caplog.records if of.name == "keyhole.coordinator.waiting"]
    assert message.startswith("waiting for the state servers: no state server answers")
    assert message.endswith("; the query has no owners until then, or until its first batch")


def test_where_nobody_can_know_what_is_on_record_another_one_is_to_begin(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_is_lost(world)
    append = MemoryControlLog.append

    def unknown(log: MemoryControlLog, records: dict[str, bytes | None], deadline_seconds: float) -> None:
        if any(name.startswith("assignment/") for name in records):
            raise OutcomeUnknown("no answer")
        append(log, records, deadline_seconds)

    monkeypatch.setattr(MemoryControlLog, "append", unknown)
    assert caretaker_of(world).run()
    monkeypatch.setattr(MemoryControlLog, "append", append)
    with contextlib.closing(caretaker_of(world)) as caretaker:
        stepped(world, caretaker)
        assert confirmed(world) == [2.0] * KEY_GROUPS


def test_a_restore_that_takes_long_is_gone_on_with_and_nobody_is_warned(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    all_is_lost(world)
    assign, slow = SimulatedLink.assign, iter([True] * 8)

    def restoring(link: SimulatedLink, *arguments: Any) -> tuple[bool, int, int]:
        if next(slow, False):
            world.clock.advance(2.0)
            return False, 1, 2
        return assign(link, *arguments)

    monkeypatch.setattr(SimulatedLink, "assign", restoring)
    caretaker = caretaker_of(world)
    asked = iter([True] * 20)
    assert not caretaker.run(lambda: next(asked, False))
    assert next(slow, None) is None
    assert caretaker._settled
    assert [of.getMessage() for of in caplog.records if of.levelno >= logging.WARNING] == []


# --- its end ----------------------------------------------------------------------------------------------------------


def test_nothing_is_taken_once_it_has_left(world: World) -> None:
    all_is_lost(world)
    caretaker = caretaker_of(world)
    with contextlib.closing(caretaker):
        for _ in range(round(QUIET_SECONDS / STEP_SECONDS)):
            assert caretaker.step()
            world.clock.advance(STEP_SECONDS)
        caretaker.leave()
        before = snapshot(world)["ids"]
        assert not stepped(world, caretaker)
        assert snapshot(world)["ids"] == before


def test_whoever_takes_the_query_from_it_waits_for_a_taking_and_not_for_a_restore(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_is_lost(world)
    caretaker = caretaker_of(world)
    taking, go_on, left = threading.Event(), threading.Event(), threading.Event()
    opened = MemoryControlLog.open

    def slow(log: MemoryControlLog, deadline_seconds: float) -> None:
        taking.set()
        assert go_on.wait(LONG_SECONDS)
        opened(log, deadline_seconds)

    monkeypatch.setattr(MemoryControlLog, "open", slow)
    monkeypatch.setattr(caretaker, "_converge", lambda: left.wait(LONG_SECONDS))
    caretaker._heartbeat = caretaker._new_heartbeat()
    began = world.clock.monotonic()
    looking = threading.Thread(target=lambda: [caretaker._take(began), caretaker._converge()])
    looking.start()
    assert taking.wait(LONG_SECONDS)
    leaving = threading.Thread(target=lambda: [caretaker.leave(), left.set()])
    leaving.start()
    assert not left.wait(0.2)
    go_on.set()
    # It has left though the other thread is still at its restore, which ends by that here.
    looking.join(LONG_SECONDS)
    leaving.join(LONG_SECONDS)
    assert left.is_set()
    caretaker.close()


def test_it_ends_with_its_query_and_closes_what_it_has(world: World) -> None:
    all_is_lost(world)
    caretaker, asked = caretaker_of(world), iter([True] * 2 * STEPS)
    assert not caretaker.run(lambda: next(asked, False))
    assert caretaker.membership.members
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("keyhole-heartbeat-main")]
    assert caretaker._addresses.closed  # type: ignore[attr-defined]


def test_another_run_that_takes_the_query_ends_it(world: World) -> None:
    all_is_lost(world)
    with contextlib.closing(caretaker_of(world)) as caretaker:
        stepped(world, caretaker)
        with contextlib.closing(world.another_driver("refuse")) as driver:
            assert driver.run_epoch(world.batch(2, ONE)).epoch == 3
        with pytest.raises(Fenced, match="taken over"):
            caretaker.beat()
        assert not caretaker._stepped()


def test_a_start_with_another_checkpoint_is_refused_beside_a_caretaker_and_changes_nothing(world: World) -> None:
    all_is_lost(world)
    with contextlib.closing(caretaker_of(world)) as caretaker:
        stepped(world, caretaker)
        before = control(world).generation
        with (
            contextlib.closing(world.another_driver("refuse")) as driver,
            pytest.raises(CheckpointMismatch),
        ):
            driver.run_epoch(world.batch(0, ONE, spark_query_id="spark-2"))
        assert control(world).generation == before
        caretaker.beat()
        assert confirmed(world) == [2.0] * KEY_GROUPS
