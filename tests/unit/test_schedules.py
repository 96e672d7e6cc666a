"""The schedules that the design names as a danger, each by itself: the real coordinator and servers, step by step.

The state is a sum: a row that counts twice, or not at all, shows.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping

import pytest

from keyhole.changelog.settings import DELETE_RETENTION_MS
from keyhole.errors import (
    ChangelogRecreated,
    CheckpointMismatch,
    Fenced,
    KafkaUnreachable,
    KeyholeError,
    NotOwner,
    StoreFull,
    ValueMismatch,
)
from keyhole.model.state import StateKind
from keyhole.protocol.epoch_of_batch import OnNewCheckpoint
from keyhole.stores.indexed import IndexedStore
from keyhole.stores.memory import MemoryStore
from keyhole.testing.changelog import MemoryControlLog
from keyhole.v1.state_pb2 import ROLE_STANDBY
from services.state_server.read.table import Table
from tests.support.simulation import DriverDiedError, Fault, Letter, SimulatedServer, World
from tests.support.states import KEY_GROUPS, content, descriptor, key, names_in, row
from tests.support.waiting import LONG_SECONDS

KEYS = [key(names_in(group)[0]) for group in range(KEY_GROUPS)]
ONE = {name: row(1.0) for name in KEYS}
HUNDRED = {name: row(100.0) for name in KEYS}
SUM = descriptor(kind=StateKind.REDUCING, reducers=("sum",))


@pytest.fixture
def world() -> Iterator[World]:
    """Two servers, and a third one that is down."""
    made = World(SUM, "abc")
    made.servers["c"].die()
    yield made
    made.close()


@pytest.fixture
def warm() -> Iterator[World]:
    """Two servers, each a warm standby for the other's key groups."""
    made = World(SUM, "ab", standbys=1)
    made.run_epoch(0, ONE)
    made.settle()
    yield made
    made.close()


def sums(world: World) -> list[float]:
    """By key group, from the server that owns it."""
    found = {}
    assert world.coordinator is not None
    for name, server in world.servers.items():
        for group in world.coordinator.owned_by(name, "counts"):
            (value,) = table(server).lookup([KEYS[group]]).rows
            found[group] = world.codec.decode_row(value)["n"] if value is not None else 0.0
    return [found[group] for group in range(KEY_GROUPS)]


def table(server: SimulatedServer) -> Table:
    return server.tables["app", "counts"]


def ends(world: World) -> list[int]:
    return [world.kafka.end(world.descriptor.topic, group) for group in range(KEY_GROUPS)]


def stored(world: World, names: str = "ab") -> dict[str, dict[bytes, bytes]]:
    return {name: content(table(world.servers[name]).store) for name in names}


def commits(world: World, *, epoch: int) -> list[Letter]:
    return [letter for letter in world.sent if letter.method == "Commit" and letter.request.epoch == epoch]


def shown_by_owners(world: World, names: str = "ab") -> dict[str, list[bytes | None]]:
    """What servers say of the key groups that they own, whether or not a driver lives."""
    tables = {name: table(world.servers[name]) for name in names}
    return {name: list(of.lookup([KEYS[group] for group in sorted(of.groups)]).rows) for name, of in tables.items()}


def test_a_driver_and_its_servers_that_are_suspended_and_woken_after_a_new_run_can_change_nothing(
    world: World,
) -> None:
    world.run_epoch(0, ONE)
    old, batch = world.coordinator, world.batch(1, ONE)
    assert old is not None
    asleep = [world.servers[name] for name in "ab"]
    owned = {name: sorted(table(world.servers[name]).groups) for name in "ab"}
    before = stored(world)
    after: list[int] = []

    def a_new_run_on_another_server() -> None:
        world.coordinator = None
        for server in asleep:
            server.cut_off = True
        world.servers["c"].start()
        world.run_epoch(1, ONE)
        world.run_epoch(2, ONE)
        after.extend(ends(world))
        for server in asleep:
            server.cut_off = False

    world.meanwhile["a", "Commit"] = a_new_run_on_another_server
    with pytest.raises(Fenced):
        old.run_epoch(batch)
    with pytest.raises(Fenced):
        old.beat()
    old.close()
    assert stored(world) == before
    world.follow()
    for server in asleep:
        assert table(server).given.assigned == table(server).groups == frozenset()
    commits = [letter for letter in world.sent if letter.method == "Commit" and letter.server in "ab"]
    for letter in commits:
        with pytest.raises(KeyholeError):
            world.call(letter)
    assert {letter.server for letter in commits if letter.request.epoch == 2} == {"a", "b"}
    assert stored(world) == before
    assert ends(world) == after
    assert sums(world) == [3.0] * KEY_GROUPS
    world.follow()
    for name, groups in owned.items():
        answers = table(world.servers[name]).lookup([KEYS[group] for group in groups])
        assert answers.rows == [row(3.0), row(3.0)]
        assert {source.role for source in answers.sources} == {ROLE_STANDBY}


def test_a_fenced_server_that_tries_again_and_again_writes_nothing(world: World) -> None:
    world.run_epoch(0, ONE)
    world.faults_at["a", "Commit"] = Fault.SERVER_IS_CUT_OFF
    assert world.run_epoch(1, ONE).rounds == 2
    after = ends(world)
    tries = [letter for letter in world.late if letter.method == "Commit"]
    for letter in tries * 3:
        with pytest.raises(KeyholeError):
            world.call(letter)
    assert tries
    assert ends(world) == after
    world.servers["a"].start()
    world.run_epoch(2, ONE)
    assert sums(world) == [3.0] * KEY_GROUPS


@pytest.mark.parametrize(
    "fault", [Fault.COMMITS_AND_IS_NOT_ANSWERED, Fault.LOSES_THE_TRANSACTION_AND_IS_NOT_ANSWERED], ids=lambda f: f.name
)
def test_a_transaction_whose_end_is_not_seen_counts_once_whether_it_was_applied_or_not(
    world: World, fault: Fault
) -> None:
    world.run_epoch(0, ONE)
    world.faults_at["a", "Commit"] = fault
    result = world.run_epoch(1, ONE)
    assert result.rounds == 2
    assert sums(world) == [2.0] * KEY_GROUPS


@pytest.mark.parametrize("lose_store", [False, True])
def test_a_server_that_restarts_between_stage_and_commit_commits_nothing_and_is_staged_to_again(
    world: World, lose_store: bool
) -> None:
    world.run_epoch(0, ONE)

    def restart() -> None:
        world.servers["a"].die(lose_store=lose_store)
        world.servers["a"].start()

    world.meanwhile["a", "Commit"] = restart
    assert world.run_epoch(1, ONE).rounds == 2
    assert sums(world) == [2.0] * KEY_GROUPS


def test_a_server_that_is_lost_while_a_batch_runs_is_replaced_before_its_tasks_end(world: World) -> None:
    world.run_epoch(0, ONE)

    def it_dies_and_heartbeats_come() -> None:
        world.servers["a"].die()
        world.beats_meanwhile()
        assert shown_by_owners(world, "b") == {"b": [row(1.0)] * KEY_GROUPS}

    world.meanwhile["b", "Stage"] = it_dies_and_heartbeats_come
    assert world.run_epoch(1, ONE).rounds == 2
    assert {letter.request.round for letter in commits(world, epoch=2)} == {1}, "the first round is lost"
    assert sums(world) == [2.0] * KEY_GROUPS
    assert world.run_epoch(2, ONE).rounds == 1


@pytest.mark.parametrize("what", ["grant", "assignment"])
def test_a_replacement_that_breaks_off_while_a_batch_runs_is_finished_by_the_next_heartbeats(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    world.run_epoch(0, ONE)
    append = MemoryControlLog.append

    def refused(log: MemoryControlLog, records: Mapping[str, bytes | None], deadline_seconds: float) -> None:
        if any(key.startswith(f"{what}/") for key in records):
            raise KafkaUnreachable("away for a moment")
        append(log, records, deadline_seconds)

    def it_dies_while_little_can_be_recorded() -> None:
        world.servers["a"].die()
        with monkeypatch.context() as patch:
            patch.setattr(MemoryControlLog, "append", refused)
            world.beats_meanwhile(seconds=-1.0)  # one try each
        assert world.coordinator is not None
        assert not world.coordinator.membership.settled or what == "grant"
        assert len(shown_by_owners(world, "b")["b"]) == KEY_GROUPS / 2
        world.beats_meanwhile()
        assert shown_by_owners(world, "b") == {"b": [row(1.0)] * KEY_GROUPS}

    world.meanwhile["b", "Stage"] = it_dies_while_little_can_be_recorded
    assert world.run_epoch(1, ONE).rounds == 2
    assert sums(world) == [2.0] * KEY_GROUPS


def test_a_server_that_drains_while_a_batch_runs_hands_over_before_its_tasks_end(world: World) -> None:
    world.run_epoch(0, ONE)

    def it_drains_and_heartbeats_come() -> None:
        world.servers["a"].end()
        for _ in range(2):  # b's copy is asked for; it is warm, and takes over
            world.beats_meanwhile()
            world.follow()
        assert world.servers["a"].may_end
        assert shown_by_owners(world, "b") == {"b": [row(1.0)] * KEY_GROUPS}

    world.meanwhile["b", "Stage"] = it_drains_and_heartbeats_come
    assert world.run_epoch(1, ONE).rounds == 2
    assert sums(world) == [2.0] * KEY_GROUPS


def test_a_server_that_drains_and_goes_on_hands_over_after_the_batch_which_is_staged_once(world: World) -> None:
    world.run_epoch(0, ONE)

    def it_drains_and_heartbeats_come() -> None:
        world.servers["a"].drain()
        for _ in range(3):
            world.clock.advance(60)
            world.beats_meanwhile()
            world.follow()

    world.meanwhile["b", "Stage"] = it_drains_and_heartbeats_come
    assert world.run_epoch(1, ONE).rounds == 1
    world.settle()
    assert shown_by_owners(world, "b") == {"b": [row(2.0)] * KEY_GROUPS}
    assert world.coordinator is not None
    assert world.coordinator.owned_by("a", "counts") == ()


def test_a_batch_that_fails_because_servers_changed_is_run_again_and_one_that_fails_else_is_not(world: World) -> None:
    """Tasks that read what servers hold fail where these have another assignment by then."""
    world.run_epoch(0, ONE)

    class Failed(Exception):
        """As Spark would tell of its task."""

    def it_fails() -> None:
        raise Failed

    def it_dies_and_a_task_fails() -> None:
        world.servers["a"].die()
        world.beats_meanwhile()
        it_fails()

    world.meanwhile["b", "Stage"] = it_dies_and_a_task_fails
    assert world.run_epoch(1, ONE).rounds == 2
    assert sums(world) == [2.0] * KEY_GROUPS
    world.meanwhile["b", "Stage"] = it_fails
    with pytest.raises(Failed):
        world.run_epoch(2, ONE)


def test_a_server_that_drains_while_a_batch_runs_stays_while_another_one_is_missed(world: World) -> None:
    world.run_epoch(0, ONE)

    def one_drains_and_the_other_is_not_heard_once() -> None:
        world.servers["a"].end()
        world.servers["b"].cut_off = True
        world.beats_meanwhile(1)
        world.servers["b"].cut_off = False
        world.beats_meanwhile(1)
        assert not world.servers["a"].may_end
        assert [len(groups) for groups in shown_by_owners(world).values()] == [KEY_GROUPS / 2] * 2

    world.meanwhile["b", "Stage"] = one_drains_and_the_other_is_not_heard_once
    world.run_epoch(1, ONE)
    assert sums(world) == [2.0] * KEY_GROUPS


def test_heartbeats_while_a_batch_runs_cost_no_round_where_nobody_is_missed_for_long(world: World) -> None:
    world.run_epoch(0, ONE)
    answers = iter([False, True, False, True])

    def some_heartbeats_are_not_answered() -> None:
        for answered in answers:
            world.servers["a"].cut_off = not answered
            world.beats_meanwhile(1)

    world.meanwhile["b", "Stage"] = some_heartbeats_are_not_answered
    assert world.run_epoch(1, ONE).rounds == 1
    assert sums(world) == [2.0] * KEY_GROUPS


def test_a_restore_that_begins_while_a_transaction_is_being_completed_waits_for_the_fence(world: World) -> None:
    """With Kafka itself: test_kafka_transactions.py::test_fencing_decides_the_open_transaction_before_it_returns."""
    world.run_epoch(0, ONE)
    begun, goes_on = threading.Event(), threading.Event()
    steps = world.kafka.before_commit

    def stand_still() -> None:
        world.kafka.before_commit = steps
        begun.set()
        goes_on.wait(LONG_SECONDS)

    tasks: list[asyncio.Task[object]] = []

    def the_transaction_begins_and_its_server_is_cut_off() -> None:
        world.servers["a"].cut_off = True

    world.meanwhile["a", "Commit"] = the_transaction_begins_and_its_server_is_cut_off

    def its_commit_gets_under_way() -> None:
        letter = next(letter for letter in world.late if letter.method == "Commit")
        world.late.remove(letter)
        world.kafka.before_commit = stand_still
        tasks.append(world.loop.create_task(world.calling(letter)))
        world.run(asyncio.to_thread(begun.wait, LONG_SECONDS))

    world.meanwhile["b", "Commit"] = its_commit_gets_under_way
    assert world.run_epoch(1, ONE).rounds == 2
    goes_on.set()
    with pytest.raises(Fenced):
        world.loop.run_until_complete(tasks[0])
    assert sums(world) == [2.0] * KEY_GROUPS
    assert world.run_epoch(2, ONE).rounds == 1
    assert sums(world) == [3.0] * KEY_GROUPS


def test_tasks_of_the_first_round_that_live_on_in_the_second_add_nothing(world: World) -> None:
    world.run_epoch(0, ONE)
    world.faults_at["a", "Stage"] = Fault.MESSAGE_IS_LATE
    world.meanwhile["a", "Commit"] = world.late_messages_arrive
    assert world.run_epoch(1, ONE).rounds == 2
    world.late_messages_arrive()
    assert sums(world) == [2.0] * KEY_GROUPS
    assert world.run_epoch(2, ONE).rounds == 1
    assert sums(world) == [3.0] * KEY_GROUPS


def test_a_commit_that_arrives_after_a_handover_changes_nothing(world: World) -> None:
    """Its rows are still staged and its server has heard of nothing: the fence alone is in the way."""
    world.run_epoch(0, ONE)
    world.servers["c"].start()
    world.settle()
    world.faults_at["a", "Commit"] = Fault.SERVER_IS_CUT_OFF
    assert world.run_epoch(1, ONE).rounds == 2
    assert world.coordinator is not None
    assert world.coordinator.owned_by("a", "counts") == ()
    after, before = ends(world), stored(world, "a")
    (commit,) = [letter for letter in world.late if letter.method == "Commit"]
    with pytest.raises(Fenced):
        world.call(commit)
    assert ends(world) == after
    assert stored(world, "a") == before
    world.servers["a"].start()
    world.run_epoch(2, ONE)
    assert sums(world) == [3.0] * KEY_GROUPS


def an_epoch_that_a_refuses_while_its_commit_to_b_is_under_way(world: World) -> Letter:
    """The query will end with a's error. Until Spark ends it its heart beats on, and b's grant is good."""

    def refuse() -> None:
        raise ValueMismatch("a row is larger than a changelog takes")

    assert world.coordinator is not None
    world.meanwhile["a", "Commit"] = refuse
    world.faults_at["b", "Commit"] = Fault.MESSAGE_IS_LATE
    with pytest.raises(ValueMismatch):
        world.coordinator.run_epoch(world.batch(1, ONE))
    (commit,) = world.late
    return commit


@pytest.mark.parametrize("gives", ["a", "b"])
def test_a_commit_that_arrives_after_a_planned_handover_changes_nothing(warm: World, gives: str) -> None:
    """Nobody was fenced. Also a server that has only gained key groups refuses it: complete mode would empty those."""
    world = warm
    commit = an_epoch_that_a_refuses_while_its_commit_to_b_is_under_way(world)
    world.servers[gives].end()
    world.beat()
    assert world.coordinator is not None
    assert world.coordinator.owned_by(gives, "counts") == ()
    after, before = ends(world), stored(world)
    with pytest.raises(NotOwner):
        world.call(commit)
    assert ends(world) == after
    assert stored(world) == before
    world.driver_dies()
    assert not world.run_epoch(1, ONE).replayed
    assert sums(world) == [2.0] * KEY_GROUPS


@pytest.mark.parametrize("then_asked", ["a", "b"], ids=["before its heir is told", "before it is told itself"])
def test_a_commit_that_arrives_between_release_and_adoption_changes_nothing(warm: World, then_asked: str) -> None:
    """Its server is at the Commit's version, and nobody was fenced: what it was released from is all that counts."""
    world = warm
    commit = an_epoch_that_a_refuses_while_its_commit_to_b_is_under_way(world)
    after, before = ends(world), stored(world)
    refused = []

    def it_arrives() -> None:
        with pytest.raises(NotOwner) as error:
            world.call(commit)
        refused.append(error)

    world.servers["b"].end()
    world.meanwhile[then_asked, "Assign"] = it_arrives
    world.beat()
    assert refused
    assert ends(world) == after
    assert stored(world) == before
    world.driver_dies()
    assert not world.run_epoch(1, ONE).replayed
    assert sums(world) == [2.0] * KEY_GROUPS


def test_a_replayed_epoch_that_is_wholly_committed_is_run_whole_and_written_nowhere(world: World) -> None:
    """So that Spark's own state comes out right: tests/processes/test_kill_driver.py."""
    world.run_epoch(0, ONE)
    world.faults_at["b", "Commit"] = Fault.DRIVER_DIES_AFTER
    with pytest.raises(DriverDiedError):
        world.run_epoch(1, ONE)
    after, staged = ends(world), sum(letter.method == "Stage" for letter in world.sent)
    result = world.run_epoch(1, ONE, strict=True)
    assert result.replayed
    assert ends(world) == after
    again = sum(letter.method == "Stage" for letter in world.sent) - staged
    assert again >= 2, "every partition was run"
    assert sums(world) == [2.0] * KEY_GROUPS


@pytest.mark.parametrize(
    ("batch_id", "spark_query_id", "offsets_hash"),
    [(0, "spark-2", 0), (0, "spark-1", 0), (2, "spark-1", 99), (7, "spark-2", 7)],
    ids=["deleted", "set back", "set back by one batch", "of another query"],
)
def test_a_checkpoint_that_is_not_the_one_that_the_epochs_came_from_is_refused(
    world: World, batch_id: int, spark_query_id: str, offsets_hash: int
) -> None:
    for number in range(3):
        world.run_epoch(number, ONE)
    world.driver_dies()
    after = ends(world)
    with pytest.raises(CheckpointMismatch):
        world.run_epoch(batch_id, ONE, spark_query_id=spark_query_id, offsets_hash=offsets_hash)
    assert ends(world) == after
    world.run_epoch(3, ONE)  # with the right one it goes on
    assert sums(world) == [4.0] * KEY_GROUPS


def test_a_changelog_that_was_recreated_is_refused_and_reset_begins_anew(world: World) -> None:
    world.run_epoch(0, ONE)
    world.driver_dies()
    world.kafka.delete_topic(world.descriptor.topic)
    with pytest.raises(ChangelogRecreated):
        world.run_epoch(1, ONE)
    world.run_epoch(0, ONE, spark_query_id="spark-2", on_new_checkpoint="reset")
    assert sums(world) == [1.0] * KEY_GROUPS


@pytest.mark.parametrize("first", ["reset", "continue"])
@pytest.mark.parametrize("then", ["reset", "refuse"])
def test_a_driver_that_dies_in_the_first_epoch_of_a_recreated_changelog_is_followed_by_another(
    world: World, first: OnNewCheckpoint, then: OnNewCheckpoint
) -> None:
    world.run_epoch(0, ONE)
    world.run_epoch(1, ONE)
    world.driver_dies()
    world.kafka.delete_topic(world.descriptor.topic)
    world.faults_at["a", "Stage"] = Fault.DRIVER_DIES_AFTER
    with pytest.raises(DriverDiedError):
        world.run_epoch(0, ONE, spark_query_id="spark-2", on_new_checkpoint=first)
    world.run_epoch(0, ONE, spark_query_id="spark-2", on_new_checkpoint=then)
    assert sums(world) == [1.0] * KEY_GROUPS


def test_a_bootstrap_stays_done_where_a_new_checkpoint_has_taken_the_place_of_what_it_made(world: World) -> None:
    def begins(batch_id: int, checkpoint: str) -> None:
        world.run_epoch(batch_id, ONE, spark_query_id=checkpoint, on_new_checkpoint="reset")

    world.run_epoch(0, HUNDRED, bootstrap="history", on_new_checkpoint="reset")
    world.driver_dies()
    begins(0, "s1")
    assert sums(world) == [101.0] * KEY_GROUPS
    world.driver_dies()
    begins(0, "s2")
    begins(1, "s2")
    world.driver_dies()
    again = world.another_driver("reset")
    assert again.bootstrapped("history")
    again.close()
    begins(2, "s2")
    assert sums(world) == [3.0] * KEY_GROUPS


@pytest.mark.parametrize("batch_id", [1, 2], ids=["the last batch again", "the next batch"])
@pytest.mark.parametrize("kept", [0, 1], ids=["all of it", "its marker"])
def test_a_changelog_that_lacks_the_last_transaction_of_one_key_group_is_refused(
    world: World, batch_id: int, kept: int
) -> None:
    world.run_epoch(0, ONE)
    of_the_first_epoch = ends(world)
    world.run_epoch(1, ONE)
    world.driver_dies()
    world.kafka.truncate(world.descriptor.topic, 0, of_the_first_epoch[0] + kept)
    world.kafka_deadline_seconds = 0.1  # for so long it may be a transaction that Kafka is completing
    after, before, shown = ends(world), stored(world), shown_by_owners(world)
    with pytest.raises(ChangelogRecreated, match=r"lacks records .*counts key group 0\)"):
        world.run_epoch(batch_id, ONE)
    assert ends(world) == after
    assert stored(world) == before
    assert shown_by_owners(world) == shown
    assert [len(rows) for rows in shown.values()] == [2, 2]


def test_a_store_that_is_full_ends_the_epoch_by_saying_so_and_has_all_of_it_once_there_is_room(world: World) -> None:
    world.run_epoch(0, ONE)
    shown = shown_by_owners(world)
    more = ONE | {key(names_in(group)[1]): row(1.0) for group in range(KEY_GROUPS)}
    indexed = table(world.servers["a"]).store
    assert isinstance(indexed, IndexedStore)
    store = indexed._store
    assert isinstance(store, MemoryStore)
    limit_bytes, store.limit_bytes = store.limit_bytes, 0
    with pytest.raises(StoreFull, match="higher KEYHOLE_STATE_SERVER_STORE_LIMIT_BYTES"):
        world.run_epoch(1, more)
    committed = ends(world)
    with pytest.raises(StoreFull):  # the next run, which restores first
        world.run_epoch(1, more)
    assert ends(world) == committed
    assert shown_by_owners(world, "a") == {"a": shown["a"]}
    store.limit_bytes = limit_bytes
    assert world.run_epoch(1, more, strict=True).replayed
    assert ends(world) == committed
    assert sums(world) == [2.0] * KEY_GROUPS
    world.run_epoch(2, more)
    assert sums(world) == [3.0] * KEY_GROUPS


def test_a_store_that_was_away_longer_than_deletions_are_kept_does_not_bring_them_back(world: World) -> None:
    world.run_epoch(0, ONE)
    world.servers["a"].die()  # its store stays
    world.run_epoch(1, dict.fromkeys(KEYS))
    world.clock.advance(DELETE_RETENTION_MS / 1000 + 60)
    world.run_epoch(2, {key(names_in(group)[1]): row(5.0) for group in range(KEY_GROUPS)})
    world.kafka.compact(world.descriptor.topic, forget_deletions=True)
    world.servers["a"].start()
    world.run_epoch(3, {})
    world.settle()
    assert world.coordinator is not None
    assert len(world.coordinator.owned_by("a", "counts")) == KEY_GROUPS // 2
    assert sums(world) == [0.0] * KEY_GROUPS
    world.run_epoch(4, ONE)
    assert sums(world) == [1.0] * KEY_GROUPS
