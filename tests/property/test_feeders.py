"""Each row of a source counts once, wherever feeders are killed, and however many of them send at once.

Beside the machine that tries all of it in any order: a feeder that is killed at each of its calls, and simpler feeders
that lose rows.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from keyhole.errors import ChangelogRecreated, Fenced
from keyhole.feed.feeder import Feeder
from keyhole.feed.source_progress import SourceProgress
from keyhole.protocol.updates import BoundaryRecord, UpdateRecord, decode
from tests.support.examples import examples
from tests.support.feeder_world import DEAD, KEY_GROUPS, FeederProcess, Killed, World

KEYS = ["a", "b", "c", "d"]
UNREADABLE = {"id": None}


def started(world: World, kind: type[Feeder] = Feeder) -> FeederProcess:
    process = FeederProcess(world, kind)
    process.feeder.start()
    return process


class Feeding(RuleBasedStateMachine):
    """See the module's text."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.amount = 1
        self.alive: list[FeederProcess] = []
        self.dead: list[FeederProcess] = []
        # Whether the operator has agreed that the source is another one.
        self.accepted = True

    @rule(where=st.integers(0, 9), key=st.sampled_from([*KEYS, None]))
    def a_record_comes(self, where: int, key: str | None) -> None:
        self.amount += 1
        row = {"id": key, "n": self.amount}
        self.world.append(where % len(self.world.source), UNREADABLE if key is None else row)

    @rule()
    def the_source_gets_a_partition(self) -> None:
        if len(self.world.source) < 3:
            self.world.add_partition()

    @rule(fuse=st.none() | st.integers(0, 12))
    def a_feeder_starts(self, fuse: int | None) -> None:
        """Beside those that are there, which may never hear of it."""
        if len(self.alive) < 3:
            process = FeederProcess(self.world, from_earliest=not self.accepted)
            self._run(process, fuse, process.feeder.start)

    @rule(which=st.integers(0, 9), fuse=st.none() | st.integers(0, 12))
    def a_feeder_steps(self, which: int, fuse: int | None) -> None:
        if self.alive:
            process = self.alive.pop(which % len(self.alive))
            self._run(process, fuse, lambda: process.feeder.step(0.0))

    def _run(self, process: FeederProcess, fuse: int | None, what: object) -> None:
        process.calls_left = fuse
        try:
            what()  # type: ignore[operator]  # start or step
        except (Killed, Fenced, ChangelogRecreated):
            self.dead.append(process)
        else:
            if what == process.feeder.start:
                self.accepted = True
            process.calls_left = None
            self.alive.append(process)

    @rule(which=st.integers(0, 9), partition=st.integers(-1, KEY_GROUPS - 1), most=st.integers(1, 3))
    def what_was_sent_arrives(self, which: int, partition: int, most: int) -> None:
        """Of the dead, too."""
        processes = [*self.alive, *self.dead]
        if processes:
            processes[which % len(processes)].deliver(partition, most)

    @rule(which=st.integers(0, 9))
    def what_the_dead_had_sent_is_lost(self, which: int) -> None:
        if self.dead:
            self.dead.pop(which % len(self.dead))

    @rule()
    def the_source_is_made_anew(self) -> None:
        """That takes longer than feeders go on without a look at it."""
        if len(self.world.earlier) < 3:
            self.world.make_anew()
            self.accepted = False
            self.world.clock.advance(1.0)

    @rule()
    def the_updates_topic_is_made_anew(self) -> None:
        """With it is lost what is under way to it. That takes as long."""
        self.world.make_updates_anew()
        for process in (*self.alive, *self.dead):
            for group in range(KEY_GROUPS):
                process.underway.pop(group, None)
        self.world.clock.advance(1.0)

    @rule(seconds=st.sampled_from([0.5, 1.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.advance(seconds)

    @rule(partition=st.integers(0, 9))
    def the_source_forgets_what_all_have_been_told_of(self, partition: int) -> None:
        """Retention, of what is below a boundary that every feeder to come reads."""
        where = partition % len(self.world.source)
        ends = [
            record.ends.get(where, 0)
            for value in self.world.logs[0]
            if isinstance(record := decode(value), BoundaryRecord) and record.source == self.world.topic_id
        ]
        # A feeder that sleeps may be further behind, and would be refused: none is here.
        if not self.alive:
            self.world.starts[where] = max(self.world.starts[where], *ends, 0)

    @invariant()
    def nothing_counts_that_is_not_in_the_source(self) -> None:
        for topic_id, expected in {**self.world.earlier, self.world.topic_id: self.world.expected()}.items():
            for name, amount in self.world.counted(topic_id).items():
                assert expected[name] == amount

    @invariant()
    def no_source_goes_on_before_those_of_its_name_have_ended_everywhere(self) -> None:
        begun = [record.source for value in self.world.logs[0] if isinstance(record := decode(value), BoundaryRecord)]
        fed = {record.source for times in self.world.sent().values() for _, record in times}
        last = max(begun, key=len, default="")
        for group in range(KEY_GROUPS):
            assert fed - {last} <= self.world.ended(group)

    @invariant()
    def rows_of_a_partition_come_in_its_order_at_first(self) -> None:
        for group in range(KEY_GROUPS):
            last: dict[tuple[str, int], int] = {}
            seen = set()
            for value in self.world.logs[group]:
                record = decode(value)
                if isinstance(record, UpdateRecord) and record.row not in seen:
                    seen.add(record.row)
                    assert record.offset > last.get((record.source, record.partition), -1)
                    last[record.source, record.partition] = record.offset

    def teardown(self) -> None:
        """A last feeder sends all that is missing."""
        last = FeederProcess(self.world, from_earliest=not self.accepted)
        last.feeder.start()
        last.drain()
        assert self.world.counted() == self.world.expected()
        assert self.world.rejected() == self.world.unreadable()


Feeding.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
TestFeeding = Feeding.TestCase


def _fed(world: World) -> None:
    for at, key in enumerate("abcdabcd"):
        world.append(0, {"id": key, "n": 1 << at})
    world.append(0, UNREADABLE)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_feeder_may_be_killed_at_each_of_its_calls(arrives: bool) -> None:
    calls = 0
    while True:
        world = World()
        _fed(world)
        process = FeederProcess(world)
        process.calls_left = calls
        try:
            process.feeder.start()
            process.drain()
        except Killed:
            if arrives:
                process.calls_left = None
                for partition in range(DEAD, KEY_GROUPS):
                    process.deliver(partition)
            started(world).drain()
        assert world.counted() == world.expected(), calls
        assert world.rejected() == {(0, 8)}
        if process.calls_left:
            return
        calls += 1


def test_a_second_feeder_changes_nothing_and_the_first_one_hears_of_it() -> None:
    world = World()
    _fed(world)
    first = started(world)
    first.feeder.step(0.0)
    second = started(world)
    second.drain()
    for partition in range(DEAD, KEY_GROUPS):
        first.deliver(partition)
    world.clock.advance(1.0)
    with pytest.raises(Fenced):
        first.feeder.step(0.0)
    assert world.counted() == world.expected()
    assert any(len(times) > 1 for times in world.sent().values())


class _ReadIsSent(SourceProgress):
    """A planted bug: what was read counts as sent."""

    def ends(self) -> dict[int, int]:
        return dict(self._next)


class BoundaryOfWhatWasRead(Feeder):
    """Writes boundaries with which rows are lost that its death leaves unsent."""

    def start(self) -> None:
        super().start()
        self._progress = _ReadIsSent(self._progress.ends())


class DeadLettersOnTheWay(Feeder):
    """A planted bug: a dead letter counts as kept once it is sent."""

    def _feed(self, record: object) -> None:
        super()._feed(record)  # type: ignore[arg-type]  # a SourceRecord
        for offset, sends in list(self._progress._waiting[0].items()):
            if offset == 8:
                for _ in range(sends):
                    self._progress.acknowledged(0, offset)


@pytest.mark.parametrize("wrong", [BoundaryOfWhatWasRead, DeadLettersOnTheWay])
def test_a_simpler_feeder_loses_records(wrong: type[Feeder]) -> None:
    def lost(kind: type[Feeder]) -> bool:
        world = World()
        _fed(world)
        process = started(world, kind)
        while process.feeder.step(0.0):
            if kind is not BoundaryOfWhatWasRead:
                for partition in range(KEY_GROUPS):
                    process.deliver(partition)
        world.clock.advance(1.0)
        process.feeder.step(0.0)
        # The boundary arrives; of the rows and letters before it some do not.
        for partition, underway in process.underway.items():
            if partition != DEAD and underway:
                value, _ = underway[-1]
                if isinstance(decode(value), BoundaryRecord):
                    world.logs[partition].append(value)
        with suppress(Killed):
            started(world).drain()
        return world.counted() != world.expected() or world.rejected() != {(0, 8)}

    assert lost(wrong)
    assert not lost(Feeder)
