"""Whatever fails between any two steps, every epoch is applied once, in order, and no reader sees a part of one.

The coordinator, the state servers and their stores are the real ones (tests/support/simulation.py); hypothesis chooses
the batches, the faults and the schedule. Other kinds are in test_protocol_kinds. A broadcast state has no schedules of
its own: to a state server it is one of values with a single key group (services/state_server/write/merge_rows.py).
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from keyhole.changelog.base import Partition
from keyhole.changelog.records import MARKER_KEY, decode_marker
from keyhole.errors import EpochGone, EpochNotReached, KeyholeError, NotOwner, NotReady
from keyhole.model.read import ReadBounds
from keyhole.model.state import StateDescriptor, StateKind
from keyhole.v1 import state_pb2
from tests.support.examples import examples
from tests.support.simulated_watches import WatchedGroup
from tests.support.simulation import DriverDiedError, Fault, Rows, SimulatedServer, World
from tests.support.states import KEY_GROUPS, descriptor, key, names_in, row

NAMES = {group: names_in(group, 2) for group in range(KEY_GROUPS)}
KEYS = {group: [key(name) for name in names] for group, names in NAMES.items()}
ALL = [name for names in NAMES.values() for name in names]
CONTENT = Mapping[bytes, bytes]

Plan = Mapping[int | tuple[str, str], Fault]
"""What goes wrong: at a step, by its number from now on, or at the next message of a kind to a server."""

# Two faults an epoch. An epoch of two servers has twelve steps, a run's first one some twenty, a second round as many.
at_steps = st.dictionaries(st.integers(1, 30), st.sampled_from(Fault), max_size=2)
# What becomes of a Commit is what most depends on.
at_messages = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["Commit", "Commit", "Stage", "OpenRun", "Assign", "Release"])),
    st.sampled_from(
        [
            Fault.MESSAGE_IS_LATE,
            Fault.SERVER_IS_CUT_OFF,
            Fault.ANSWER_IS_LOST,
            Fault.SERVER_DIES,
            Fault.SERVER_DIES_AFTER,
            Fault.DRIVER_DIES,
            Fault.OLD_DRIVERS_WAKE,
            Fault.HEARTBEATS_COME,
        ]
    ),
    max_size=2,
)
plans: st.SearchStrategy[Plan] = st.one_of(at_steps, at_messages)
numbers = st.sampled_from([0.0, 1.0, 2.0, 3.0])


class Protocol(RuleBasedStateMachine):
    """Rows are upserts and deletions; subclasses have other kinds of batches."""

    state: StateDescriptor = descriptor()
    servers: tuple[str, ...] = ("a", "b")
    standbys = 0
    replace = False
    values: st.SearchStrategy[float | None] = st.none() | numbers

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.state, self.servers, self.standbys)
        # What the state is after each epoch, applied one after the other; index 0: before the first.
        self.history: list[CONTENT] = [{}]
        self.batches: list[Rows] = []
        self.done = 0
        # By key group: the newest owner that a reader has met, and the last change that it was told of.
        self.seen = dict.fromkeys(range(KEY_GROUPS), ((0, 0), 0))
        self.watched = [WatchedGroup(group) for group in range(KEY_GROUPS)]

    def batch(self, values: Mapping[str, float | None]) -> Rows:
        return {key(name): None if value is None else row(value) for name, value in values.items()}

    def apply(self, before: CONTENT, rows: Rows) -> CONTENT:
        after = {**before, **rows}
        return {name: value for name, value in after.items() if value is not None}

    # --- what happens ---------------------------------------------------------------------------------------------

    @rule(data=st.data(), plan=plans, committed=st.booleans())
    def run_the_next_batch(self, data: st.DataObject, plan: Plan, committed: bool) -> None:
        if self.done == len(self.batches):
            values = data.draw(st.dictionaries(st.sampled_from(ALL), self.values, min_size=1, max_size=6))
            self.batches.append(self.batch(values))
            self.history.append(self.apply(self.history[-1], self.batches[-1]))
        self.attempt(plan)
        if self.world.coordinator is None and not committed:
            return  # Spark's own commit log was not written, though ours may have been
        complete = self.complete()
        if complete > self.done:
            self.done = complete

    @rule(data=st.data())
    def run_the_next_batch_and_nothing_fails(self, data: st.DataObject) -> None:
        self.run_the_next_batch(data, {}, True)

    @rule(plan=plans)
    def time_passes(self, plan: Plan) -> None:
        """Copies catch up, and a heartbeat comes."""
        self.world.follow()
        self.heartbeat(plan)

    def attempt(self, plan: Plan) -> None:
        """Runs the batch as Spark would: the one after the last in its commit log. It may fail."""
        world = self.world
        if all(server.servicer is None or server.cut_off for server in world.servers.values()):
            world.servers["a"].start()
        self.expect(plan)
        # Before the first of each: some of the rows are staged then, or all of them.
        world.meanwhile = {(name, of): self.the_latest for name in self.servers for of in ("Stage", "Commit")}
        try:
            result = world.run_epoch(self.done, self.batches[self.done], replace=self.replace, strict=True)
        except (DriverDiedError, KeyholeError):
            return
        finally:
            world.meanwhile.clear()
            self.expect({})
        assert result.epoch == self.done + 1

    def expect(self, plan: Plan) -> None:
        """From now on this goes wrong, and nothing else."""
        world = self.world
        world.faults = {world.steps + at: fault for at, fault in plan.items() if isinstance(at, int)}
        world.faults_at = {at: fault for at, fault in plan.items() if not isinstance(at, int)}

    def complete(self) -> int:
        """What a reader of the control topic knows."""
        coordinator = self.world.coordinator
        record = coordinator.complete if coordinator is not None else None
        return record.epoch if record is not None else self.done

    @rule(plan=plans)
    def heartbeat(self, plan: Plan) -> None:
        if self.done:
            self.expect(plan)
            self.world.beat()
            self.expect({})

    @rule(data=st.data())
    def a_server_changes(self, data: st.DataObject) -> None:
        server = self.world.servers[data.draw(st.sampled_from(self.servers))]
        happens = {
            "it dies": server.die,
            "it loses its store": lambda: server.die(lose_store=True),
            "it is told to end": server.end,
            "it has nothing to do any more": lambda: server.die() if server.may_end else None,
            "it is asked to drain": server.drain,
            "it is asked to drain no more": lambda: server.drain(undo=True),
            "key groups are moved to it": lambda: server.move(self.state.state, *self.some_groups(data)),
            "they may go elsewhere": lambda: server.move(self.state.state, *self.some_groups(data), undo=True),
            "its copies catch up": server.follow,
            "it forgets the query": server.forget,
        }
        happens[data.draw(st.sampled_from(sorted(happens)))]()

    @staticmethod
    def some_groups(data: st.DataObject) -> set[int]:
        return data.draw(st.sets(st.integers(0, KEY_GROUPS), min_size=1))

    @rule()
    def servers_start(self) -> None:
        for server in self.world.servers.values():
            server.start()
            server.drain(undo=True)
            server.move(self.state.state, *range(KEY_GROUPS + 1), undo=True)  # so that they share evenly in the end

    @rule(dies=st.booleans())
    def the_driver_is_gone(self, dies: bool) -> None:
        if dies:
            self.world.driver_dies()
        else:
            self.world.suspend_driver()

    @rule()
    def old_drivers_wake(self) -> None:
        if self.world.coordinator is not None:  # else nobody has replaced them yet
            self.world.old_drivers_wake()

    @rule(data=st.data())
    def old_messages_arrive(self, data: st.DataObject) -> None:
        if self.world.sent and data.draw(st.booleans()):
            self.world.arrives_again(data.draw(st.sampled_from(self.world.sent[-20:])))
        else:
            self.world.late_messages_arrive()

    @rule()
    def the_changelog_is_compacted(self) -> None:
        if self.batches and self.world.kafka.topic_id(self.state.topic) is not None:
            self.world.kafka.compact(self.state.topic)
            # It is not before ten minutes; whoever has not read on for so long is refused by then.
            for watched in self.watched:
                watched.forget()

    @rule(data=st.data(), most=st.integers(1, 3))
    def who_watches_reads_on(self, data: st.DataObject, most: int) -> None:
        """At any server that says it owns the key group: one that is cut off does, too."""
        server = self.world.servers[data.draw(st.sampled_from(self.servers))]
        for watched in self.watched:
            self.read_on(watched, server, most)

    def read_on(self, watched: WatchedGroup, server: SimulatedServer, most: int) -> None:
        before = watched.complete
        for change in watched.read(self.world, server, most):
            assert change.epoch > watched.last.get(change.key, -1), f"told twice, or out of order: {change}"
            assert change.row == self.of(change.epoch, watched.key_group).get(change.key), f"not of its epoch: {change}"
            watched.take(change)
        complete = watched.complete
        if complete is None or complete == before:
            return
        assert watched.expected(self.of(complete, watched.key_group), complete), f"not all of epoch {complete}"
        for epoch in range((complete if before is None else before) + 1, complete + 1):
            earlier, later = (self.of(of, watched.key_group) for of in (epoch - 1, epoch))
            for name in earlier.keys() | later.keys():
                changed = earlier.get(name) != later.get(name)
                assert not changed or (name, epoch) in watched.seen, f"epoch {epoch} was passed over"

    def who_watches_has_all(self, watched: WatchedGroup) -> None:
        """Once it was told of the last epoch."""
        assert watched.kept == self.of(self.done, watched.key_group)

    # --- what must hold -------------------------------------------------------------------------------------------

    def of(self, epoch: int, group: int) -> CONTENT:
        prefix = group.to_bytes(2, "big")
        return {name: value for name, value in self.history[epoch].items() if name.startswith(prefix)}

    @invariant()
    def the_changelog_is_the_epochs_one_after_the_other(self) -> None:
        kafka, topic = self.world.kafka, self.state.topic
        if kafka.topic_id(topic) is None:
            return
        for group in range(KEY_GROUPS):
            content: dict[bytes, bytes] = {}
            epochs = [0]
            for offset, name, value in kafka.records(topic, group, 0, kafka.end(topic, group)):
                if name == MARKER_KEY:
                    epochs.append(decode_marker(value, Partition("counts", group), offset).stamp.epoch)
                elif value is None:
                    content.pop(name, None)
                else:
                    content[name] = value
            assert epochs == sorted(set(epochs)), "an epoch was written twice, or after a later one"
            assert self.done <= len(self.batches)
            epoch = max(epochs[-1], self.done)
            assert content == self.of(epoch, group), f"key group {group} is not what epoch {epoch} makes it"

    @invariant()
    def what_a_key_group_may_do_follows_from_its_state(self) -> None:
        self.world.look_at_key_groups()
        assert self.world.groups.violations == []

    @invariant()
    def readers_see_whole_epochs_that_do_not_go_back(self) -> None:
        for group, names in KEYS.items():
            best: tuple[int, int, int] | None = None
            for source, rows in self.answers(names):
                found = {name: value for name, value in zip(names, rows, strict=True) if value is not None}
                assert found == self.of(source.epoch, group), f"not the whole of epoch {source.epoch}"
                if source.role == state_pb2.ROLE_OWNER:
                    best = max(best or (0, 0, 0), (source.generation, source.assignment_version, source.epoch))
            if best is not None:
                # By the last epoch that changed it: one that left it as it was may be told before it is complete.
                changed = self.last_change(best[2], group)
                owner, before = self.seen[group]
                # An older owner that was cut off answers on, and says by its version what it is.
                if best[:2] >= owner:
                    assert changed >= before, "the owner went back behind an epoch that was seen"
                    self.seen[group] = best[:2], changed

    @invariant()
    def an_epoch_that_is_read_by_its_number_is_that_epoch(self) -> None:
        """On every copy, however it came to its key groups: so keys of several of them are never of two epochs."""
        for epoch in range(max(1, self.done - 2), len(self.history)):
            for group, names in KEYS.items():
                for source, rows in self.answers(names, as_of=epoch):
                    found = {name: value for name, value in zip(names, rows, strict=True) if value is not None}
                    assert source.epoch == epoch
                    assert found == self.of(epoch, group), f"asked for epoch {epoch}, and got another"

    def the_latest(self) -> None:
        """What is staged, merged as it will be committed, of whole key groups: on the owner alone, and never twice."""
        for group, names in KEYS.items():
            for table in [table for server in self.world.servers.values() for table in server.tables.values()]:
                with contextlib.suppress(NotOwner, NotReady):
                    (committed,) = table.lookup(names).sources
                    answers = table.lookup(names, ReadBounds(latest=True))
                    (source,) = answers.sources
                    found = {name: value for name, value in zip(names, answers.rows, strict=True) if value is not None}
                    assert source.epoch == committed.epoch
                    assert not source.staged_epoch or source.epoch < source.staged_epoch < len(self.history)
                    assert not source.staged_epoch or (source.role == state_pb2.ROLE_OWNER and not source.unconfirmed)
                    self.is_the_latest(group, source, found)

    def is_the_latest(self, group: int, source: state_pb2.Source, found: CONTENT) -> None:
        """`found`: what there is of all of its keys."""
        epoch = source.staged_epoch or source.epoch
        assert found == self.of(epoch, group), f"not the whole of epoch {epoch}"

    def answers(
        self, names: Sequence[bytes], min_epoch: int = 0, as_of: int = 0
    ) -> list[tuple[state_pb2.Source, Sequence[bytes | None]]]:
        """What every copy that can be read says of keys of one key group."""
        found = []
        for server in self.world.servers.values():
            for table in server.tables.values():
                with contextlib.suppress(NotOwner, NotReady, EpochNotReached, EpochGone):
                    answers = table.lookup(names, ReadBounds(min_epoch, as_of=as_of))
                    (source,) = answers.sources
                    found.append((source, answers.rows))
        return found

    def last_change(self, epoch: int, group: int) -> int:
        while epoch and self.of(epoch, group) == self.of(epoch - 1, group):
            epoch -= 1
        return epoch

    def teardown(self) -> None:
        """Once nothing fails any more, everything is applied, and every copy that there should be holds it."""
        try:
            self.servers_start()
            self.batches.append({})  # the next epoch finds the servers that are back
            self.history.append(self.apply(self.history[-1], {}))
            for _ in range(4):
                if self.done < len(self.batches):
                    self.attempt({})
                    self.done = max(self.done, self.complete())
            assert self.done == len(self.batches), "the last batch does not get through though nothing fails"
            self.world.settle()
            self.world.follow()
            self.the_changelog_is_the_epochs_one_after_the_other()
            self.readers_see_whole_epochs_that_do_not_go_back()
            self.every_copy_answers_and_the_servers_share_evenly()
            self.what_a_key_group_may_do_follows_from_its_state()
            for watched in self.watched:
                for server in self.world.servers.values():
                    self.read_on(watched, server, 1_000)
                self.who_watches_has_all(watched)
        finally:
            self.world.close()

    def every_copy_answers_and_the_servers_share_evenly(self) -> None:
        owned: Counter[str] = Counter()
        for group, names in KEYS.items():
            expected = self.of(self.done, group)
            answers = self.answers(names, min_epoch=self.done)
            assert all(list(rows) == [expected.get(name) for name in names] for _, rows in answers)
            owners = [source.server for source, _ in answers if source.role == state_pb2.ROLE_OWNER]
            assert len(owners) == 1
            owned[owners[0]] += 1
            assert len(answers) - 1 == min(self.standbys, len(self.servers) - 1)
        assert max(owned[name] for name in self.servers) - min(owned[name] for name in self.servers) <= 1


class OrderedProtocol(Protocol):
    """With order_by: the highest value wins, NaN above all, null below."""

    state = descriptor(order_by="n")
    standbys = 1
    values = st.sampled_from([math.nan, -math.inf, 1.0, 2.0]) | numbers

    def apply(self, before: CONTENT, rows: Rows) -> CONTENT:
        after = dict(before)
        for name, value in rows.items():
            assert value is not None
            if name not in after or self.rank(value) >= self.rank(after[name]):
                after[name] = value
        return after

    def rank(self, value: bytes) -> tuple[bool, float]:
        n = self.world.codec.decode_row(value)["n"]
        return math.isnan(n), 0.0 if math.isnan(n) else n


class CompleteProtocol(Protocol):
    """Complete mode: a batch is the whole state."""

    servers = ("a", "b", "c")
    replace = True
    values = numbers

    def apply(self, before: CONTENT, rows: Rows) -> CONTENT:
        return {name: value for name, value in rows.items() if value is not None}


class ReducingProtocol(Protocol):
    """Sums: what is applied twice, or not at all, shows."""

    state = descriptor(kind=StateKind.REDUCING, reducers=("sum",))
    servers = ("a", "b", "c")
    standbys = 1
    values = st.sampled_from([1.0, 2.0, 3.0])

    def apply(self, before: CONTENT, rows: Rows) -> CONTENT:
        after = dict(before)
        for name, value in rows.items():
            after[name] = row(self.number(value) + self.number(before.get(name)))
        return after

    def number(self, value: bytes | None) -> float:
        return float(self.world.codec.decode_row(value)["n"]) if value is not None else 0.0


_SETTINGS = settings(max_examples=examples(75), stateful_step_count=30)

TestProtocol = Protocol.TestCase
TestOrderedProtocol = OrderedProtocol.TestCase
TestCompleteProtocol = CompleteProtocol.TestCase
TestReducingProtocol = ReducingProtocol.TestCase
TestProtocol.settings = TestOrderedProtocol.settings = _SETTINGS
TestCompleteProtocol.settings = TestReducingProtocol.settings = _SETTINGS
