"""A copy that follows a state that is fed by updates knows as of when it has all of them, and never claims more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keyhole.changelog.base import LogExtent, Partition
from keyhole.errors import KafkaUnreachable, KeyholeError, TooStale
from keyhole.model.epoch import Position
from keyhole.model.read import ReadBounds
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.clock import ManualClock
from services.state_server.replica.ends_asking import FollowedUpdates
from services.state_server.replica.take_over import StateShare
from services.state_server.replica.updates_ends import UpdatesEnds
from tests.support.fed_hosts import NAMES, TOPIC, Fed, begun
from tests.support.states import KEY_GROUPS, key
from tests.support.waiting import eventually

KEY = key(NAMES[0])


class Pair:
    """An owner that tests drive, and a standby of all key groups. One clock."""

    def __init__(self, owner: Fed) -> None:
        self.owner = owner
        self.standby = Fed(owner.kafka)
        self.clock = self.standby.clock
        self.topics = MemoryChangelog(owner.kafka, "app").updates_topics()

    async def ask(self) -> None:
        await asyncio.to_thread(self.standby.host._ownership.standbys.ends.ask, self.topics)
        await asyncio.sleep(0)

    async def commit(self, epoch: int) -> None:
        """What was sent is committed by the owner, and has come to the standby."""
        await self.owner.steps()
        await self.owner.host.feeding.commit()
        await eventually(lambda: self.epoch() == epoch)

    def epoch(self) -> int:
        try:
            return self.standby.table.lookup([KEY]).sources[0].epoch
        except KeyholeError:
            return -1

    def is_within(self, seconds: float) -> bool:
        try:
            self.standby.table.lookup([KEY], ReadBounds(max_staleness_ms=round(seconds * 1000)))
        except TooStale:
            return False
        return True


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    both = Pair(await begun())
    await both.standby.host.follow([StateShare(both.standby.of, frozenset(), frozenset(range(KEY_GROUPS)))])
    yield both
    await both.owner.host.close()
    await both.standby.host.close()


async def test_it_is_as_old_as_the_last_question_whose_answer_it_has_reached(pair: Pair) -> None:
    await pair.commit(pair.owner.add(NAMES[0], 1))
    assert not pair.is_within(1e6), "nobody has asked"
    await pair.ask()
    pair.clock.advance(3.0)
    assert (pair.is_within(3.0), pair.is_within(2.9)) == (True, False)
    epoch = pair.owner.add(NAMES[0], 2)
    await pair.ask()
    pair.clock.advance(2.0)
    assert (pair.is_within(5.0), pair.is_within(4.9)) == (True, False), "an update is there that it has not"
    await pair.commit(epoch)
    assert (pair.is_within(2.0), pair.is_within(1.9)) == (True, False)


async def test_where_nothing_comes_it_stays_fresh_without_a_commit_and_without_an_owner(pair: Pair) -> None:
    await pair.commit(pair.owner.add(NAMES[0], 1))
    await pair.ask()
    pair.clock.advance(3_600.0)
    assert not pair.is_within(3_599.0)
    await pair.ask()
    assert pair.is_within(0.001)
    (source,) = pair.standby.table.lookup([KEY]).sources
    assert source.as_of_ms == pair.clock.now_ms()


async def test_of_a_topic_that_is_gone_or_another_one_nothing_is_believed(pair: Pair) -> None:
    await pair.commit(pair.owner.add(NAMES[0], 1))
    await pair.ask()
    pair.clock.advance(5.0)
    pair.owner.kafka.delete_topic(TOPIC)
    with pytest.raises(KeyholeError):
        await pair.ask()
    pair.owner.kafka.ensure(TOPIC, KEY_GROUPS)
    await pair.ask()
    assert (pair.is_within(5.0), pair.is_within(4.9)) == (True, False)


async def test_what_is_followed_no_more_is_forgotten_and_begins_anew(pair: Pair) -> None:
    await pair.commit(pair.owner.add(NAMES[0], 1))
    await pair.ask()
    others = frozenset(range(1, KEY_GROUPS))
    for groups in (others, frozenset(range(KEY_GROUPS))):
        await pair.standby.host.follow([StateShare(pair.standby.of, frozenset(), groups)])
    await eventually(lambda: pair.epoch() > 0)
    assert not pair.is_within(1e6)
    await pair.ask()
    assert pair.is_within(0.001)


async def test_of_a_state_that_was_made_anew_no_end_of_the_topic_before_is_waited_for_or_believed() -> None:
    clock, part = ManualClock(), Partition("s", 0)
    log = Log(clock, end=70)
    ends = UpdatesEnds(MemoryChangelog(MemoryKafka(), "app"), "main", clock, 1.0, lambda: None, by_itself=False)

    async def ask() -> None:
        ends.ask(log)  # type: ignore[arg-type]  # all that is asked
        await asyncio.sleep(0)

    ends.want({"s": FollowedUpdates("before", frozenset([0]))})
    await ask()
    assert ends.standing(part, Position(0, 70, 1, 0)).as_of_ms
    log.end = 90
    await ask()
    ends.ask(log)  # type: ignore[arg-type]  # is heard of only below
    ends.want({"s": FollowedUpdates("after", frozenset([0]))})
    await asyncio.sleep(0)
    log.end = 5
    assert not ends.standing(part, Position(0, 80, 1, 0)).as_of_ms
    await ask()
    assert ends.standing(part, Position(0, 5, 1, 0)).as_of_ms == clock.now_ms() - 250


async def test_a_log_that_has_lost_its_end_is_not_waited_for() -> None:
    clock = ManualClock()
    log = Log(clock, end=70)
    ends = UpdatesEnds(MemoryChangelog(MemoryKafka(), "app"), "main", clock, 1.0, lambda: None, by_itself=False)
    ends.want({"s": FollowedUpdates("t", frozenset([0]))})
    for end in (70, 90, 80):
        log.end = end
        ends.ask(log)  # type: ignore[arg-type]
        await asyncio.sleep(0)
    assert ends.standing(Partition("s", 0), Position(0, 80, 1, 0)).as_of_ms == clock.now_ms() - 250


@dataclass
class Log:
    """Updates topics of one partition, whose ends are known at any time."""

    clock: ManualClock
    end: int = 0
    ends: list[tuple[int, int]] = field(default_factory=list)
    down: bool = False

    def grow(self, count: int) -> None:
        self.end += count
        self.ends.append((self.clock.now_ms(), self.end))

    def end_at(self, ms: int) -> int:
        return max((end for at, end in self.ends if at < ms), default=0)

    def extents(
        self, key_groups: Mapping[str, Sequence[int]], deadline_seconds: float
    ) -> Mapping[Partition, LogExtent]:
        if self.down:
            raise KafkaUnreachable("down")
        self.clock.advance(0.25)
        return {Partition("s", 0): LogExtent(0, self.end)}

    def lost(self, topic_ids: Mapping[str, str], deadline_seconds: float) -> Sequence[str]:
        return ()


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(st.integers(1, 3), st.sampled_from(["ask", "ask", "follow", "restart", "down", "wait"])), max_size=200
    )
)
@example([2, "ask", "follow", "restart"])
def test_whatever_happens_it_has_all_that_there_was_when_it_says(steps: list[int | str]) -> None:
    async def run() -> None:
        clock = ManualClock()
        log, at = Log(clock), 0
        changelog = MemoryChangelog(MemoryKafka(), "app")
        ends = UpdatesEnds(changelog, "main", clock, 1.0, lambda: None, by_itself=False)
        ends.want({"s": FollowedUpdates("t", frozenset([0]))})
        for step in steps:
            clock.advance(0.001)
            match step:
                case "ask":
                    try:
                        ends.ask(log)  # type: ignore[arg-type]  # all that is asked
                    except KafkaUnreachable:
                        continue
                    await asyncio.sleep(0)
                case "follow":
                    at = min(log.end, at + 2)
                case "restart":
                    at = 0
                case "down":
                    log.down = not log.down
                case "wait":
                    clock.advance(1.0)
                case _:
                    log.grow(int(step))
            standing = ends.standing(Partition("s", 0), Position(0, at, 1, 0))
            assert standing.stamp.epoch == at
            if standing.as_of_ms:
                assert log.end_at(standing.as_of_ms) <= at
        log.down = False
        ends.ask(log)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        since = clock.now_ms()
        standing = ends.standing(Partition("s", 0), Position(0, log.end, 1, 0))
        assert since - standing.as_of_ms == 250, "it has all there is, as of when it was asked"
        assert len(ends._ends[Partition("s", 0)]) <= 64

    asyncio.run(run())


def test_a_copy_that_is_always_far_behind_knows_its_age_all_the_same() -> None:
    async def run() -> None:
        clock = ManualClock()
        log = Log(clock)
        ends = UpdatesEnds(MemoryChangelog(MemoryKafka(), "app"), "main", clock, 1.0, lambda: None, by_itself=False)
        ends.want({"s": FollowedUpdates("t", frozenset([0]))})
        ages = []
        for number in range(2_000):
            log.grow(1)
            ends.ask(log)  # type: ignore[arg-type]
            await asyncio.sleep(0)
            standing = ends.standing(Partition("s", 0), Position(0, max(0, number - 300), 1, 0))
            if number > 500:
                ages.append((clock.now_ms() - standing.as_of_ms) / 250)
        assert min(ages) >= 300
        assert max(ages) <= 1_000

    asyncio.run(run())
