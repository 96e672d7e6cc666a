"""Copies that follow: what they show, when, and how they change places with the owner. On the in-memory changelog."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from keyhole.errors import NotOwner
from keyhole.model.epoch import Run
from keyhole.model.evolution import evolved
from keyhole.model.read import ReadBounds, Stale
from keyhole.model.state import StateDescriptor, ValueField, ValueSchema
from keyhole.protocol.control import AssignmentRecord, CompleteRecord, GenerationRecord, record
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.v1.state_pb2 import ROLE_OWNER, ROLE_STANDBY
from services.state_server.replica.take_over import StateShare
from tests.support.hosts import Hosted
from tests.support.states import KEY_GROUPS, descriptor, key, names_in, row
from tests.support.waiting import eventually

ALL = frozenset(range(KEY_GROUPS))
A, B = (key(names_in(g)[0]) for g in (0, 1))


class Pair:
    """An owner, a standby, and the control topic that both follow."""

    def __init__(self) -> None:
        self.kafka = MemoryKafka()
        self.owner = Hosted(kafka=self.kafka)
        self.standby = Hosted(kafka=self.kafka)
        self._control = MemoryChangelog(self.kafka, "app").control("main")
        self._control.open(1)

    async def follow(self, groups: frozenset[int] = ALL) -> None:
        await self.standby.host.follow([StateShare(self.standby.of, frozenset(), groups)])

    async def apply(self, epoch: int, rows: Mapping[bytes, bytes | None]) -> None:
        await self.owner.apply(epoch, rows)

    def complete(self, epoch: int) -> None:
        markers = [self.kafka.end(self.owner.of.topic, g) - 2 for g in range(KEY_GROUPS)]
        self.tell(record("complete", "main", CompleteRecord(epoch, 1, 1000 * epoch, 0, 0, {"counts": markers}, "", 1)))

    def tell(self, records: Mapping[str, bytes | None]) -> None:
        self._control.append(records, 1)

    def shown(self, storage_key: bytes) -> tuple[bytes | None, int]:
        """What the standby answers: row and epoch."""
        answers = self.standby.table.lookup([storage_key])
        assert answers.sources[0].role == ROLE_STANDBY
        return answers.rows[0], answers.sources[0].epoch

    def shows(self, storage_key: bytes, wanted: bytes | None, epoch: int) -> bool:
        try:
            return self.shown(storage_key) == (wanted, epoch)
        except (KeyError, NotOwner):
            return False


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    both = Pair()
    await both.owner.own()
    yield both
    await both.owner.host.close()
    await both.standby.host.close()


async def test_a_standby_shows_what_was_committed_before_and_after_it_began(pair: Pair) -> None:
    await pair.apply(1, {A: row(1.0)})
    await pair.follow()
    await eventually(lambda: pair.shows(A, row(1.0), 1))
    await pair.apply(2, {A: row(2.0)})
    await eventually(lambda: pair.shows(A, row(2.0), 2))


async def test_a_key_group_without_changes_stands_for_the_complete_epoch(pair: Pair) -> None:
    await pair.apply(1, {A: row(1.0), B: row(1.0)})
    await pair.apply(2, {A: row(2.0)})
    await pair.follow()
    await eventually(lambda: pair.shows(B, row(1.0), 1))
    pair.complete(2)
    await eventually(lambda: pair.shows(B, row(1.0), 2))


async def test_it_is_warm_once_it_has_caught_up(pair: Pair) -> None:
    await pair.apply(1, {A: row(1.0)})
    await pair.follow(frozenset({0, 1}))
    await eventually(lambda: pair.standby.host.warm() == {"counts": frozenset({0, 1})})


async def test_what_is_not_followed_any_more_is_not_answered(pair: Pair) -> None:
    await pair.apply(1, {A: row(1.0), B: row(1.0)})
    await pair.follow()
    await eventually(lambda: pair.shows(B, row(1.0), 1))
    await pair.follow(ALL - {group_of(B)})
    with pytest.raises(NotOwner):
        pair.standby.table.lookup([B])
    assert pair.shown(A) == (row(1.0), 1)


async def test_a_standby_that_takes_over_answers_all_the_time(pair: Pair) -> None:
    await pair.apply(1, {A: row(1.0)})
    await pair.follow()
    await eventually(lambda: pair.shows(A, row(1.0), 1))
    await pair.apply(2, {A: row(2.0)})
    await pair.standby.open(2, "grant-2")
    assigned = asyncio.ensure_future(pair.standby.assign(complete=2))
    while not assigned.done():
        pair.standby.table.lookup([A])
        await asyncio.sleep(0)
    answers = pair.standby.table.lookup([A], ReadBounds(stale=Stale.NEVER))
    assert (answers.rows, answers.sources[0].role) == ([row(2.0)], ROLE_OWNER)
    await pair.standby.apply(3, {A: row(3.0)})
    assert pair.standby.read(A) == [row(3.0)]


async def test_an_owner_that_was_released_follows_its_successor(pair: Pair) -> None:
    await pair.apply(1, {A: row(1.0)})
    await pair.owner.host.release(pair.owner.run, "counts", ALL, pair.owner.version)
    assert pair.owner.table.lookup([A]).sources[0].role == ROLE_STANDBY
    await pair.standby.open(2, "grant-2")
    assert await pair.standby.assign(complete=1)
    await pair.standby.apply(2, {A: row(2.0)})
    await eventually(lambda: pair.owner.table.lookup([A]).rows == [row(2.0)])


async def test_an_owner_that_reads_of_its_successor_steps_down_and_follows_it(pair: Pair) -> None:
    await pair.apply(1, {A: row(1.0)})
    newer = AssignmentRecord(1, ("server-b",), {"counts": (0,) * KEY_GROUPS}, generation=2)
    pair.tell(record("assignment", "main", newer))
    await eventually(lambda: not pair.owner.table.groups)
    with pytest.raises(NotOwner):
        pair.owner.table.lookup([A], ReadBounds(stale=Stale.NEVER))
    assert pair.owner.table.lookup([A]).rows == [row(1.0)]
    with pytest.raises(NotOwner):
        await pair.apply(2, {A: row(2.0)})


async def test_an_owner_does_not_step_down_for_its_own_or_an_older_assignment(pair: Pair) -> None:
    await pair.apply(1, {A: row(1.0)})
    for generation, version in ((1, pair.owner.version), (0, 99)):
        other = AssignmentRecord(version, ("server-b",), {"counts": (0,) * KEY_GROUPS}, generation=generation)
        pair.tell(record("assignment", "main", other))
    pair.complete(1)
    await asyncio.sleep(0.3)
    assert pair.owner.table.groups == ALL


async def test_a_lagging_standby_says_how_many_complete_epochs_it_lacks(pair: Pair) -> None:
    await pair.apply(1, {A: row(1.0)})
    pair.complete(1)
    await pair.follow()
    await eventually(lambda: pair.shows(A, row(1.0), 1))
    end = pair.kafka.end(pair.owner.of.topic, group_of(A))
    markers = {"counts": [end + 5] * KEY_GROUPS}  # of an epoch whose records have not come yet
    pair.tell(record("complete", "main", CompleteRecord(4, 1, 4000, 0, 0, markers, "", 2)))
    await eventually(lambda: pair.standby.table.lookup([A]).sources[0].lag_epochs == 3)
    assert pair.shown(A) == (row(1.0), 1)


async def test_a_new_run_of_the_standby_itself_is_no_reason_to_lose_what_it_follows(pair: Pair) -> None:
    await pair.apply(1, {A: row(1.0)})
    await pair.follow()
    await eventually(lambda: pair.shows(A, row(1.0), 1))
    await pair.standby.host.open_run(Run("app", "main", 5, "run-5"), "incarnation-1", "grant-5")
    assert pair.shown(A) == (row(1.0), 1)


EVOLVED = evolved(descriptor(), descriptor(value=ValueSchema(1, (ValueField("m", "int"), ValueField("n", "double")))))


def appended(generation: int, of: StateDescriptor) -> dict[str, bytes | None]:
    """What a run of that generation appends."""
    return record("generation", "main", GenerationRecord(generation, "run")) | record("state", "counts", of)


async def test_a_standby_learns_of_a_newer_schema_from_the_control_topic_and_goes_on_showing_what_it_has(
    pair: Pair,
) -> None:
    await pair.apply(1, {A: row(1.0)})
    await pair.follow()
    await eventually(lambda: pair.shows(A, row(1.0), 1))
    before = pair.standby.table
    pair.tell(appended(2, EVOLVED))
    await eventually(lambda: pair.standby.table.descriptor == EVOLVED)
    assert pair.standby.table is before
    assert pair.shown(A) == (row(1.0), 1)
    assert before.codec.decode_row(row(1.0)).asdict() == {"m": None, "n": 1.0}


async def test_a_schema_never_goes_back(pair: Pair) -> None:
    """Two ways lead to a replica; the later word may come first."""
    await pair.follow()
    pair.standby.of = EVOLVED
    await pair.follow()
    pair.tell(appended(2, descriptor()))
    pair.complete(1)
    await eventually(lambda: pair.standby.table.standby.standing.stamp.epoch == 1)
    pair.standby.of = descriptor()
    await pair.follow()
    assert pair.standby.table.descriptor == EVOLVED


async def test_what_its_own_run_has_assigned_counts_more_than_an_older_word_of_the_control_topic(pair: Pair) -> None:
    """How long entries live may change without another version."""
    pair.owner.of = descriptor(max_length=5)
    await pair.owner.own(generation=2)
    pair.tell(appended(2, descriptor()))
    newer = AssignmentRecord(1, ("server-b",), {"counts": (0,) * KEY_GROUPS}, generation=3)
    pair.tell(record("assignment", "main", newer))
    await eventually(lambda: not pair.owner.table.groups)
    assert pair.owner.table.descriptor.max_length == 5
    pair.tell(appended(3, descriptor(max_length=6)))
    await eventually(lambda: pair.owner.table.descriptor.max_length == 6)


def group_of(storage_key: bytes) -> int:
    return int.from_bytes(storage_key[:2], "big")
