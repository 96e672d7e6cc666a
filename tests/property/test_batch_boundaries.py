"""No boundary of a real-time query passes rows that are not in the updates topic, wherever its drivers are killed.

The world: a source, Spark's two logs in one checkpoint, and drivers on it, any number at once: each reads on from the
last commit, batch by batch, with ends of its own. What one sends is under way until it arrives, also after its death.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.clock import SystemClock
from keyhole.errors import ChangelogRecreated, CheckpointMismatch, KafkaUnreachable
from keyhole.feed.fed_topics import Done
from keyhole.protocol.seen import SeenRows
from keyhole.protocol.updates import PUT, BoundaryRecord, UpdateRecord, decode, encode
from keyhole.spark.write_path.batch_boundaries import CommittedBatch, ends_before, ends_of, last_batch, write_boundaries
from keyhole.testing.clock import ManualClock

TOPIC, SOURCE, UPDATES_ID = "orders", "id.orders", "updates-1"
PARTITIONS, KEY_GROUPS = 2, 3


class Killed(BaseException):
    """The driver is gone, in the middle of a call."""


class World:
    """What outlives drivers. Of each offset comes one row: its key group and its amount."""

    def __init__(self) -> None:
        self.source: list[list[tuple[int, int]]] = [[] for _ in range(PARTITIONS)]
        self.offset_log: dict[int, str] = {}
        self.commit_log: list[int] = []
        self.updates: list[list[bytes]] = [[] for _ in range(KEY_GROUPS)]
        self.updates_id = UPDATES_ID

    def last_committed(self) -> int | None:
        return max(self.commit_log, default=None)

    def offsets(self, batch: int) -> str | None:
        return self.offset_log.get(batch)

    def check(self) -> None:
        """Each row below a boundary stands before it."""
        for group, log in enumerate(self.updates):
            before = set()
            for record in map(decode, log):
                if isinstance(record, UpdateRecord):
                    before.add((record.partition, record.offset))
                elif isinstance(record, BoundaryRecord):
                    assert record.updates_id == UPDATES_ID
                    for partition, end in record.ends.items():
                        for offset, (of, _) in enumerate(self.source[partition][:end]):
                            assert of != group or (partition, offset) in before

    def counted(self) -> int:
        total = 0
        for log in self.updates:
            seen = SeenRows()
            for at, record in enumerate(map(decode, log)):
                if isinstance(record, BoundaryRecord):
                    seen.reach(record)
                elif isinstance(record, UpdateRecord) and seen.take(record.row, at):
                    assert record.value is not None
                    total += record.value[0]
        return total


class Driver:
    """One, whose `steps` it is killed between, or put to sleep. Also its UpdatesTopic."""

    topic_id, partitions, most_bytes = UPDATES_ID, KEY_GROUPS, 1_000_000

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self.underway: list[deque[tuple[bytes, Done]]] = [deque() for _ in range(KEY_GROUPS)]
        self.calls_left = -1
        self.steps = self._steps()

    def _steps(self) -> Iterator[None]:
        world = self._world
        # As Spark in real-time mode: what is not committed is forgotten.
        last = world.last_committed()
        for batch in [batch for batch in world.offset_log if last is None or batch > last]:
            del world.offset_log[batch]
        while True:
            before = last_batch(world, [TOPIC])
            start: Mapping[int, int] = {} if before is None else before.ends[0]
            batch = 0 if before is None else before.batch + 1
            ends = {
                partition: self._chance.randint(start.get(partition, 0), len(rows))
                for partition, rows in enumerate(world.source)
            }
            rows = [(part, at) for part, end in ends.items() for at in range(start.get(part, 0), end)]
            self._chance.shuffle(rows)
            for partition, offset in rows:
                group, amount = world.source[partition][offset]
                self.send(group, encode(UpdateRecord(SOURCE, partition, offset, 0, PUT, 1, ["k"], None, [amount])))
                yield
            while any(self.underway):
                self.deliver()
                yield
            if batch in world.offset_log:
                return  # Spark: a concurrent update of the log
            entry = world.offset_log[batch] = f"v1\n{{}}\n{msgspec.json.encode({TOPIC: ends}).decode()}"
            yield
            if batch in world.commit_log or world.offset_log.get(batch) != entry:
                return  # Spark: another driver is on the checkpoint
            world.commit_log.append(batch)
            yield
            found = last_batch(world, [TOPIC])
            assert found is not None
            # Killed at one of the calls, or at none.
            self.calls_left = self._chance.choice([-1, -1, 0, 1, 2, 3, 4, 5])
            write_boundaries(self, UPDATES_ID, {SOURCE: TOPIC}, found, SystemClock())
            self.calls_left = -1
            yield

    def look(self) -> str:
        return self._world.updates_id

    def bounds(self, partition: int) -> tuple[int, int]:
        return 0, len(self._world.updates[partition])

    def read(self, partition: int, start: int, end: int) -> list[bytes]:
        return self._world.updates[partition][start:end]

    def send(self, partition: int, value: bytes, done: Done = lambda: None) -> None:
        self._called()
        self.underway[partition].append((value, done))

    def poll(self, seconds: float) -> None:
        assert seconds
        self._called()
        self.deliver()

    def deliver(self) -> None:
        """One record arrives. Those of a partition arrive in their order."""
        if waiting := [group for group, records in enumerate(self.underway) if records]:
            group = self._chance.choice(waiting)
            value, done = self.underway[group].popleft()
            self._world.updates[group].append(value)
            done()

    def _called(self) -> None:
        if self.calls_left == 0:
            raise Killed
        self.calls_left -= 1


@given(seed=st.integers(0, 2**32))
def test_each_row_counts_once_wherever_drivers_are_killed_or_wake_late(seed: int) -> None:
    chance = random.Random(seed)
    world, alive, dead = World(), [], list[Driver]()
    for amount in range(60):
        for _ in range(chance.randint(0, 2)):
            world.source[chance.randrange(PARTITIONS)].append((chance.randrange(KEY_GROUPS), 2**amount))
        if not alive or (len(alive) < 3 and chance.random() < 0.1):
            alive.append(Driver(world, chance))
        driver = chance.choice(alive)
        try:
            for _ in range(chance.randint(1, 12)):
                next(driver.steps)
            killed = chance.random() < 0.15
        except (Killed, StopIteration, CheckpointMismatch):
            killed = True
        if killed:
            alive.remove(driver)
            dead.append(driver)
        if dead and chance.random() < 0.3:
            chance.choice(dead).deliver()
        world.check()
    last = Driver(world, chance)
    committed = last_batch(world, [TOPIC])
    while committed is None or list(committed.ends[0].values()) != list(map(len, world.source)):
        try:
            next(last.steps)
        except (Killed, StopIteration, CheckpointMismatch):
            last = Driver(world, chance)
        committed = last_batch(world, [TOPIC])
    for driver in (*alive, *dead):
        for _ in range(100):
            driver.deliver()
    world.check()
    assert world.counted() == sum(amount for rows in world.source for _, amount in rows)


def test_a_boundary_is_written_into_no_other_updates_topic() -> None:
    world = World()
    driver = Driver(world, random.Random(0))
    world.updates_id = "updates-2"
    with pytest.raises(ChangelogRecreated, match="updates-2, it was updates-1"):
        write_boundaries(driver, UPDATES_ID, {SOURCE: TOPIC}, CommittedBatch(0, [{0: 1}]), SystemClock())
    assert not any(driver.underway)


def test_a_kafka_that_answers_and_takes_no_boundary_is_not_waited_for_without_an_end() -> None:
    clock = ManualClock()

    class Refusing(Driver):
        def poll(self, seconds: float) -> None:
            clock.advance(seconds)

    with pytest.raises(KafkaUnreachable, match=r"batch 0 within 30 s .*3 lack"):
        write_boundaries(
            Refusing(World(), random.Random(0)), UPDATES_ID, {SOURCE: TOPIC}, CommittedBatch(0, [{0: 1}]), clock
        )


def test_each_source_of_a_union_has_a_boundary_of_its_own_offsets_in_each_partition() -> None:
    world = World()
    entry = 'v1\n{"batchWatermarkMs":0}\n{"orders":{"0":3,"1":5}}\n{"visits":{"0":7}}'
    batch = CommittedBatch(4, ends_of(entry, ["orders", "visits"]))
    sources = {"id-1.a": "orders", "id-2.b": "visits"}
    write_boundaries(Driver(world, random.Random(0)), UPDATES_ID, sources, batch, SystemClock())
    for log in world.updates:
        records = [record for record in map(decode, log) if isinstance(record, BoundaryRecord)]
        assert records == [
            BoundaryRecord("id-1.a", 4, {0: 3, 1: 5}, "orders", UPDATES_ID),
            BoundaryRecord("id-2.b", 4, {0: 7}, "visits", UPDATES_ID),
        ]


def test_a_new_checkpoint_which_reads_from_the_start_writes_no_lower_boundary_than_there_is() -> None:
    world = World()
    driver, sources = Driver(world, random.Random(0)), {SOURCE: TOPIC, "id.other": TOPIC}
    assert ends_before(driver, sources) == [{}, {}]
    write_boundaries(driver, UPDATES_ID, {SOURCE: TOPIC}, CommittedBatch(7, [{0: 9, 1: 3}]), SystemClock())
    update = encode(UpdateRecord(SOURCE, 0, 9, 0, PUT, 1, ["k"], None, [1]))
    for log in world.updates:
        log += [update] * 2_000
    before = ends_before(driver, sources)
    batch = CommittedBatch(0, [{0: 2, 1: 5, 2: 1}, {0: 1}]).at_least(before)
    write_boundaries(driver, UPDATES_ID, sources, batch, SystemClock())
    assert ends_before(driver, sources) == [{0: 9, 1: 5, 2: 1}, {0: 1}]


def test_offsets_without_a_commit_make_no_boundary() -> None:
    world = World()
    world.offset_log[0] = 'v1\n{}\n{"orders":{"0":1}}'
    assert last_batch(world, [TOPIC]) is None
    world.commit_log.append(0)
    world.offset_log[1] = 'v1\n{}\n{"orders":{"0":2}}'
    assert last_batch(world, [TOPIC]) == CommittedBatch(0, [{0: 1}])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("", "version ''"),
        ('v2\n{}\n{"orders":{"0":1}}', "version 'v2'"),
        ("v1\n{}", "0 sources, and this one has 1"),
        ("v1\n{}\n-", "no offsets of Kafka"),
        ('v1\n{}\n{"visits":{"0":1}}', "offsets of topic visits where those of topic orders"),
    ],
)
def test_a_log_of_another_query_is_refused(entry: str, message: str) -> None:
    with pytest.raises(CheckpointMismatch, match=message):
        ends_of(entry, ["orders"])
