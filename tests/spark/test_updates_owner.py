"""Updates on a real Kafka are counted once by owners that die anywhere: all of the real-time core, without a process.

An owner reads the updates topic, applies, and commits to the changelog behind that. It is left at any step, as a killed
process is, and the next one has nothing but the two topics. One that is only asleep finds its grant fenced.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing

import pytest
from confluent_kafka import Producer
from msgspec.structs import replace

from keyhole.changelog.base import LogExtent, Partition
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.changelog.kafka.updates_tail import KafkaUpdatesTail
from keyhole.changelog.kafka.updates_topics import KafkaUpdatesTopics
from keyhole.changelog.settings import updates_topic_name
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of
from keyhole.errors import Fenced
from keyhole.model.epoch import START
from keyhole.model.state import StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.protocol.seen import FeedPosition
from keyhole.protocol.updates import (
    PUT,
    BoundaryRecord,
    EndRecord,
    FeedRules,
    Record,
    RulesRecord,
    UpdateRecord,
    encode,
)
from keyhole.stores.memory import MemoryEngine
from services.state_server.write.state_feed import FeedCommit, StateFeed
from tests.support.states import descriptor, hosted
from tests.support.waiting import LONG_SECONDS

DEADLINE = LONG_SECONDS
GROUPS = [0, 1]
NAMES = [f"name-{number}" for number in range(12)]


class Owner:
    """What a state server will do, on one thread. `left` closes only what would disturb the machine."""

    def __init__(self, kafka: str, of: StateDescriptor, topic_id: str, fences: str = "") -> None:
        changelog = KafkaChangelog(kafka, of.application)
        if fences:
            changelog.admin().fence(fences, DEADLINE)
        self.grant = f"grant-{uuid.uuid4().hex}"
        self._writer = changelog.writer(self.grant)
        self._writer.open(DEADLINE)
        state = hosted(GROUPS, of, MemoryEngine().open(of.application, of.state, "topic"))
        reader = changelog.reader()
        ends = reader.ends({of.state: GROUPS}, DEADLINE)
        positions = {group: FeedPosition() for group in GROUPS}
        for piece in reader.read(dict.fromkeys(ends, START), ends, DEADLINE):
            state.apply_pieces([piece])
            if piece.marker is not None:
                assert piece.marker.feed is not None
                positions[piece.partition.key_group] = piece.marker.feed
        self.feed = StateFeed(state, topic_id)
        with closing(KafkaUpdatesTopics(kafka, of.application)) as topics:
            extents = topics.extents({of.state: GROUPS}, DEADLINE)
        for group, position in positions.items():
            self.feed.begin(group, position, extents[Partition(of.state, group)].start)
        self._tail = KafkaUpdatesTail(kafka, of.application, {of.state: topic_id})
        self._tail.follow({Partition(of.state, group): self.feed.reads_of(group) for group in self.feed.key_groups})

    def apply(self, seconds: float = 0.2) -> None:
        counts = self.feed.apply({run.partition.key_group: run.updates for run in self._tail.poll(seconds)})
        assert (counts.refused, counts.failed) == ({}, {})

    def begin_commit(self) -> FeedCommit | None:
        return self.feed.begin_commit(generation=1, now_ms=1)

    def write(self, commit: FeedCommit) -> None:
        self.feed.committed(commit, self._writer.commit(commit.changes, DEADLINE))

    def left(self) -> None:
        self._tail.close()
        self._writer.close()

    def sums(self, of: StateDescriptor) -> Counter[str]:
        codec, snapshot = StateCodec(of), self.feed.snapshot()
        rows = [entry for group in GROUPS for entry in snapshot.items(group)]
        snapshot.close()
        return Counter({codec.key(key)[0]: codec.decode_row(row)["n"] for key, row in rows})


class Driver:
    """Sends rows batch by batch. One that is killed is followed by one that sends its batch again, cut otherwise."""

    def __init__(self, kafka: str, of: StateDescriptor) -> None:
        self._topic = updates_topic_name(of.application, of.state)
        self._codec = StateCodec(of)
        self._producer = Producer({"bootstrap.servers": kafka})
        self._boundary = 0
        self.rows: list[tuple[str, int]] = []

    def send(self, chance: random.Random) -> None:
        """A batch, of which some is sent twice or three times, and at its end a boundary, unless it is killed."""
        self.rows += [(chance.choice(NAMES), chance.randint(1, 9)) for _ in range(chance.randint(5, 60))]
        for _ in range(chance.randint(1, 3)):
            for offset in range(self._boundary, chance.randint(self._boundary, len(self.rows))):
                self._send_row(offset)
        for offset in range(self._boundary, len(self.rows)):
            self._send_row(offset)
        if chance.random() < 0.7:
            self._boundary = len(self.rows)
            self.send_all(BoundaryRecord("s", 0, {0: self._boundary}))
        assert self._producer.flush(DEADLINE) == 0

    def _send_row(self, offset: int) -> None:
        name, amount = self.rows[offset]
        record = UpdateRecord("s", 0, offset, 0, PUT, 1, [name], None, [amount])
        self._producer.produce(self._topic, encode(record), partition=group_of(self._codec.storage_key(name)))

    def send_all(self, record: Record) -> None:
        for group in GROUPS:
            self._producer.produce(self._topic, encode(record), partition=group)
        assert self._producer.flush(DEADLINE) == 0

    def sums(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for name, amount in self.rows:
            found[name] += amount
        return found


def _until_all(owner: Owner, of: StateDescriptor, expected: Counter[str]) -> None:
    deadline = time.monotonic() + DEADLINE
    while (found := owner.sums(of)) != expected:
        assert time.monotonic() < deadline, (found, expected)
        owner.apply()


@pytest.mark.parametrize("seed", [1, 2])
def test_each_row_counts_once_whoever_dies_in_which_step(kafka: str, application: str, seed: int) -> None:
    chance = random.Random(seed)
    of = descriptor(
        application=application,
        key_groups=len(GROUPS),
        kind=StateKind.REDUCING,
        reducers=("sum",),
        value=ValueSchema(1, (ValueField("n", "bigint"),)),
    )
    topics = KafkaUpdatesTopics(kafka, application)
    updates = topics.ensure(of.state, len(GROUPS), "", DEADLINE)
    of = replace(of, topic_id=KafkaChangelog(kafka, application).admin().ensure(of, DEADLINE))
    driver = Driver(kafka, of)
    driver.send_all(RulesRecord(1, FeedRules.of(of)))
    owner = Owner(kafka, of, updates)
    asleep: list[tuple[Owner, FeedCommit]] = []
    for _ in range(12):
        driver.send(chance)
        for _ in range(chance.randint(0, 3)):
            owner.apply()
        commit = owner.begin_commit()
        ends: Sequence[str] = ("lives", "lives", "killed before", "killed after", "sleeps")
        end = chance.choice(ends)
        if commit is None or end == "lives":
            if commit is not None:
                owner.apply()
                owner.write(commit)
            continue
        if end == "killed after":
            owner.write(commit)
        if end == "sleeps":
            asleep.append((owner, commit))
        else:
            owner.left()
        owner = Owner(kafka, of, updates, fences=owner.grant)
    _until_all(owner, of, driver.sums())
    for before, commit in asleep:
        with pytest.raises(Fenced):
            before.write(commit)
        before.left()
    driver.send_all(EndRecord("s"))
    _until_ended(owner, topics.extents({of.state: GROUPS}, DEADLINE))
    last = owner.begin_commit()
    assert last is not None
    owner.write(last)
    owner.left()
    assert {change.marker.feed.refill - change.marker.feed.next for change in last.changes if change.marker.feed} == {0}
    after = Owner(kafka, of, updates, fences=owner.grant)
    assert after.sums(of) == driver.sums(), "from the changelog alone"
    after.left()


def _until_ended(owner: Owner, extents: Mapping[Partition, LogExtent]) -> None:
    """Until it has taken all that there is: it has the sums before that, where the last rows were sent twice."""
    deadline = time.monotonic() + DEADLINE
    while any(owner.feed.next_of(part.key_group) < extent.end for part, extent in extents.items()):
        assert time.monotonic() < deadline
        owner.apply()


def test_a_reader_that_is_behind_knows_how_much_there_is_without_asking(kafka: str, application: str) -> None:
    of = descriptor(application=application, key_groups=len(GROUPS))
    with closing(KafkaUpdatesTopics(kafka, application)) as topics:
        topic_id = topics.ensure(of.state, len(GROUPS), "", DEADLINE)
        producer = Producer({"bootstrap.servers": kafka})
        for _ in range(9_000):
            producer.produce(updates_topic_name(application, of.state), b"{}" * 50, partition=0)
        assert producer.flush(DEADLINE) == 0
        part = Partition(of.state, 0)
        assert topics.extents({of.state: GROUPS}, DEADLINE)[part].end == 9_000
        with closing(KafkaUpdatesTail(kafka, application, {of.state: topic_id})) as tail:
            tail.follow({part: 0})
            known, read, deadline = set(), 0, time.monotonic() + DEADLINE
            while read < 9_000:
                assert time.monotonic() < deadline
                for run in tail.poll(0.5):
                    read += len(run.updates)
                    if run.end is None:
                        known.add(run.log_end)
                    else:
                        assert (run.end, run.log_end) == (9_000, 0)
            assert known == {9_000}
        # Asked again, by the same client.
        producer.produce(updates_topic_name(application, of.state), b"{}", partition=0)
        assert producer.flush(DEADLINE) == 0
        assert topics.extents({of.state: GROUPS}, DEADLINE)[part].end == 9_001
