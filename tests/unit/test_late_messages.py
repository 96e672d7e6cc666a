"""Messages that arrive late, answers that Kafka gives early, and a server that is replaced meanwhile: the real driver
and servers, step by step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from keyhole.changelog.base import Partition
from keyhole.changelog.records import MARKER_KEY, decode_marker
from keyhole.errors import (
    Fenced,
    KafkaUnreachable,
    KeyholeError,
    NotOwner,
    NotReady,
    StageLost,
    TooStale,
    Unconfirmed,
)
from keyhole.model.read import ReadBounds, Stale
from keyhole.model.state import StateKind
from keyhole.testing.memory_kafka import MemoryKafka
from tests.support.simulation import Fault, Letter, World
from tests.support.states import KEY_GROUPS, descriptor, key, names_in, row

KEYS = [key(names_in(group)[0]) for group in range(KEY_GROUPS)]
ONE = {name: row(1.0) for name in KEYS}
SUM = descriptor(kind=StateKind.REDUCING, reducers=("sum",))
REFUSED = (NotOwner, NotReady, TooStale, Unconfirmed)


def rows(n: float) -> dict[bytes, bytes | None]:
    return {name: row(n) for name in KEYS}


def owned(world: World, server: str) -> tuple[int, ...]:
    assert world.coordinator is not None
    return world.coordinator.owned_by(server, "counts")


class Completing:
    """Kafka while it completes transactions: what was committed is acknowledged, and can't be read.

    Until the transactional id is fenced, or `looks` looks at an end later.
    """

    def __init__(self, kafka: MemoryKafka, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks = 0
        self._topic = topic
        self._from: dict[int, tuple[int, str]] = {}
        self._commit, self._end, self._ends, self._bump = kafka.commit, kafka.end, kafka.ends, kafka.bump
        for name in ("commit", "end", "ends", "bump"):
            monkeypatch.setattr(kafka, name, getattr(self, name))

    def commit(self, transactional_id: str, epoch: int, batches: Any) -> list[int]:
        before = {number: self._end(topic, number) for topic, number, _ in batches if topic == self._topic}
        offsets = self._commit(transactional_id, epoch, batches)
        if self.looks:
            self._from |= {number: (at, transactional_id) for number, at in before.items() if number not in self._from}
        return offsets

    def end(self, topic: str, number: int) -> int:
        real = self._end(topic, number)
        if topic != self._topic or number not in self._from:
            return real
        self.looks -= 1
        if self.looks <= 0:
            self._from, self.looks = {}, 0
            return real
        return min(real, self._from[number][0])

    def ends(self, parts: Any) -> list[int]:
        return [self.end(*part) if self._ends([part])[0] >= 0 else -1 for part in parts]

    def bump(self, transactional_id: str) -> Any:
        self._from = {number: of for number, of in self._from.items() if of[1] != transactional_id}
        return self._bump(transactional_id)


@pytest.fixture
def sums() -> Iterator[World]:
    """Servers a and b, and c, which is down; the state is a sum."""
    made = World(SUM, "abc")
    made.servers["c"].die()
    yield made
    made.close()


@pytest.fixture
def completing(sums: World, monkeypatch: pytest.MonkeyPatch) -> Completing:
    return Completing(sums.kafka, SUM.topic, monkeypatch)


def totals(world: World) -> list[float]:
    """Of each key group's key, as its owner has it."""
    found = {}
    for name, server in world.servers.items():
        for group in owned(world, name):
            (value,) = server.tables["app", "counts"].lookup([KEYS[group]]).rows
            assert value is not None
            found[group] = world.codec.decode_row(value)["n"]
    return [found[group] for group in range(KEY_GROUPS)]


def epochs(world: World, group: int) -> list[int]:
    """Of the markers in a key group's changelog."""
    topic = world.descriptor.topic
    return [
        decode_marker(value, Partition("counts", group), offset).stamp.epoch
        for offset, name, value in world.kafka.records(topic, group, 0, world.kafka.end(topic, group))
        if name == MARKER_KEY and value is not None
    ]


def test_a_planned_handover_waits_until_what_was_committed_can_be_read(sums: World, completing: Completing) -> None:
    sums.run_epoch(0, ONE)
    sums.servers["c"].start()
    sums.beat()  # c is to follow
    completing.looks = 50
    sums.run_epoch(1, ONE)
    sums.follow()  # c has read all that can be read: it is warm
    sums.beat()
    assert owned(sums, "c")
    sums.run_epoch(2, ONE)
    assert totals(sums) == [3.0] * KEY_GROUPS


def test_a_transaction_that_is_being_completed_is_not_taken_for_a_lost_one(sums: World, completing: Completing) -> None:
    sums.run_epoch(0, ONE)
    completing.looks = 50
    sums.run_epoch(1, ONE)
    sums.servers["b"].die()  # and is fenced; a stays
    sums.run_epoch(2, ONE)
    assert totals(sums) == [3.0] * KEY_GROUPS


def test_a_late_open_run_takes_no_grant_that_was_fenced_since() -> None:
    world = World(SUM, "ab")
    with contextlib.closing(world):
        world.run_epoch(0, ONE)
        # a's grant breaks; the OpenRun of its next one is late, the one after that arrives.
        world.faults_at["a", "Commit"] = Fault.ANSWER_IS_LOST
        world.faults_at["a", "OpenRun"] = Fault.MESSAGE_IS_LATE
        # b's answer to Assign is lost, so Assign goes out to both again. Before it the late OpenRun arrives.
        world.faults_at["b", "Assign"] = Fault.ANSWER_IS_LOST

        def before_the_next_one() -> None:
            assert [letter.method for letter in world.late] == ["OpenRun"]
            world.meanwhile["a", "Assign"] = world.late_messages_arrive

        world.meanwhile["b", "Assign"] = before_the_next_one
        assert world.run_epoch(1, ONE).epoch == 2
        assert (world.late, world.faults_at, world.meanwhile) == ([], {}, {})

        # a is cut off while a Commit is on its way to it; b takes over. Then a is back, and so is the Commit.
        world.faults_at["a", "Commit"] = Fault.SERVER_IS_CUT_OFF
        assert world.run_epoch(2, ONE).rounds == 2
        assert owned(world, "a") == ()
        assert "Commit" in {letter.method for letter in world.late}
        world.late_messages_arrive()
        assert [epochs(world, group) for group in range(KEY_GROUPS)] == [[1, 2, 3]] * KEY_GROUPS


def test_a_late_release_does_not_take_what_was_given_back() -> None:
    world = World(descriptor(), "abc", 1)
    with contextlib.closing(world):
        world.run_epoch(0, rows(1.0))
        world.settle()
        world.servers["a"].end()
        world.faults_at["a", "Release"] = Fault.MESSAGE_IS_LATE
        world.beat(seconds=-1.0)
        world.servers["a"].unend()
        for name in "bc":
            world.servers[name].die()
        world.run_epoch(1, rows(2.0))
        assert len(owned(world, "a")) == KEY_GROUPS
        assert [letter.method for letter in world.late] == ["Release"]
        world.late_messages_arrive()
        world.beat()
        assert (
            world.servers["a"].tables["app", "counts"].lookup(KEYS, ReadBounds(stale=Stale.NEVER)).rows
            == [row(2.0)] * KEY_GROUPS
        )


def test_a_late_assignment_does_not_take_back_what_others_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    letters: list[Letter] = []
    deliver = World.deliver

    def noting(self: World, server: str, method: str, request: Any) -> Any:
        if method == "Assign":
            servicer = self.servers[server].servicer
            assert servicer is not None
            letters.append(Letter(server, servicer, method, request))
        return deliver(self, server, method, request)

    monkeypatch.setattr(World, "deliver", noting)
    world = World(descriptor(), "abc")
    with contextlib.closing(world):
        world.servers["c"].die()
        world.run_epoch(0, rows(1.0))
        before, letters[:] = list(letters), []
        world.servers["c"].start()
        world.settle()
        assert owned(world, "c")
        assert {letter.server for letter in before} == {"a", "b"}
        for letter in before:
            with contextlib.suppress(KeyholeError):
                world.call(letter)
        groups = {name: server.tables["app", "counts"].groups for name, server in world.servers.items()}
        assert groups == {name: frozenset(owned(world, name)) for name in world.servers}


class TestARetiredQuery:
    """What its server has forgotten must not let through what it would have refused."""

    @pytest.fixture
    def world(self) -> Iterator[World]:
        """Two runs of the query, each of two epochs; then it is retired on both servers."""
        made = World(SUM, "ab")
        for batch in range(4):
            made.run_epoch(batch, ONE)
            made.beat()
            if batch == 1:
                made.driver_dies()
        made.driver_dies()
        made.clock.advance(10.0)
        for server in made.servers.values():
            assert made.run(server._registry.retire("app")) == {"main": ["counts"]}
        yield made
        made.close()

    @staticmethod
    def arrive_again(world: World, letters: Sequence[Letter]) -> list[type[Exception]]:
        """All of them, each twice; and how each is answered."""
        refusals: list[type[Exception]] = []
        for letter in letters:
            for _ in range(2):
                try:
                    world.call(letter)
                except KeyholeError as error:
                    refusals.append(type(error))
        return refusals

    def test_none_of_its_runs_messages_does_anything_where_nobody_knows_it_any_more(self, world: World) -> None:
        letters = [letter for letter in world.answered if letter.method != "Describe"]
        assert {letter.method for letter in letters} >= {"OpenRun", "Assign", "Stage", "Commit", "Confirm"}
        holders, ends = dict(world.kafka._epochs), [epochs(world, group) for group in range(KEY_GROUPS)]
        refusals = self.arrive_again(world, letters)
        assert len(refusals) == 2 * len(letters)
        assert set(refusals) == {NotReady, Fenced, StageLost}
        # Nobody has taken back a grant that was fenced, nothing was written, and nothing runs for it.
        assert world.kafka._epochs == holders
        assert [epochs(world, group) for group in range(KEY_GROUPS)] == ends == [[1, 2, 3, 4]] * KEY_GROUPS
        assert not any(server._registry.hosts or server.tables for server in world.servers.values())

    def test_none_of_them_does_anything_once_a_later_run_has_begun(self, world: World) -> None:
        letters = [letter for letter in world.answered if letter.method != "Describe"]
        world.run_epoch(4, ONE)
        refusals = self.arrive_again(world, letters)
        assert len(refusals) == 2 * len(letters)
        assert set(refusals) <= {NotReady, Fenced, StageLost}
        world.run_epoch(5, ONE)
        assert totals(world) == [6.0] * KEY_GROUPS
        assert [epochs(world, group) for group in range(KEY_GROUPS)] == [[1, 2, 3, 4, 5, 6]] * KEY_GROUPS

    def test_none_of_them_does_anything_while_their_own_run_takes_it_up_again(self) -> None:
        world = World(SUM, "ab")
        with contextlib.closing(world):
            world.run_epoch(0, ONE)
            letters = [letter for letter in world.answered if letter.method in ("OpenRun", "Assign", "Stage", "Commit")]
            assert world.coordinator is not None
            run = world.coordinator._run.run
            for server in world.servers.values():
                world.run(server._registry.retire("app", "main", run))
            self.arrive_again(world, letters)
            world.beat()  # it finds out, and gives them grants anew
            self.arrive_again(world, letters)
            world.run_epoch(1, ONE)
            self.arrive_again(world, letters)
            assert totals(world) == [2.0] * KEY_GROUPS
            assert [epochs(world, group) for group in range(KEY_GROUPS)] == [[1, 2]] * KEY_GROUPS


class TestWhoIsConfirmed:
    """`never` and `max_staleness` are for readers who want no answer of an owner that was replaced."""

    @pytest.fixture
    def world(self) -> Iterator[World]:
        made = World(descriptor(), "ab")
        made.run_epoch(0, rows(1.0))
        yield made
        made.close()

    @staticmethod
    def refused(world: World, name: str, groups: tuple[int, ...]) -> None:
        """Each of these key groups, for whoever asks that server for a confirmed owner."""
        assert groups
        table = world.servers[name].tables["app", "counts"]
        for group in groups:
            with pytest.raises(REFUSED):
                table.lookup([KEYS[group]], ReadBounds(0, Stale.NEVER, 1000))

    @staticmethod
    def replaced(world: World) -> tuple[int, ...]:
        """a is cut off, b takes its key groups over, and epochs go on. Returns a's key groups."""
        mine = owned(world, "a")
        world.servers["a"].cut_off = True
        world.run_epoch(1, rows(2.0))
        world.clock.advance(10.0)
        world.run_epoch(2, rows(3.0))
        assert owned(world, "a") == ()
        world.late.clear()
        return mine

    def test_not_a_replaced_owner_that_is_let_in_again(self, world: World) -> None:
        mine = self.replaced(world)
        world.servers["a"].start()  # with all that it had
        looked = []

        def look() -> None:
            looked.append(True)
            self.refused(world, "a", mine)

        world.meanwhile["a", "Assign"] = look
        world.beat()
        assert looked

    def test_not_by_a_confirmation_that_is_late(self, world: World) -> None:
        world.faults_at["a", "Confirm"] = Fault.MESSAGE_IS_LATE
        world.beat()
        late = list(world.late)
        assert [letter.method for letter in late] == ["Confirm"]
        mine = self.replaced(world)
        for letter in late:
            world.arrives_again(letter)
        self.refused(world, "a", mine)

    def test_not_by_a_driver_that_can_not_tell_whether_it_was_replaced(self, world: World) -> None:
        old = world.coordinator
        assert old is not None
        mine = owned(world, "a")
        world.suspend_driver()
        world.servers["a"].cut_off = True
        world.run_epoch(1, rows(2.0))  # by a new driver, on b alone
        world.clock.advance(60.0)
        world.servers["a"].cut_off = False  # for the old driver it never was

        world.kafka.down = True
        with pytest.raises(KafkaUnreachable):
            old.beat()
        world.kafka.down = False
        self.refused(world, "a", mine)
