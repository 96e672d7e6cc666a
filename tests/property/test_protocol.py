"""Whatever fails between any two steps, every epoch is applied once, in order, and no reader sees a part of one.

The coordinator, the state servers and their stores are the real ones (tests/support/simulation.py); hypothesis chooses
the batches, the faults and the schedule.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from keyhole.changelog.base import Partition
from keyhole.changelog.records import MARKER_KEY, decode_marker
from keyhole.coordinator import coordinator, run
from keyhole.errors import KeyholeError, NotOwner, NotReady
from keyhole.types import StateDescriptor
from tests.support.simulation import DriverDiedError, Fault, Rows, World
from tests.support.states import KEY_GROUPS, descriptor, key, names_in, row

NAMES = {group: names_in(group, 2) for group in range(KEY_GROUPS)}
KEYS = {group: [key(name) for name in names] for group, names in NAMES.items()}
ALL = [name for names in NAMES.values() for name in names]
CONTENT = Mapping[bytes, bytes]

# Two faults an epoch. An epoch has twelve steps, a run's first one some twenty, one with a second round thirty.
faults = st.dictionaries(st.integers(1, 30), st.sampled_from(Fault), max_size=2)
numbers = st.sampled_from([0.0, 1.0, 2.0, 3.0])


@pytest.fixture(autouse=True, scope="module")
def _time_passes_by_looking_at_it() -> Iterable[None]:
    """How long a round takes must not depend on the machine: else hypothesis can't repeat what it found."""
    looks = itertools.count()
    # In steps that floats hold exactly.
    clock = SimpleNamespace(monotonic=lambda: next(looks) / 1024, sleep=lambda seconds: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "time", clock)
        patch.setattr(coordinator, "time", clock)
        yield


class Protocol(RuleBasedStateMachine):
    """Rows are upserts and deletions; subclasses have other kinds of batches."""

    state: StateDescriptor = descriptor()
    replace = False
    values: st.SearchStrategy[float | None] = st.none() | numbers

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.state)
        # What the state is after each epoch, applied one after the other; index 0: before the first.
        self.history: list[CONTENT] = [{}]
        self.batches: list[Rows] = []
        self.done = 0
        # By key group: the newest owner that a reader has met, and the last change that it was told of.
        self.seen = dict.fromkeys(range(KEY_GROUPS), ((0, 0), 0))

    def batch(self, values: Mapping[str, float | None]) -> Rows:
        return {key(name): None if value is None else row(value) for name, value in values.items()}

    def apply(self, before: CONTENT, rows: Rows) -> CONTENT:
        after = {**before, **rows}
        return {name: value for name, value in after.items() if value is not None}

    # --- what happens ---------------------------------------------------------------------------------------------

    @rule(data=st.data(), plan=faults, committed=st.booleans())
    def run_the_next_batch(self, data: st.DataObject, plan: dict[int, Fault], committed: bool) -> None:
        if self.done == len(self.batches):
            values = data.draw(st.dictionaries(st.sampled_from(ALL), self.values, max_size=6))
            self.batches.append(self.batch(values))
            self.history.append(self.apply(self.history[-1], self.batches[-1]))
        self.attempt(plan)
        if self.world.coordinator is None and not committed:
            return  # Spark's own commit log was not written, though ours may have been
        complete = self.complete()
        if complete > self.done:
            self.done = complete

    def attempt(self, plan: Mapping[int, Fault]) -> None:
        """Runs the batch as Spark would: the one after the last in its commit log. It may fail."""
        world = self.world
        if all(server.servicer is None or server.cut_off for server in world.servers.values()):
            world.servers["a"].start()
        world.faults = {world.steps + number: fault for number, fault in plan.items()}
        try:
            result = world.run_epoch(self.done, self.batches[self.done], replace=self.replace, strict=True)
        except (DriverDiedError, KeyholeError):
            return
        finally:
            world.faults.clear()
        assert result.epoch == self.done + 1

    def complete(self) -> int:
        """What a reader of the control topic knows."""
        coordinator = self.world.coordinator
        record = coordinator._run.complete if coordinator is not None else None
        return record.epoch if record is not None else self.done

    @rule(plan=faults)
    def heartbeat(self, plan: dict[int, Fault]) -> None:
        if self.done:
            self.world.faults = {self.world.steps + number: fault for number, fault in plan.items()}
            self.world.beat()
            self.world.faults.clear()

    @rule(name=st.sampled_from(["a", "b"]), lose_store=st.booleans())
    def a_server_dies(self, name: str, lose_store: bool) -> None:
        self.world.servers[name].die(lose_store=lose_store)

    @rule()
    def servers_start(self) -> None:
        for server in self.world.servers.values():
            server.start()

    @rule()
    def the_driver_dies(self) -> None:
        self.world.driver_dies()

    @rule()
    def late_messages_arrive(self) -> None:
        self.world.late_messages_arrive()

    @rule(data=st.data())
    def a_message_arrives_again(self, data: st.DataObject) -> None:
        if self.world.sent:
            self.world.arrives_again(data.draw(st.sampled_from(self.world.sent[-20:])))

    @rule()
    def the_changelog_is_compacted(self) -> None:
        if self.batches and self.world.kafka.topic_id(self.state.topic) is not None:
            self.world.kafka.compact(self.state.topic)

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
                    epochs.append(decode_marker(value, Partition("counts", group), offset).epoch)
                elif value is None:
                    content.pop(name, None)
                else:
                    content[name] = value
            assert epochs == sorted(set(epochs)), "an epoch was written twice, or after a later one"
            assert self.done <= len(self.batches)
            epoch = max(epochs[-1], self.done)
            assert content == self.of(epoch, group), f"key group {group} is not what epoch {epoch} makes it"

    @invariant()
    def readers_see_whole_epochs_that_do_not_go_back(self) -> None:
        for group in range(KEY_GROUPS):
            names = KEYS[group]
            best: tuple[int, int, int] | None = None
            for server in self.world.servers.values():
                for table in server.tables.values():
                    try:
                        answers = table.lookup(names)
                    except (NotOwner, NotReady):
                        continue
                    (source,) = answers.sources
                    found = {name: value for name, value in zip(names, answers.rows, strict=True) if value is not None}
                    assert found == self.of(source.epoch, group), f"not the whole of epoch {source.epoch}"
                    best = max(best or (0, 0, 0), (source.generation, source.assignment_version, source.epoch))
            if best is not None:
                # By the last epoch that changed it: one that left it as it was may be told before it is complete.
                changed = self.last_change(best[2], group)
                owner, before = self.seen[group]
                # An older owner that was cut off answers on, and says by its version what it is.
                if best[:2] >= owner:
                    assert changed >= before, "the owner went back behind an epoch that was seen"
                    self.seen[group] = best[:2], changed

    def last_change(self, epoch: int, group: int) -> int:
        while epoch and self.of(epoch, group) == self.of(epoch - 1, group):
            epoch -= 1
        return epoch

    def teardown(self) -> None:
        """Once nothing fails any more, everything is applied, and every owner's store holds it."""
        try:
            self.servers_start()
            self.batches.append({})  # the next epoch finds the servers that are back
            self.history.append(self.apply(self.history[-1], {}))
            for _ in range(4):
                if self.done < len(self.batches):
                    self.attempt({})
                    self.done = max(self.done, self.complete())
            assert self.done == len(self.batches), "the last batch does not get through though nothing fails"
            self.the_changelog_is_the_epochs_one_after_the_other()
            self.readers_see_whole_epochs_that_do_not_go_back()
            self.every_key_group_has_one_owner_that_answers()
        finally:
            self.world.close()

    def every_key_group_has_one_owner_that_answers(self) -> None:
        for group in range(KEY_GROUPS):
            names = KEYS[group]
            answers = []
            for server in self.world.servers.values():
                for table in server.tables.values():
                    try:
                        answers.append(table.lookup(names, min_epoch=self.done))
                    except (NotOwner, NotReady):
                        continue
            assert len(answers) == 1
            expected = self.of(self.done, group)
            assert list(answers[0].rows) == [expected.get(name) for name in names]


class OrderedProtocol(Protocol):
    """With order_by: the highest value wins, NaN above all, null below."""

    state = descriptor(order_by="n")
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

    replace = True
    values = numbers

    def apply(self, before: CONTENT, rows: Rows) -> CONTENT:
        return {name: value for name, value in rows.items() if value is not None}


_SETTINGS = settings(
    max_examples=100, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

TestProtocol = Protocol.TestCase
TestOrderedProtocol = OrderedProtocol.TestCase
TestCompleteProtocol = CompleteProtocol.TestCase
TestProtocol.settings = TestOrderedProtocol.settings = TestCompleteProtocol.settings = _SETTINGS
