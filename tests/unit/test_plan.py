"""What comes next when servers come, go, drain and catch up, case by case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from keyhole.protocol.control import AssignmentRecord, GrantRecord
from keyhole.protocol.membership import (
    Member,
    Membership,
    Placement,
    Sighting,
    assignment_of,
    followed_by,
    groups_of,
    placed_by,
    standbys_of,
    takers,
    takers_of_runs,
)
from keyhole.protocol.plan import AssignmentChange, Needs, plan_change
from tests.support.states import target


def grant(server: str, incarnation: str = "1") -> GrantRecord:
    return GrantRecord(server, incarnation, 1, f"grant-{server}-{incarnation}")


@dataclass
class Case:
    """A settled membership of one state, and what is seen; `plan` says what comes next.

    Args:
        owners: By key group: "aabb".
        standbys: By key group: "b" or "bc".
        seen: The servers that answer.
    """

    owners: str
    seen: str
    standbys: Iterable[str] = ()
    count: int = 0
    warm: Mapping[str, Iterable[int]] = field(default_factory=dict)
    draining: str = ""
    replicas: str = ""
    restarted: str = ""
    broken: str = ""
    placed: Mapping[int, str] = field(default_factory=dict)
    settled: bool = True
    released: bool = False

    def __post_init__(self) -> None:
        standbys = [tuple(of) for of in self.standbys] or [()] * len(self.owners)
        assignment = assignment_of(
            1, 1, {"counts": dict(enumerate(self.owners))}, {"counts": dict(enumerate(standbys))}
        )
        servers = {*self.owners, *(name for of in standbys for name in of)}
        self.membership = Membership(
            {name: Member(target(name), grant(name).grant) for name in sorted(servers)},
            assignment,
            self.settled,
            self.released,
            {name: {"counts": frozenset(groups)} for name, groups in self.warm.items()},
        )
        self.grants = [grant(name) for name in sorted(servers)]

    def plan(self) -> AssignmentChange | None:
        seen = {
            name: Sighting(
                target(name, "2" if name in self.restarted else "1"),
                draining=name in self.draining,
                replica=name in self.replicas,
            )
            for name in self.seen
        }
        needs = {"counts": Needs(len(self.owners), self.count)}
        return plan_change(
            self.membership, self.grants, seen, frozenset(self.broken), needs, 1, {"counts": self.placed}
        )

    def planned(self) -> AssignmentChange:
        change = self.plan()
        assert change is not None
        return change


def owners(assignment: AssignmentRecord) -> str:
    return "".join(assignment.servers[index] for index in assignment.owners["counts"])


def standbys(assignment: AssignmentRecord) -> list[str]:
    found = standbys_of(assignment, "counts")
    return ["".join(found.get(group, ())) for group in range(len(assignment.owners["counts"]))]


class TestStart:
    """A run begins."""

    def test_every_grant_on_record_is_fenced_and_everyone_keeps_what_it_had(self) -> None:
        case = Case("axax", seen="ab")
        case.membership = Membership({}, case.membership.assignment)
        change = case.planned()
        assert change.fence == ("grant-a-1", "grant-x-1")
        assert change.open == (target("a"), target("b"))
        assert owners(change.assignment) == "abab"
        assert (change.assignment.version, change.assignment.generation) == (2, 1)

    def test_where_nobody_owned_anything_the_key_groups_are_dealt_out_at_once(self) -> None:
        case = Case("xxxx", seen="ab")
        case.membership, case.grants = Membership({}, AssignmentRecord(0, (), {})), []
        assert sorted(owners(case.planned().assignment)) == list("aabb")

    def test_a_server_that_followed_a_lost_one_takes_over_from_it(self) -> None:
        case = Case("xxaa", seen="abc", standbys=["c", "b", "c", "b"], count=1)
        case.membership = Membership({}, case.membership.assignment)
        assert owners(case.planned().assignment) == "cbaa"

    def test_standbys_are_named_from_the_first_assignment_on(self) -> None:
        case = Case("xxxx", seen="ab", count=1)
        case.membership, case.grants = Membership({}, AssignmentRecord(0, (), {})), []
        change = case.planned()
        other = {"a": "b", "b": "a"}
        assert standbys(change.assignment) == [other[owner] for owner in owners(change.assignment)]


class TestForced:
    """A server was lost."""

    def test_nothing_to_do_is_none(self) -> None:
        assert Case("aabb", seen="ab").plan() is None
        assert Case("aabb", seen="ab", standbys="bbaa", count=1, warm={"a": [2, 3]}).plan() is None

    def test_it_is_fenced_and_the_others_keep_what_they_have(self) -> None:
        change = Case("aabb", seen="a").planned()
        assert (change.fence, change.open, change.release) == (("grant-b-1",), (), {})
        assert owners(change.assignment) == "aaaa"

    def test_its_warm_standbys_come_first_whatever_they_own_already(self) -> None:
        case = Case("aabbcc", seen="bc", standbys=["b", "b", "c", "c", "b", "b"], count=1, warm={"b": [0, 1]})
        change = case.planned()
        assert owners(change.assignment) == "bbbbcc"
        assert change.release == {}
        assert standbys(change.assignment) == ["c", "c", "c", "c", "b", "b"]

    def test_the_warm_standby_that_owns_least_takes_over(self) -> None:
        warm = {"b": [0], "c": [0]}
        change = Case("abbc", seen="bc", standbys=["bc", "", "", ""], count=2, warm=warm).planned()
        assert owners(change.assignment) == "cbbc"

    def test_a_warm_standby_comes_before_the_owner_that_was_restarted(self) -> None:
        case = Case("ab", seen="ab", standbys="ba", count=1, warm={"b": [0], "a": [1]}, restarted="a")
        change = case.planned()
        assert (change.fence, change.open) == (("grant-a-1",), (target("a", "2"),))
        assert owners(change.assignment) == "bb"
        assert standbys(change.assignment) == ["a", "a"], "it has what it had written"

    def test_a_restarted_owner_comes_before_a_cold_standby(self) -> None:
        assert owners(Case("ab", seen="ab", standbys="ba", count=1, restarted="a").planned().assignment) == "ab"

    def test_what_a_restarted_server_had_said_of_its_copies_counts_no_more(self) -> None:
        case = Case("acc", seen="bc", standbys=["bc", "", ""], count=2, warm={"c": [0]}, restarted="c")
        assert owners(case.planned().assignment) == "bcc"

    def test_one_whose_grant_alone_is_broken_gets_another_and_keeps_its_key_groups(self) -> None:
        change = Case("ab", seen="ab", standbys="ba", count=1, warm={"b": [0]}, broken="a").planned()
        assert (change.fence, change.open) == (("grant-a-1",), (target("a"),))
        assert owners(change.assignment) == "ab"

    def test_a_replica_is_given_nothing(self) -> None:
        assert Case("aabb", seen="abr", replicas="r").plan() is None
        change = Case("aabb", seen="ar", replicas="r", count=1).planned()
        assert (owners(change.assignment), change.open) == ("aaaa", ())
        assert change.assignment.standbys == {}

    def test_a_draining_server_is_given_nothing_new(self) -> None:
        change = Case("abc", seen="ab", draining="b").planned()
        assert owners(change.assignment) == "aba"


class TestPlanned:
    """A server comes, or is to go."""

    def test_a_new_server_follows_before_it_owns(self) -> None:
        change = Case("aaaa", seen="ab").planned()
        assert (change.fence, change.open, change.release) == ((), (target("b"),), {})
        assert owners(change.assignment) == "aaaa"
        assert len(followed_by(change.assignment, "b", "counts")) == 2

    def test_what_is_not_warm_does_not_move(self) -> None:
        assert Case("aaaa", seen="ab", standbys=["", "", "b", "b"]).plan() is None

    def test_what_is_warm_is_released_and_goes_to_its_new_owner(self) -> None:
        change = Case("aaaa", seen="ab", standbys=["", "", "b", "b"], warm={"b": [3]}).planned()
        assert change.release == {"a": {"counts": (3,)}}
        assert owners(change.assignment) == "aaab"
        assert standbys(change.assignment) == ["", "", "b", "a"], "the last owner answers until the new one does"

    def test_the_last_owner_is_told_to_forget_once_the_new_one_is_ready(self) -> None:
        change = Case("aabb", seen="ab", standbys=["", "", "", "a"]).planned()
        assert standbys(change.assignment) == ["", "", "", ""]
        assert change.release == {}

    def test_the_copy_that_a_move_needs_is_one_more_than_was_asked_for(self) -> None:
        change = Case("aaabbb", seen="abc", standbys="bbbaaa", count=1).planned()
        assert owners(change.assignment) == "aaabbb"
        extra = [of for of in standbys(change.assignment) if len(of) == 2]
        assert len(extra) >= 1
        assert all("c" in of for of in extra)

    def test_a_standby_that_is_to_go_stays_until_the_one_that_comes_is_warm(self) -> None:
        before = Case("aaaaaa", seen="abc", standbys="bbbbbb", count=1, warm={"b": range(6)})
        moved = [of for of in standbys(before.planned().assignment) if of[0] == "c"]
        assert moved
        assert all("b" in of for of in moved)

    def test_a_draining_server_gives_what_is_warm_elsewhere_away_at_once(self) -> None:
        warm = {"b": [0], "c": [1]}
        change = Case("aabbcc", seen="abc", standbys="bccbbb", count=1, warm=warm, draining="a").planned()
        assert change.release == {"a": {"counts": (0, 1)}}
        assert owners(change.assignment) == "bcbbcc"

    def test_what_a_draining_server_alone_has_is_copied_first(self) -> None:
        change = Case("aabb", seen="ab", draining="a").planned()
        assert (owners(change.assignment), change.release) == ("aabb", {})
        assert standbys(change.assignment) == ["b", "b", "", ""]

    def test_where_all_drain_they_go_on_as_they_are(self) -> None:
        assert Case("aabb", seen="ab", draining="ab").plan() is None

    def test_a_drained_server_stays_a_member_until_it_is_gone(self) -> None:
        assert Case("bbbb", seen="ab", draining="a", standbys=["a", "", "", ""]).planned().fence == ()

    def test_nothing_is_planned_before_the_assignment_on_record_is_in_force(self) -> None:
        case = Case("aaaa", seen="ab", standbys=["", "", "b", "b"], warm={"b": [2, 3]}, settled=False)
        assert case.planned().assignment == case.membership.assignment

    def test_what_was_released_in_vain_is_owned_again_under_another_version(self) -> None:
        case = Case("aaaa", seen="ab", standbys=["", "", "b", "b"], settled=False, released=True)
        change = case.planned()
        assert (owners(change.assignment), change.assignment.version) == ("aaaa", 2)

    def test_a_goal_stays_while_no_other_is_nearer(self) -> None:
        """Were it chosen anew after each move, copies would be made in vain."""
        case = Case("a" * 11, seen="abc", standbys=["", "", "", "", "b", "b", "b", "b", "c", "c", "c"], warm={"c": [8]})
        goal = {**dict.fromkeys(range(4), "a"), **dict.fromkeys(range(4, 8), "b"), **dict.fromkeys(range(8, 11), "c")}
        case.membership = replace(case.membership, goal={"counts": goal})
        change = case.planned()
        assert owners(change.assignment) == "a" * 8 + "c" + "aa"
        assert standbys(change.assignment)[4:8] == ["b"] * 4
        assert change.goal["counts"] == goal


def test_a_copy_is_as_warm_after_a_change_as_before_where_it_is_still_followed() -> None:
    case = Case("aaaa", seen="ab", standbys=["", "", "b", "b"], warm={"b": [2, 3]})
    after = assignment_of(2, 1, {"counts": dict(enumerate("aaaa"))}, {"counts": {0: (), 1: (), 2: ("b",), 3: ()}})
    membership = case.membership.begun(()).assigned({}, after, {})
    assert membership.warm == {"b": {"counts": frozenset({2})}}
    assert membership.heard({"b": {"counts": frozenset({2, 3})}, "x": {}}) is membership


def test_who_can_be_given_key_groups() -> None:
    seen = {
        "a": Sighting(target("a")),
        "b": Sighting(target("b"), draining=True),
        "e": Sighting(target("e"), draining=True, ending=True),
        "r": Sighting(target("r"), replica=True),
    }
    assert takers(seen) == ("a",)
    assert takers({name: seen[name] for name in "ber"}) == ("b",)
    assert takers({name: seen[name] for name in "er"}) == ("e",)
    assert takers({name: seen[name] for name in "br"}) == ("b",)
    assert takers({"r": seen["r"]}) == ()


def test_whom_a_run_can_begin_with() -> None:
    seen = {
        "b": Sighting(target("b"), draining=True),
        "e": Sighting(target("e"), draining=True, ending=True),
        "r": Sighting(target("r"), replica=True),
    }
    assert takers_of_runs(seen) == [target("b")]
    assert takers_of_runs({name: seen[name] for name in "er"}) == []
    assert takers_of_runs({**seen, "a": Sighting(target("a"))}) == [target("a")]


def test_groups_by_server_are_read_from_the_record() -> None:
    record = assignment_of(1, 1, {"counts": {0: "b", 1: "a"}}, {"counts": {0: ("a",), 1: ()}})
    assert groups_of(record, "b", "counts") == (0,)
    assert followed_by(record, "a", "counts") == {0}
    assert groups_of(record, "b", "other") == ()


class TestMoved:
    """Somebody has moved key groups to a server."""

    def test_it_follows_first_and_owns_them_once_its_copy_is_warm(self) -> None:
        change = Case("aabb", seen="ab", placed={0: "b"}).planned()
        assert (owners(change.assignment), standbys(change.assignment)) == ("aabb", ["b", "", "", "a"])
        assert change.release == {}
        warm = Case(
            "aabb", seen="ab", standbys=["b", "", "", "a"], warm={"b": [0], "a": [3]}, placed={0: "b"}
        ).planned()
        assert owners(warm.assignment) == "baba"
        assert warm.release == {"a": {"counts": (0,)}, "b": {"counts": (3,)}}

    def test_a_move_is_made_before_the_one_that_makes_it_even_can_be(self) -> None:
        case = Case("aabb", seen="ab", standbys=["b", "", "", "a"], warm={"b": [0]}, placed={0: "b"})
        assert owners(case.planned().assignment) == "babb"

    def test_what_is_where_it_was_moved_to_stays_there(self) -> None:
        assert Case("baab", seen="ab", placed={0: "b"}).plan() is None
        assert Case("abbbb", seen="ab", placed=dict.fromkeys(range(1, 5), "b")).plan() is None

    def test_the_others_are_shared_as_evenly_as_that_leaves_them(self) -> None:
        change = Case("aabb", seen="ab", placed={1: "b", 2: "b", 3: "b"}).planned()
        assert standbys(change.assignment) == ["", "b", "", ""]
        assert Case("abbb", seen="ab", placed={1: "b", 2: "b", 3: "b"}).plan() is None
        three = Case("abbbbc", seen="abc", placed={1: "b", 2: "b", 3: "b", 4: "b"})
        assert three.plan() is None

    def test_who_drains_follows_or_is_gone_is_passed_over(self) -> None:
        for server in "brx":
            case = Case("aaaa", seen="abr", draining="b", replicas="r", placed={0: server})
            assert case.plan() is None, server

    def test_a_key_group_that_the_state_does_not_have_is_passed_over(self) -> None:
        assert Case("aabb", seen="ab", placed={4: "a", 70_000: "b"}).plan() is None

    def test_a_server_that_is_lost_is_relieved_of_it_at_once(self) -> None:
        change = Case("bbaa", seen="a", placed={0: "b", 1: "b"}).planned()
        assert owners(change.assignment) == "aaaa"


def test_of_two_servers_that_are_to_have_a_key_group_it_is_always_the_same() -> None:
    def sighting(name: str, *placements: Placement) -> Sighting:
        return Sighting(target(name), placements=placements)

    seen = {
        "b": sighting(
            "b", Placement("shop", "counts", frozenset({1, 2})), Placement("other", "counts", frozenset({3}))
        ),
        "a": sighting("a", Placement("shop", "counts", frozenset({2})), Placement("shop", "sums", frozenset({0}))),
    }
    wanted = {"counts": {1: "b", 2: "a"}, "sums": {0: "a"}}
    # One that can't be given any is in nobody's way.
    drains = replace(seen["a"], draining=True)
    assert placed_by({**seen, "a": drains}, "shop") == {"counts": {1: "b", 2: "b"}}
    assert placed_by(seen, "shop") == placed_by(dict(reversed(seen.items())), "shop") == wanted
