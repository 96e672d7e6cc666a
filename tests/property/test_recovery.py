"""Whatever is observed in whatever order, plan_recovery leads to one live owner of each key group."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.coordinator.control import AssignmentRecord, GrantRecord
from keyhole.coordinator.decisions import Member, Membership, Recovery, groups_of, plan_recovery, transactional_id
from keyhole.coordinator.receipts import Target
from tests.support.states import target

KEY_GROUPS = {"counts": 8, "others": 3}
SERVERS = "abcd"

servers = st.sampled_from(SERVERS)


class Step(enum.Enum):
    """Where a recovery can break off."""

    GRANTS_RECORDED = enum.auto()
    GRANTS_TAKEN = enum.auto()
    RELEASED = enum.auto()
    ONE_ASSIGNED = enum.auto()


@dataclass(frozen=True)
class Observation:
    """What the coordinator sees: who is alive (in which incarnation), whose grant is spent, whether it is a new run."""

    live: dict[str, int]
    broken: frozenset[str]
    new_run: bool
    # None: the recovery comes to its end.
    breaks_off_after: Step | None


observations = st.builds(
    Observation,
    live=st.dictionaries(servers, st.integers(1, 3), min_size=1),
    broken=st.frozensets(servers),
    new_run=st.integers(0, 5).map(lambda n: n == 0),
    breaks_off_after=st.none() | st.sampled_from(Step),
)


class Plant:
    """What exists outside the coordinator: grants on record, who was fenced, and who believes to own what."""

    def __init__(self) -> None:
        self.membership = Membership({}, AssignmentRecord(0, (), {}))
        self.recorded: dict[str, GrantRecord] = {}
        self.ever_granted: set[str] = set()
        # By grant that was not fenced: the key groups that its holder may write.
        self.writers: dict[str, set[tuple[str, int]]] = {}
        self.versions: dict[str, int] = {}
        self.generation = 1

    def new_run(self) -> None:
        """Only what is on record is known to it."""
        self.generation += 1
        self.membership = Membership({}, self.membership.assignment)

    def observe(self, seen: Observation) -> None:
        if seen.new_run:
            self.new_run()
        live = {name: target(name, str(incarnation)) for name, incarnation in seen.live.items()}
        broken = seen.broken & self.membership.members.keys()
        plan = self.plan(live, broken)
        if plan is not None:
            self.check_plan(plan, live, broken)
            self.execute(plan, seen.breaks_off_after)

    def plan(self, live: dict[str, Target], broken: frozenset[str] = frozenset()) -> Recovery | None:
        return plan_recovery(self.membership, list(self.recorded.values()), live, broken, KEY_GROUPS)

    def check_plan(self, plan: Recovery, live: dict[str, Target], broken: frozenset[str]) -> None:
        kept = {
            member.grant
            for name, member in self.membership.members.items()
            if name not in broken and live.get(name) == member.target
        }
        assert not kept & set(plan.fence), "a grant that goes on was fenced"
        assert set(plan.fence) == self.recorded.keys() - kept, "a grant was left open"
        assert {opened.server for opened in plan.open} == live.keys() - {self.recorded[grant].server for grant in kept}
        if plan.assignment != self.membership.assignment:
            assert plan.assignment.version > self.membership.assignment.version, "two assignments under one version"

    def execute(self, plan: Recovery, breaks_off_after: Step | None) -> None:
        """In the order of QueryRun._execute, and with what it remembers where it breaks off."""
        for grant in plan.fence:
            self.writers.pop(grant, None)
        fenced = set(plan.fence)
        opened = {of.server: Member(of, self.grant(of)) for of in plan.open}
        self.recorded = {name: grant for name, grant in self.recorded.items() if name not in fenced}
        self.recorded |= {
            member.grant: GrantRecord(name, member.target.incarnation, self.generation, member.grant)
            for name, member in opened.items()
        }
        kept = {name: member for name, member in self.membership.members.items() if member.grant not in fenced}
        self.membership = Membership(kept, self.membership.assignment, settled=False)
        if breaks_off_after is Step.GRANTS_RECORDED:
            return
        self.writers |= {member.grant: set() for member in opened.values()}
        if breaks_off_after is Step.GRANTS_TAKEN:
            return
        for name, lost in plan.release.items():
            self.writers[kept[name].grant] -= {(state, group) for state, groups in lost.items() for group in groups}
        if breaks_off_after is Step.RELEASED:
            return
        members = kept | opened
        self.membership = Membership(members, plan.assignment, settled=False)
        for number, (name, member) in enumerate(members.items()):
            if breaks_off_after is Step.ONE_ASSIGNED and number == 1:
                return
            # A server takes a version that it has seen for done.
            if self.versions.get(member.grant) != plan.assignment.version:
                self.versions[member.grant] = plan.assignment.version
                mine = {(state, group) for state in KEY_GROUPS for group in groups_of(plan.assignment, name, state)}
                self.writers[member.grant] = mine
            self.check_one_writer_each()
        self.membership = Membership(members, plan.assignment)

    def grant(self, of: Target) -> str:
        name = transactional_id("app", "main", of, self.generation, len(self.ever_granted))
        assert name not in self.ever_granted
        self.ever_granted.add(name)
        return name

    def check_one_writer_each(self) -> None:
        held = Counter(group for groups in self.writers.values() for group in groups)
        assert all(count == 1 for count in held.values()), "two servers may write one key group"

    def check_settled(self, live: dict[str, Target]) -> None:
        members = self.membership.members
        assert {name: member.target for name, member in members.items()} == live
        grants = {member.grant for member in members.values()}
        assert self.writers.keys() == grants == self.recorded.keys(), "a grant that is no member's is still good"
        everything = {(state, group) for state, groups in KEY_GROUPS.items() for group in range(groups)}
        assert set().union(*self.writers.values()) == everything
        for state, groups in KEY_GROUPS.items():
            sizes = [sum(1 for held in groups_of if held[0] == state) for groups_of in self.writers.values()]
            assert sum(sizes) == groups
            assert max(sizes) - min(sizes) <= 1


@settings(max_examples=200, deadline=None)
@given(st.lists(observations, max_size=12), st.dictionaries(servers, st.integers(1, 3), min_size=1))
def test_every_key_group_ends_with_one_live_owner_and_no_grant_survives_that_is_no_members(
    seen: list[Observation], last: dict[str, int]
) -> None:
    plant = Plant()
    for observation in seen:
        plant.observe(observation)
        plant.check_one_writer_each()
    plant.observe(Observation(last, frozenset(), new_run=False, breaks_off_after=None))
    live = {name: target(name, str(incarnation)) for name, incarnation in last.items()}
    plant.check_settled(live)
    assert plant.plan(live) is None, "there is nothing left to do, and something is planned"


@settings(max_examples=100, deadline=None)
@given(st.lists(observations, max_size=5), st.dictionaries(servers, st.integers(1, 3), min_size=1))
def test_a_plan_depends_on_nothing_but_what_is_observed(seen: list[Observation], last: dict[str, int]) -> None:
    plant = Plant()
    for observation in seen:
        plant.observe(observation)
    live = {name: target(name, str(incarnation)) for name, incarnation in last.items()}
    shuffled = dict(reversed(live.items()))
    assert plant.plan(live) == plant.plan(shuffled)
