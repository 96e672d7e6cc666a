"""The read side: what it answers as of which epoch, and what it refuses."""

from __future__ import annotations

import pytest

from keyhole.errors import EpochNotReached, KeyTooLong, MalformedRequest, NotOwner, NotReady
from keyhole.model.epoch import START, Position
from keyhole.model.read import ReadBounds
from keyhole.stores.base import Advance, Batch
from keyhole.testing.clock import ManualClock
from services.state_server.read.table import Table
from tests.support.states import KEY_GROUPS, group, key, names_in, row, standing, table


def publish(to: Table, epoch: int, groups: set[int], positions: dict[int, Position] | None = None) -> None:
    to.publish(to.store.snapshot(), frozenset(groups), standing(epoch), positions or {})


def put(to: Table, name: str, n: float, before: Position = START) -> Position:
    after = Position(before.offset + 2, before.epoch + 1, 1, 0, 1000 * (before.epoch + 1))
    to.store.apply(Batch(puts=[(key(name), row(n))], advances={group(name): Advance(before, after)}))
    return after


def test_an_epoch_is_seen_when_it_is_published_and_not_before() -> None:
    of = table()
    position = put(of, "a", 1.0)
    publish(of, 1, set(range(KEY_GROUPS)))
    put(of, "a", 2.0, position)
    assert of.lookup([key("a")]).rows == [row(1.0)]
    publish(of, 2, set(range(KEY_GROUPS)))
    answers = of.lookup([key("a"), key("b")])
    assert answers.rows == [row(2.0), None]
    assert (answers.sources[0].epoch, answers.sources[0].commit_time_ms) == (2, 2000)


def test_a_state_is_not_offered_before_all_of_it_is_there_and_says_how_far_it_is() -> None:
    """K05."""
    of = table()
    of.progress.restored, of.progress.total = 1234, 5000
    with pytest.raises(NotReady, match="1,234 of 5,000"):
        of.lookup([key("a")])


def test_key_groups_of_others_are_refused() -> None:
    of = table()
    of.given.taken_over()
    publish(of, 1, {0})
    assert of.lookup([key(names_in(0)[0])]).rows == [None]
    with pytest.raises(NotOwner):
        of.lookup([key(names_in(0)[0]), key(names_in(1)[0])])


def test_withdrawn_key_groups_are_refused_at_once() -> None:
    of = table()
    of.given.taken_over()
    publish(of, 1, set(range(KEY_GROUPS)))
    of.given.release(frozenset({1}))
    assert of.lookup([key(names_in(0)[0])]).rows == [None]
    with pytest.raises(NotOwner):
        of.lookup([key(names_in(1)[0])])


def test_an_epoch_that_is_not_reached_is_refused_with_the_one_that_is() -> None:
    """K14."""
    of = table()
    publish(of, 3, set(range(KEY_GROUPS)))
    assert of.lookup([key("a")], ReadBounds(min_epoch=3)).sources[0].epoch == 3
    with pytest.raises(EpochNotReached, match="epoch 3"):
        of.lookup([key("a")], ReadBounds(min_epoch=4))


def test_a_key_group_that_is_ahead_answers_for_itself() -> None:
    """After a crash between transaction and completion, one key group holds an epoch that others may not hold yet."""
    of = table()
    ahead, behind = names_in(0)[0], names_in(1)[0]
    positions = {0: Position(9, 5, 2, 0, 5000, 50), 1: Position(3, 4, 1, 0, 4000)}
    publish(of, 4, set(range(KEY_GROUPS)), positions)
    answers = of.lookup([key(ahead), key(behind), key(ahead)])
    epochs = [answers.sources[index].epoch for index in answers.source_of]
    assert epochs == [5, 4, 5]
    assert (answers.sources[0].commit_time_ms, answers.sources[0].watermark_ms) == (5000, 50)
    with pytest.raises(EpochNotReached):
        of.lookup([key(ahead), key(behind)], ReadBounds(min_epoch=5))
    assert of.lookup([key(ahead)], ReadBounds(min_epoch=5)).sources[0].epoch == 5
    publish(of, 5, set(range(KEY_GROUPS)), positions)
    assert not of.lookup([key(ahead), key(behind)]).source_of


def test_an_owner_whose_lease_has_passed_says_so_and_answers() -> None:
    clock = ManualClock()
    of = table(clock=clock)
    publish(of, 1, set(range(KEY_GROUPS)))
    assert not of.lookup([key("a")]).sources[0].unconfirmed
    clock.advance(3.5)
    assert of.lookup([key("a")]).sources[0].unconfirmed


def test_a_wall_clock_that_jumps_changes_no_lease() -> None:
    clock = ManualClock()
    of = table(clock=clock)
    publish(of, 1, set(range(KEY_GROUPS)))
    for seconds in (86_400, -172_800):
        clock.jump(seconds)
        assert not of.lookup([key("a")]).sources[0].unconfirmed


@pytest.mark.parametrize("bad", [b"", b"\0\0", KEY_GROUPS.to_bytes(2, "big") + b"x"])
def test_bytes_that_are_no_storage_key_are_refused(bad: bytes) -> None:
    of = table()
    publish(of, 1, set(range(KEY_GROUPS)))
    with pytest.raises(MalformedRequest):
        of.lookup([key("a"), bad])


def test_a_key_that_can_not_be_there_is_refused() -> None:
    of = table()
    publish(of, 1, set(range(KEY_GROUPS)))
    with pytest.raises(KeyTooLong, match="511"):
        of.lookup([key("x" * 600)])
