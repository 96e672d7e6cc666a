"""Whatever servers come, go, drain and catch up in whatever order: one owner of each key group, in the end evenly."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.protocol.control import AssignmentRecord, GrantRecord
from keyhole.protocol.grant_names import transactional_id
from keyhole.protocol.membership import (
    Held,
    Member,
    Membership,
    Owners,
    Sighting,
    followed_by,
    groups_of,
    owners_of,
    standbys_of,
    takers,
)
from keyhole.protocol.plan import AssignmentChange, Needs, plan_change
from keyhole.protocol.receipts import Target
from tests.support.examples import examples
from tests.support.states import target

NEEDS = {"counts": Needs(8, standbys=1), "others": Needs(3)}
EVERYTHING = {(state, group) for state, need in NEEDS.items() for group in range(need.key_groups)}
SERVERS = "abcd"

servers = st.sampled_from(SERVERS)


class Step(enum.Enum):
    """Where a change can break off."""

    GRANTS_RECORDED = enum.auto()
    GRANTS_TAKEN = enum.auto()
    RELEASED = enum.auto()
    ONE_ASSIGNED = enum.auto()


@dataclass(frozen=True)
class Observation:
    """What the coordinator sees: who answers, whose grant is spent, which copies are warm, whether it is a new run.

    Attributes:
        live: Incarnations by server.
        draining: Those that were asked to, and go on.
        ending: Those that drain because they are about to end.
        warm: Whose copies have caught up.
        placed: By key group of `counts`, the server that it was moved to.
        breaks_off_after: None: the change comes to its end.
    """

    live: dict[str, int]
    draining: frozenset[str] = frozenset()
    ending: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()
    warm: frozenset[str] = frozenset()
    placed: dict[int, str] = field(default_factory=dict)
    new_run: bool = False
    breaks_off_after: Step | None = None

    def seen(self) -> dict[str, Sighting]:
        return {
            name: Sighting(
                target(name, str(incarnation)),
                draining=name in self.draining | self.ending,
                ending=name in self.ending,
            )
            for name, incarnation in self.live.items()
        }


moves = st.dictionaries(st.integers(0, NEEDS["counts"].key_groups), servers, max_size=4)
lives = st.dictionaries(servers, st.integers(1, 3), min_size=1)
observations = st.builds(
    Observation,
    live=lives,
    draining=st.frozensets(servers, max_size=2),
    ending=st.frozensets(servers, max_size=1),
    broken=st.frozensets(servers, max_size=2),
    warm=st.frozensets(servers),
    placed=moves,
    new_run=st.integers(0, 5).map(lambda n: n == 0),
    breaks_off_after=st.none() | st.sampled_from(Step),
)


@dataclass
class Writer:
    """The holder of a grant that was not fenced: what it believes to own and to follow."""

    server: str
    owned: set[tuple[str, int]] = field(default_factory=set)
    followed: set[tuple[str, int]] = field(default_factory=set)
    version: int = -1


class Plant:
    """What exists outside the coordinator: grants on record, who was fenced, and who believes to own what."""

    def __init__(self) -> None:
        self.membership = Membership({}, AssignmentRecord(0, (), {}))
        self.recorded: dict[str, GrantRecord] = {}
        self.ever_granted: set[str] = set()
        self.writers: dict[str, Writer] = {}
        self.assignments: dict[int, AssignmentRecord] = {}
        self.generation = 1

    def new_run(self) -> None:
        """Only what is on record is known to it."""
        self.generation += 1
        self.membership = Membership({}, self.membership.assignment)

    def observe(self, seen: Observation) -> AssignmentChange | None:
        """One step of the coordinator's."""
        if seen.new_run:
            self.new_run()
        self.hear(seen.warm)
        broken = seen.broken & self.membership.members.keys()
        change = self.plan(seen.seen(), broken, seen.placed)
        if change is not None:
            self.check_change(change, seen.seen(), broken)
            self.execute(change, seen.breaks_off_after)
        return change

    def hear(self, warm: frozenset[str]) -> None:
        """What these servers follow has caught up."""
        followed: dict[str, Held] = {}
        for name in warm & self.membership.members.keys():
            followed[name] = {state: followed_by(self.membership.assignment, name, state) for state in NEEDS}
        self.membership = self.membership.heard(followed)

    def plan(
        self, seen: dict[str, Sighting], broken: frozenset[str] = frozenset(), placed: Owners = MappingProxyType({})
    ) -> AssignmentChange | None:
        grants = list(self.recorded.values())
        return plan_change(self.membership, grants, seen, broken, NEEDS, self.generation, {"counts": placed})

    def check_change(self, change: AssignmentChange, seen: dict[str, Sighting], broken: frozenset[str]) -> None:
        before = self.membership
        kept = {
            name: member.grant
            for name, member in before.members.items()
            if name not in broken and name in seen and seen[name].target == member.target
        }
        assert not set(kept.values()) & set(change.fence), "a grant that goes on was fenced"
        assert set(change.fence) == self.recorded.keys() - set(kept.values()), "a grant was left open"
        assert {opened.server for opened in change.open} == set(takers(seen)) - kept.keys()
        if change.assignment != before.assignment:
            assert change.assignment.version > before.assignment.version, "two assignments under one version"
        self.check_standbys(change.assignment, {*kept, *takers(seen)})
        for state in NEEDS:
            was, now = owners_of(before.assignment, state), owners_of(change.assignment, state)
            for group, owner in now.items():
                if was.get(group) in kept and owner != was[group]:
                    assert group in before.warm[owner][state], "a planned move to a cold copy"
                    assert group in change.release[was[group]][state], "moved without asking its owner"
                    assert not change.fence
                    assert not change.open

    def check_standbys(self, assignment: AssignmentRecord, present: set[str]) -> None:
        for state in NEEDS:
            owners = owners_of(assignment, state)
            for group, of in standbys_of(assignment, state).items():
                assert owners[group] not in of
                assert len(set(of)) == len(of)
                assert assignment.version == 0 or set(of) <= present or assignment == self.membership.assignment

    def execute(self, change: AssignmentChange, breaks_off_after: Step | None) -> None:
        """In the order of Reconciler._execute, and with what it remembers where it breaks off."""
        for grant in change.fence:
            self.writers.pop(grant, None)
        fenced = set(change.fence)
        opened = {of.server: Member(of, self.grant(of)) for of in change.open}
        self.recorded = {name: grant for name, grant in self.recorded.items() if name not in fenced}
        self.recorded |= {
            member.grant: GrantRecord(name, member.target.incarnation, self.generation, member.grant)
            for name, member in opened.items()
        }
        self.membership = self.membership.begun(fenced)
        if breaks_off_after is Step.GRANTS_RECORDED:
            return
        self.writers |= {member.grant: Writer(name) for name, member in opened.items()}
        if breaks_off_after is Step.GRANTS_TAKEN:
            return
        if change.release:
            self.membership = replace(self.membership, released=True)
        for name, lost in change.release.items():
            writer = self.writers[self.membership.members[name].grant]
            writer.owned -= {(state, group) for state, groups in lost.items() for group in groups}
        if breaks_off_after is Step.RELEASED:
            return
        known = self.assignments.setdefault(change.assignment.version, change.assignment)
        assert known == change.assignment, "two assignments under one version"
        self.membership = self.membership.assigned(opened, change.assignment, change.goal)
        for number, (name, member) in enumerate(self.membership.members.items()):
            if breaks_off_after is Step.ONE_ASSIGNED and number == 1:
                return
            self.assign(self.writers[member.grant], name, change.assignment)
            self.check_one_writer_each()
        self.membership = replace(self.membership, settled=True)

    def assign(self, writer: Writer, name: str, assignment: AssignmentRecord) -> None:
        # A server takes a version that it has seen for done.
        if writer.version != assignment.version:
            writer.version = assignment.version
            writer.owned = {(state, group) for state in NEEDS for group in groups_of(assignment, name, state)}
            writer.followed = {(state, group) for state in NEEDS for group in followed_by(assignment, name, state)}

    def grant(self, of: Target) -> str:
        name = transactional_id("app", "main", of, self.generation, len(self.ever_granted))
        assert name not in self.ever_granted
        self.ever_granted.add(name)
        return name

    def check_one_writer_each(self) -> None:
        held = Counter(group for writer in self.writers.values() for group in writer.owned)
        assert all(count == 1 for count in held.values()), "two servers may write one key group"

    def settle(self, last: Observation) -> int:
        """Nothing more happens but that copies get warm. Returns the number of changes it took."""
        everybody = replace(last, warm=frozenset(last.live))
        changes = 0
        while self.observe(everybody) is not None:
            changes += 1
            assert changes < 12, "it does not come to an end"
        return changes

    @staticmethod
    def placed(state: str, group: int, server: str, able: tuple[str, ...]) -> bool:
        return state == "counts" and group < NEEDS[state].key_groups and server in able

    def check_settled(self, last: Observation) -> None:
        members = self.membership.members
        seen = last.seen()
        able = takers(seen)
        assert set(able) <= members.keys() <= seen.keys()
        assert all(seen[name].target == member.target for name, member in members.items())
        grants = {member.grant for member in members.values()}
        assert self.writers.keys() == grants == self.recorded.keys(), "a grant that is no member's is still good"
        owned = {writer.server: writer.owned for writer in self.writers.values()}
        assert set().union(*owned.values()) == EVERYTHING
        assert all(not owned[name] for name in owned.keys() - set(able)), "a draining server owns something"
        for state, need in NEEDS.items():
            sizes = [sum(1 for held in owned[name] if held[0] == state) for name in able]
            assert sum(sizes) == need.key_groups
            given = Counter(server for group, server in last.placed.items() if self.placed(state, group, server, able))
            # Who has more than another was given all of it.
            assert all(size <= max(min(sizes) + 1, given[name]) for name, size in zip(able, sizes, strict=True)), (
                "not as even as what was placed allows"
            )
        for group, server in last.placed.items():
            if self.placed("counts", group, server, able):
                assert ("counts", group) in owned[server], "it is not where it was moved to"
        # One that drains may go on following while there is no other.
        follows = Counter(part for writer in self.writers.values() if writer.server in able for part in writer.followed)
        for state, group in EVERYTHING:
            assert follows[state, group] == min(NEEDS[state].standbys, len(able) - 1), "copies too many, or too few"


finals = st.builds(
    Observation,
    live=lives,
    draining=st.frozensets(servers, max_size=2),
    ending=st.frozensets(servers, max_size=1),
    placed=moves,
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(observations, max_size=12), finals)
def test_every_key_group_ends_with_one_live_owner_and_no_grant_survives_that_is_no_members(
    seen: list[Observation], last: Observation
) -> None:
    plant = Plant()
    for observation in seen:
        plant.observe(observation)
        plant.check_one_writer_each()
    plant.settle(last)
    plant.check_settled(last)
    assert plant.plan(last.seen(), placed=last.placed) is None, "there is nothing left to do, and something is planned"


@settings(max_examples=examples(100), deadline=None)
@given(finals, finals)
def test_planned_changes_move_only_what_balance_and_draining_ask_for(before: Observation, after: Observation) -> None:
    """From one settled fleet to another in which all of the first still answer."""
    plant = Plant()
    plant.settle(before)
    after = Observation({**after.live, **before.live}, after.draining, after.ending, placed=before.placed)
    owners = {state: owners_of(plant.membership.assignment, state) for state in NEEDS}
    plant.settle(after)
    able = takers(after.seen())
    for state, need in NEEDS.items():
        now = owners_of(plant.membership.assignment, state)
        moved = sum(owners[state][group] != owner for group, owner in now.items())
        held = sorted((sum(owner == name for owner in owners[state].values()) for name in able), reverse=True)
        share, larger = divmod(need.key_groups, len(able))
        must = need.key_groups - sum(min(count, share + (rank < larger)) for rank, count in enumerate(held))
        assert moved <= must + _drained_elsewhere(owners[state], able)


def _drained_elsewhere(owners: dict[int, str], able: tuple[str, ...]) -> int:
    """What a draining server gives to whoever is warm may have to move once more to be even."""
    return sum(owner not in able for owner in owners.values())


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(observations, max_size=5), lives)
def test_a_plan_depends_on_nothing_but_what_is_observed(seen: list[Observation], last: dict[str, int]) -> None:
    plant = Plant()
    for observation in seen:
        plant.observe(observation)
    live = Observation(last).seen()
    assert plant.plan(live) == plant.plan(dict(reversed(live.items())))
