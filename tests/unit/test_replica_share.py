"""What a replica passes on to another one is followed a while longer."""

from __future__ import annotations

from keyhole.changelog.base import Partition
from services.state_server.replica.member import Lingering

A, B = Partition("counts", 0), Partition("counts", 1)


def test_a_new_share_is_followed_at_once() -> None:
    assert Lingering(60).update(frozenset({A, B}), 0) == {A, B}


def test_what_has_left_the_share_lingers_and_then_goes() -> None:
    lingering = Lingering(60)
    lingering.update(frozenset({A, B}), 0)
    assert lingering.update(frozenset({A}), 10) == {A, B}
    assert lingering.update(frozenset({A}), 69) == {A, B}
    assert lingering.update(frozenset({A}), 70) == {A}


def test_what_comes_back_begins_to_linger_anew_when_it_leaves_again() -> None:
    lingering = Lingering(60)
    lingering.update(frozenset({A}), 0)
    lingering.update(frozenset(), 10)
    lingering.update(frozenset({A}), 50)
    lingering.update(frozenset(), 60)
    assert lingering.update(frozenset(), 110) == {A}
    assert lingering.update(frozenset(), 120) == frozenset()
