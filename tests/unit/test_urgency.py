"""Who is replaced though a batch is under way."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from keyhole.coordinator.membership import Member, Membership, Sighting, assignment_of
from keyhole.coordinator.receipts import Target
from keyhole.coordinator.urgency import Urgency

# "follower" owns nothing.
OWNERS = ("a", "b")
NAMES = (*OWNERS, "follower")


def target(name: str, incarnation: int = 1) -> Target:
    return Target(name, f"{name}:1", f"{name}-{incarnation}")


MEMBERSHIP = Membership(
    {name: Member(target(name), f"grant-{name}") for name in NAMES},
    assignment_of(1, 1, {"counts": {0: "a", 1: "b"}}, {"counts": {0: ("follower",), 1: ("follower",)}}),
)


def sightings(gone: str = "", draining: str = "", restarted: str = "") -> dict[str, Sighting]:
    return {
        name: Sighting(target(name, 2 if name in restarted.split() else 1), draining=name in draining.split())
        for name in NAMES
        if name not in gone.split()
    }


def beats(*heard: tuple[Collection[str], dict[str, Sighting]], seconds: float = 1.0) -> list[list[str]]:
    urgency = Urgency(drain_patience_seconds=5.0)
    return [
        sorted(urgency.of(MEMBERSHIP, unconfirmed, seen, number * seconds))
        for number, (unconfirmed, seen) in enumerate(heard)
    ]


def test_nobody_where_all_is_well() -> None:
    assert beats(([], sightings()), ([], sightings())) == [[], []]


@pytest.mark.parametrize("seen", [sightings(gone="a"), sightings(restarted="a")], ids=["gone", "restarted"])
def test_an_owner_that_is_lost_at_two_heartbeats_in_a_row(seen: dict[str, Sighting]) -> None:
    assert beats((["a"], seen), (["a"], seen), (["a"], seen)) == [[], ["a"], ["a"]]


def test_not_one_that_was_lost_before_and_is_there_again() -> None:
    lost = ["a"], sightings(gone="a")
    assert beats(lost, ([], sightings()), lost) == [[], [], []]


def test_not_one_that_is_slow_to_confirm_and_still_there() -> None:
    slow = ["a"], sightings()
    assert beats(slow, slow, slow) == [[], [], []]


def test_not_a_server_that_owns_nothing() -> None:
    lost = ["follower"], sightings(gone="follower", draining="follower")
    assert beats(lost, lost, lost) == [[], [], []]


def test_an_owner_that_drains_once_the_batch_has_had_its_time() -> None:
    drains = [], sightings(draining="b")
    assert beats(drains, drains, drains, drains, seconds=2.0) == [[], [], [], ["b"]]


def test_its_time_begins_anew_where_it_was_not_draining_any_more() -> None:
    drains, stays = ([], sightings(draining="b")), ([], sightings())
    assert beats(drains, stays, drains, seconds=6.0) == [[], [], []]


def test_the_lost_and_the_draining_together() -> None:
    both = ["a"], sightings(gone="a", draining="b")
    assert beats(both, both, seconds=6.0) == [[], ["a", "b"]]
