"""Who is replaced though a batch is under way."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from keyhole.protocol.membership import Member, Membership, Sighting, assignment_of
from keyhole.protocol.receipts import Target
from keyhole.protocol.replacement import Patience, Urgency

# "follower" owns nothing.
OWNERS = ("a", "b")
NAMES = (*OWNERS, "follower")


def target(name: str, incarnation: int = 1) -> Target:
    return Target(name, f"{name}:1", f"{name}-{incarnation}")


MEMBERSHIP = Membership(
    {name: Member(target(name), f"grant-{name}") for name in NAMES},
    assignment_of(1, 1, {"counts": {0: "a", 1: "b"}}, {"counts": {0: ("follower",), 1: ("follower",)}}),
)


def sightings(gone: str = "", ending: str = "", drained: str = "", restarted: str = "") -> dict[str, Sighting]:
    return {
        name: Sighting(
            target(name, 2 if name in restarted.split() else 1),
            draining=name in (*ending.split(), *drained.split()),
            ending=name in ending.split(),
        )
        for name in NAMES
        if name not in gone.split()
    }


LOST, ENDING = sightings(gone="a"), sightings(ending="b")


def beats(*heard: tuple[Collection[str], dict[str, Sighting]], seconds: float) -> list[list[str] | None]:
    """What is said at heartbeats that are so many seconds apart."""
    urgency = Urgency(Patience(lost=3.0, ending=5.0))
    said = [urgency.of(MEMBERSHIP, unconfirmed, seen, n * seconds) for n, (unconfirmed, seen) in enumerate(heard)]
    return [names if names is None else sorted(names) for names in said]


def test_nobody_where_all_is_well() -> None:
    assert beats(([], sightings()), ([], sightings()), seconds=10) == [[], []]


@pytest.mark.parametrize("seen", [LOST, sightings(restarted="a")], ids=["gone", "restarted"])
def test_an_owner_that_is_lost_for_as_long_as_a_lease(seen: dict[str, Sighting]) -> None:
    lost = ["a"], seen
    assert beats(lost, lost, lost, lost, lost, seconds=1) == [None, None, None, ["a"], ["a"]]


def test_not_by_one_heartbeat_alone_however_late_the_next_one_is() -> None:
    there, lost = ([], sightings()), (["a"], LOST)
    assert beats(lost, there, lost, there, lost, seconds=10) == [None, [], None, [], None]


def test_not_one_that_is_slow_to_confirm_and_still_there() -> None:
    slow = ["a"], sightings()
    assert beats(slow, slow, slow, seconds=10) == [[], [], []]


def test_not_a_server_that_owns_nothing() -> None:
    lost = ["follower"], sightings(gone="follower")
    assert beats(lost, lost, lost, seconds=10) == [None, [], []]
    ends = [], sightings(ending="follower")
    assert beats(ends, ends, ends, seconds=10) == [[], [], []]


def test_an_owner_that_is_to_end_once_the_batch_has_had_its_time() -> None:
    ends = [], ENDING
    assert beats(ends, ends, ends, ends, seconds=2) == [[], [], [], ["b"]]


def test_not_one_that_drains_and_goes_on_however_long_the_batch_is() -> None:
    drains = [], sightings(drained="b")
    assert beats(drains, drains, drains, seconds=3600) == [[], [], []]


def test_its_time_begins_anew_where_it_was_not_to_end_any_more() -> None:
    ends, stays = ([], ENDING), ([], sightings())
    assert beats(ends, stays, ends, seconds=6) == [[], [], []]


def test_nobody_while_another_may_be_lost_whom_a_change_would_replace_as_well() -> None:
    ends, and_a_is_missed = ([], ENDING), (["a"], sightings(gone="a", ending="b"))
    assert beats(ends, ends, and_a_is_missed, ends, seconds=6) == [[], ["b"], None, ["b"]]
    assert beats(ends, and_a_is_missed, and_a_is_missed, seconds=6) == [[], None, ["a", "b"]]
    and_the_follower = [], sightings(gone="follower", ending="b")
    assert beats(ends, and_the_follower, seconds=6) == [[], None]
