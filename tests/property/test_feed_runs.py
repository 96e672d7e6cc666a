"""Feed runs and owners that die, stand still and wake anywhere: whatever a server answers is what the log comes to.

The real run, servers and owner's loops, on a Kafka in memory. Each answer names an epoch: an offset of its key group's
updates. The sum at that offset is recounted here from the log alone, and must be the one that was answered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from keyhole.changelog.base import TopicRight
from keyhole.changelog.settings import ids_prefix, topic_name, updates_topic_name
from keyhole.coordinator.feed_run import FeedRun
from keyhole.errors import (
    ChangelogRecreated,
    CheckpointMismatch,
    Fenced,
    InvalidConfiguration,
    KeyholeError,
    StateChanged,
    TopicMismatch,
)
from keyhole.model.epoch import EpochStamp
from keyhole.model.state import StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.protocol.control import read_control
from keyhole.protocol.fed_sources import StateOnRecord
from keyhole.protocol.updates import PUT, BoundaryRecord, RulesRecord, UpdateRecord, decode
from keyhole.testing.changelog import MemoryChangelog, NextCommit
from keyhole.testing.updates import send
from tests.support.examples import examples
from tests.support.refused_starts import snapshot
from tests.support.simulation import SimulatedFleet, World
from tests.support.states import KEY_GROUPS, descriptor, key, names_in

NAMES = [names_in(group, 1)[0] for group in range(KEY_GROUPS)]
SERVERS = st.sampled_from("ab")
SUM = descriptor(
    kind=StateKind.REDUCING, reducers=("sum",), value=ValueSchema(1, (ValueField("n", "double"),)), topic_id=""
)
TOPIC = updates_topic_name("app", SUM.state)


def feed_run(world: World) -> FeedRun:
    return FeedRun(
        world.config,
        SUM.query,
        MemoryChangelog(world.kafka, "app"),
        world.clock,
        fleet=SimulatedFleet(world),
        heartbeat_seconds=1e6,
    )


@pytest.fixture
def world() -> Iterator[World]:
    made = World(SUM)
    yield made
    made.close()


def begun(world: World, standbys: int = 0, of: StateDescriptor = SUM) -> FeedRun:
    run = feed_run(world)
    run.start({of: standbys})
    return run


class Counted:
    """What a log comes to, by the first update of each identity."""

    def __init__(self, world: World) -> None:
        self._world = world

    def at(self, group: int, epoch: int) -> float | None:
        log = self._world.kafka.records(TOPIC, group, 0, epoch)
        seen: set[object] = set()
        found: float | None = None
        ruled = False
        for _, _, value in log:
            record = decode(value)
            ruled |= isinstance(record, RulesRecord)
            if ruled and isinstance(record, UpdateRecord) and record.row not in seen:
                seen.add(record.row)
                found = (found or 0) + (record.value or [0])[0]
        return found


def answers(world: World, name: str) -> dict[str, tuple[float | None, int, bool]]:
    """What each server that answers for a key says: the sum, its epoch, and whether it is its owner."""
    found = {}
    for server in world.servers.values():
        for table in server.tables.values() if server.servicer is not None else ():
            with contextlib.suppress(KeyholeError):
                got = table.lookup([key(name)])
                row = got.rows[0]
                value = None if row is None else table.codec.decode_row(row)["n"]
                found[server.name] = value, got.sources[0].epoch, got.sources[0].role == 1
    return found


class FeedRuns(RuleBasedStateMachine):
    """See the module's text."""

    @initialize(standbys=st.integers(0, 1))
    def begin(self, standbys: int) -> None:
        self.world = World(SUM)
        self.counted = Counted(self.world)
        self.standbys = standbys
        self.run: FeedRun | None = begun(self.world, standbys)
        self.asleep: list[FeedRun] = []
        self.sent: list[tuple[int, float]] = []
        self.confirmed: dict[str, int] = {}

    def _update(self, at: int) -> None:
        group, amount = self.sent[at]
        send(
            self.world.kafka,
            "app",
            SUM.state,
            group,
            UpdateRecord("s", 0, at, 0, PUT, 1, [NAMES[group]], None, [amount]),
        )

    @rule(group=st.integers(0, KEY_GROUPS - 1), amount=st.integers(1, 9))
    def a_row_is_sent(self, group: int, amount: int) -> None:
        self.sent.append((group, amount))
        self._update(len(self.sent) - 1)

    @rule(back=st.integers(1, 5))
    def rows_are_sent_again(self, back: int) -> None:
        for at in range(max(0, len(self.sent) - back), len(self.sent)):
            self._update(at)

    @rule()
    def a_boundary_is_written(self) -> None:
        for group in range(KEY_GROUPS):
            send(self.world.kafka, "app", SUM.state, group, BoundaryRecord("s", 0, {0: len(self.sent)}))

    @rule(server=SERVERS, commit=st.booleans())
    def an_owner_applies(self, server: str, commit: bool) -> None:
        self.world.servers[server].apply_updates(commit=commit)

    @rule(server=SERVERS, fate=st.sampled_from(list(NextCommit)[1:]))
    def a_commit_is_not_answered(self, server: str, fate: NextCommit) -> None:
        self.world.kafka.next_commit = fate
        self.world.servers[server].apply_updates(commit=True)
        self.world.kafka.next_commit = NextCommit.SUCCEEDS

    @rule(server=SERVERS)
    def kafka_is_away_for_a_while(self, server: str) -> None:
        self.world.kafka.down = True
        self.world.servers[server].apply_updates(commit=True)
        self.world.kafka.down = False

    @rule(server=SERVERS, lose_store=st.booleans())
    def a_server_dies(self, server: str, lose_store: bool) -> None:
        self.world.servers[server].die(lose_store=lose_store)

    @rule(server=SERVERS)
    def a_server_starts(self, server: str) -> None:
        self.world.servers[server].start()

    @rule(server=SERVERS)
    def a_server_is_cut_off(self, server: str) -> None:
        self.world.servers[server].cut_off = True

    @rule(server=SERVERS)
    def a_server_is_told_to_end(self, server: str) -> None:
        self.world.servers[server].end()

    @rule(server=SERVERS, undo=st.booleans())
    def a_server_is_asked_to_drain(self, server: str, undo: bool) -> None:
        self.world.servers[server].drain(undo=undo)

    @rule()
    def copies_catch_up(self) -> None:
        self.world.follow()

    @rule()
    def the_run_beats(self) -> None:
        if self.run is not None:
            with contextlib.suppress(KeyholeError):
                self.run.beat(60.0)

    @rule(dies=st.booleans())
    def another_run_takes_over(self, dies: bool) -> None:
        before, self.run = self.run, None
        if before is not None:
            if dies:
                before.close()
            else:
                self.asleep.append(before)
        with contextlib.suppress(KeyholeError):
            self.run = begun(self.world, self.standbys)

    @rule()
    def those_that_slept_wake(self) -> None:
        if self.run is None:
            return
        for run in self.asleep:
            with pytest.raises(Fenced):
                run.beat(60.0)
            run.close()
        self.asleep.clear()

    @rule()
    def all_is_well_and_each_row_counts_once(self) -> None:
        for server in self.world.servers.values():
            server.start()
            server.drain(undo=True)
        if self.run is not None:
            self.run.close()
        self.run = begun(self.world, self.standbys)
        for server in self.world.servers.values():
            server.apply_updates(commit=True)
        for group, name in enumerate(NAMES):
            rows = [amount for of, amount in self.sent if of == group]
            owners = [value for value, _, owner in answers(self.world, name).values() if owner]
            assert owners == [sum(rows) if rows else None]

    @invariant()
    def each_answer_is_what_the_log_comes_to(self) -> None:
        if not hasattr(self, "world"):
            return
        for group, name in enumerate(NAMES):
            for server, (value, epoch, _) in answers(self.world, name).items():
                assert value == self.counted.at(group, epoch), (server, name, epoch)

    def teardown(self) -> None:
        for run in [*getattr(self, "asleep", []), *([self.run] if getattr(self, "run", None) else [])]:
            run.close()
        if hasattr(self, "world"):
            self.world.close()


FeedRuns.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=25, deadline=None)
TestFeedRuns = FeedRuns.TestCase


def test_a_run_that_died_between_any_two_steps_is_followed_by_one_that_takes_them_again(world: World) -> None:
    topics = MemoryChangelog(world.kafka, "app").updates_topics()
    first = topics.ensure(SUM.state, KEY_GROUPS, "", 1.0)  # the topic, and nothing of it on record
    run = begun(world)
    assert run.descriptors[SUM.state].updates_topic_id == first
    log = [decode(value) for *_, value in world.kafka.records(TOPIC, 0, 0, 99)]
    assert [of.generation for of in log if isinstance(of, RulesRecord)] == [run.generation]
    other = begun(world)
    log = [decode(value) for *_, value in world.kafka.records(TOPIC, 0, 0, 99)]
    assert [of.generation for of in log if isinstance(of, RulesRecord)] == [run.generation, other.generation]
    run.close()
    other.close()


def test_rules_stand_in_each_partition_before_any_server_has_a_grant(world: World) -> None:
    rules: list[int] = []
    world.meanwhile[("a", "OpenRun")] = lambda: rules.extend(
        len(world.kafka.records(TOPIC, group, 0, 99)) for group in range(KEY_GROUPS)
    )
    begun(world).close()
    assert rules == [1] * KEY_GROUPS


def test_a_feed_run_is_not_begun_over_a_query_of_epochs(world: World) -> None:
    world.run_epoch(1, {})
    run = feed_run(world)
    with pytest.raises(CheckpointMismatch, match="runs by the epochs"):
        run.start({SUM: 0})
    run.close()


def test_epochs_are_not_begun_over_a_state_of_updates(world: World) -> None:
    begun(world).close()
    with pytest.raises((StateChanged, CheckpointMismatch)):
        world.run_epoch(1, {})


def test_a_state_whose_updates_topic_was_made_anew_is_refused_and_the_run_that_is_well_goes_on(world: World) -> None:
    run = begun(world)
    world.kafka.delete_topic(TOPIC)
    MemoryChangelog(world.kafka, "app").updates_topics().ensure(SUM.state, KEY_GROUPS, "", 1.0)
    other = feed_run(world)
    with pytest.raises(ChangelogRecreated):
        other.start({SUM: 0})
    other.close()
    run.beat(-1)
    run.close()


def test_records_of_a_state_that_was_dropped_are_not_taken_for_those_of_a_new_one(world: World) -> None:
    topics = MemoryChangelog(world.kafka, "app").updates_topics()
    topics.ensure(SUM.state, KEY_GROUPS, "", 1.0)
    send(world.kafka, "app", SUM.state, 1, BoundaryRecord("s", 0, {}))
    run = feed_run(world)
    with pytest.raises(ChangelogRecreated, match="holds records"):
        run.start({SUM: 0})
    run.close()


NEW = msgspec.structs.replace(SUM, state="new")


def leftover(world: World) -> None:
    """The updates topic of a state that was dropped."""
    MemoryChangelog(world.kafka, "app").updates_topics().ensure("new", KEY_GROUPS, "", 1.0)
    send(world.kafka, "app", "new", 1, BoundaryRecord("s", 0, {}))


def of_other_partitions(world: World) -> None:
    world.kafka.ensure(updates_topic_name("app", "new"), 5)


def of_a_name_like_it(world: World) -> None:
    """The changelog of a state whose name Kafka can't tell from that of the new one's updates topic."""
    world.kafka.ensure(topic_name("app", "new_updates"), 1)


def denied(world: World) -> None:
    """This user may read and make updates topics, and write none."""
    world.kafka.denied = {(updates_topic_name("app", state), TopicRight.WRITE) for state in (SUM.state, "new")}


def ids_denied(world: World) -> None:
    """This user may write under the ids of its query, and declare no new states."""
    world.kafka.denied_ids = {ids_prefix("app", "*")}


def no(_: object) -> None:
    raise InvalidConfiguration("no")


@pytest.mark.parametrize(
    ("of", "arrange", "admit", "error"),
    [
        (NEW, leftover, lambda _: None, ChangelogRecreated),
        (NEW, of_other_partitions, lambda _: None, TopicMismatch),
        (NEW, of_a_name_like_it, lambda _: None, InvalidConfiguration),
        (SUM, denied, lambda _: None, InvalidConfiguration),
        (NEW, ids_denied, lambda _: None, InvalidConfiguration),
        (SUM, lambda _: None, no, InvalidConfiguration),
        (msgspec.structs.replace(SUM, ttl_ms=1000), lambda _: None, lambda _: None, StateChanged),
    ],
)
def test_a_start_that_is_refused_changes_nothing_and_the_run_that_is_well_goes_on(
    world: World, of: StateDescriptor, arrange: Callable[[World], None], admit: Any, error: type[KeyholeError]
) -> None:
    run = begun(world)
    arrange(world)
    before = snapshot(world)
    other = feed_run(world)
    with pytest.raises(error):
        other.start({of: 0}, admit=admit)
    other.close()
    assert snapshot(world) == before
    run.beat(-1)
    run.close()


def test_two_new_states_whose_topics_kafka_can_not_tell_apart_are_refused_before_any_is_made(world: World) -> None:
    run = begun(world)
    before = snapshot(world)
    other = feed_run(world)
    with pytest.raises(InvalidConfiguration, match=r"keyhole\.app\.new_updates.* collides with .*app\.new\.updates"):
        other.start({NEW: 0, msgspec.structs.replace(NEW, state="new_updates"): 0})
    other.close()
    assert snapshot(world) == before
    run.beat(-1)
    run.close()


def test_a_start_is_asked_about_with_the_states_that_are_on_record(world: World) -> None:
    asked: list[Mapping[str, StateOnRecord]] = []
    for sources in ({}, {"id": "orders"}, {"id": "orders"}):
        run = feed_run(world)
        run.start({SUM: 0}, sources=sources, admit=asked.append)
        run.close()
    new, *known = asked
    assert new == {}
    of = run.descriptors[SUM.state]
    # The first run did not say what it was fed by, as one of an earlier release.
    assert known == [{SUM.state: StateOnRecord(of, ())}, {SUM.state: StateOnRecord(of, ("id",))}]


def test_what_is_on_record_of_a_feed_run(world: World) -> None:
    run = begun(world)
    control = read_control(MemoryChangelog(world.kafka, "app").control(SUM.query).read(1.0), SUM.query)
    assert control.query is not None
    assert control.query.spark_query_id == "updates"
    assert control.states[SUM.state].updates_topic_id
    assert control.complete is not None
    assert control.complete.stamp == EpochStamp(0, 1, control.complete.commit_time_ms, 0)
    assert control.complete.markers == {}
    run.close()
