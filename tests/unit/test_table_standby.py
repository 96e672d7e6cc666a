"""A table with two copies: what it owns, what it follows, and what each policy for stale reads gets of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keyhole.errors import EpochNotReached, NotOwner, TooStale, Unconfirmed
from keyhole.model.epoch import START, Position
from keyhole.model.read import ReadBounds, Stale
from keyhole.rpc.convert import descriptor_to_proto
from keyhole.stores.base import Advance, Batch
from keyhole.testing.clock import ManualClock
from keyhole.v1.state_pb2 import ROLE_OWNER, ROLE_STANDBY
from services.state_server.read.holdings import holdings
from services.state_server.read.standing import Standing
from services.state_server.read.table import Table
from tests.support.states import descriptor, key, names_in, standing, table

OWNED, FOLLOWED, OTHER = (key(names_in(group)[0]) for group in (0, 1, 2))


def both(clock: ManualClock | None = None, standby: Standing | None = None) -> Table:
    """Owner of key group 0 at epoch 5, standby of key group 1 at epoch 3."""
    of = table(clock=clock)
    of.publish(of.store.snapshot(), frozenset({0}), standing(5), {})
    of.given.assign(frozenset({0}))
    of.given.follow(frozenset({1}), shown=frozenset({1}))
    of.given.taken_over()
    of.standby.publish(of.store.snapshot(), frozenset({1}), standby or standing(3), {})
    return of


def test_each_key_is_answered_by_the_copy_that_has_it() -> None:
    answers = both().lookup([FOLLOWED, OWNED, FOLLOWED])
    copies = [(answers.sources[i].role, answers.sources[i].epoch) for i in answers.source_of]
    assert copies == [(ROLE_STANDBY, 3), (ROLE_OWNER, 5), (ROLE_STANDBY, 3)]


def test_of_both_copies_the_first_keys_are_read_that_fit_and_no_others() -> None:
    of = both()
    large = bytes(1000)
    advances = {group: Advance(START, Position(1, 1, 1, 0)) for group in (0, 1)}
    of.store.apply(Batch([(OWNED, large), (FOLLOWED, large)], advances=advances))
    of.publish(of.store.snapshot(), frozenset({0}), standing(5), {})
    of.standby.publish(of.store.snapshot(), frozenset({1}), standing(3), {})
    answers = of.lookup([OWNED, FOLLOWED, FOLLOWED, OWNED, OWNED], most_bytes=2500)
    assert (list(answers.rows), answers.source_of) == ([large] * 4, [0, 1, 1, 0])
    assert answers.large
    alone = of.lookup([FOLLOWED, FOLLOWED, OWNED, OWNED], most_bytes=500)
    assert (list(alone.rows), alone.source_of) == ([large], [1])
    assert of.lookup([OWNED] * 3, most_bytes=2000).rows == [large] * 2


def test_a_reader_that_wants_nothing_stale_gets_nothing_of_a_standby() -> None:
    assert both().lookup([OWNED], ReadBounds(stale=Stale.NEVER)).sources[0].role == ROLE_OWNER
    with pytest.raises(NotOwner):
        both().lookup([FOLLOWED], ReadBounds(stale=Stale.NEVER))


def test_an_owner_whose_lease_has_passed_answers_flagged_and_not_at_all_where_nothing_stale_is_wanted() -> None:
    clock = ManualClock()
    of = both(clock)
    clock.advance(3.1)
    assert of.lookup([OWNED]).sources[0].unconfirmed
    with pytest.raises(Unconfirmed, match=r"3\.1 s"):
        of.lookup([OWNED], ReadBounds(stale=Stale.NEVER))


def test_what_neither_copy_has_is_refused_for_the_whole_request() -> None:
    with pytest.raises(NotOwner):
        both().lookup([OWNED, OTHER])


def test_an_owner_is_as_stale_as_its_last_word_from_the_coordinator() -> None:
    clock = ManualClock()
    of = both(clock)
    clock.advance(0.8)
    assert of.lookup([OWNED], ReadBounds(max_staleness_ms=900)).rows
    with pytest.raises(TooStale, match="800 ms"):
        of.lookup([OWNED], ReadBounds(max_staleness_ms=700))


def test_a_standby_is_as_stale_as_what_it_has_reached() -> None:
    clock = ManualClock()
    of = both(clock, replace(standing(3), as_of_ms=clock.now_ms() - 500, heard_monotonic=clock.monotonic()))
    assert of.lookup([FOLLOWED], ReadBounds(max_staleness_ms=600)).sources[0].as_of_ms == clock.now_ms() - 500
    with pytest.raises(TooStale):
        of.lookup([FOLLOWED], ReadBounds(max_staleness_ms=400))


def test_no_jump_of_the_clock_makes_a_standby_look_fresh() -> None:
    clock = ManualClock()
    of = both(clock, replace(standing(3), as_of_ms=clock.now_ms() + 3_600_000, heard_monotonic=clock.monotonic()))
    clock.advance(2.0)
    with pytest.raises(TooStale, match="2000 ms"):
        of.lookup([FOLLOWED], ReadBounds(max_staleness_ms=1000))


def test_a_standby_of_unknown_age_meets_no_bound() -> None:
    with pytest.raises(TooStale, match="unknown age"):
        both().lookup([FOLLOWED], ReadBounds(max_staleness_ms=10_000_000))


def test_min_epoch_counts_for_each_copy() -> None:
    of = both()
    assert of.lookup([OWNED], ReadBounds(min_epoch=5)).rows
    with pytest.raises(EpochNotReached):
        of.lookup([OWNED, FOLLOWED], ReadBounds(min_epoch=4))


def test_it_tells_one_holding_per_role() -> None:
    shown = holdings(both(), descriptor_to_proto(descriptor()), sizes=False)
    roles = [(holding.source.role, list(holding.key_groups)) for holding in shown]
    assert roles == [(ROLE_OWNER, [0]), (ROLE_STANDBY, [1])]


def test_what_is_being_taken_over_is_told_as_followed_for_as_long_as_it_is_answered_so() -> None:
    of = both()
    of.given.assign(frozenset({0, 1}))
    of.given.follow(frozenset(), shown=frozenset({1}))
    of.given.begin_take_over()
    shown = holdings(of, descriptor_to_proto(descriptor()), sizes=False)
    roles = [(holding.source.role, list(holding.key_groups), holding.ready) for holding in shown]
    assert roles == [(ROLE_OWNER, [0], False), (ROLE_STANDBY, [1], True)]


def test_a_view_that_comes_late_changes_nothing() -> None:
    of = both()
    of.publish(of.store.snapshot(), frozenset({0}), standing(7), {}, sequence=7)
    of.publish(of.store.snapshot(), frozenset({0, 2}), standing(6), {}, sequence=6)
    assert of.lookup([OWNED]).sources[0].epoch == 7
    assert of.groups == {0}
