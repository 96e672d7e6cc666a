"""Who may write, who owns what and who follows it, as frozen values. Pure. plan.py says what comes next."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from keyhole.protocol.control import AssignmentRecord
from keyhole.protocol.receipts import Target

Owners = Mapping[int, str]
Standbys = Mapping[int, tuple[str, ...]]
Held = Mapping[str, frozenset[int]]
"""Key groups by state."""


class Placement(NamedTuple):
    """Key groups of a state that are to be owned by a server, because somebody has moved them there."""

    application: str
    state: str
    key_groups: frozenset[int]


@dataclass(frozen=True)
class Sighting:
    """A server that answers now.

    Attributes:
        draining: Its key groups are to go to others.
        ending: It drains because it is about to end. Who drains else was asked to, goes on, and has all the time.
        replica: It follows by itself, and is never given anything.
        placements: What is to be there, of any application.
    """

    target: Target
    draining: bool = False
    ending: bool = False
    replica: bool = False
    placements: tuple[Placement, ...] = ()

    @property
    def takes_runs(self) -> bool:
        """Whether it lets a run begin that it has not heard of, and could be given key groups: if need be, draining."""
        return not (self.ending or self.replica)


def takers(seen: Mapping[str, Sighting]) -> tuple[str, ...]:
    """Who can be given key groups: those that don't drain; where all do, those that go on; else all, to their end."""
    servers = sorted(name for name, sighting in seen.items() if not sighting.replica)
    staying = tuple(name for name in servers if not seen[name].draining)
    return staying or tuple(name for name in servers if not seen[name].ending) or tuple(servers)


def takers_of_runs(seen: Mapping[str, Sighting]) -> list[Target]:
    """Whom a run can begin with: those that can be given key groups, and are not about to end."""
    return [seen[name].target for name in takers(seen) if seen[name].takes_runs]


def placed_by(seen: Mapping[str, Sighting], application: str) -> dict[str, dict[int, str]]:
    """By state of an application, the key groups that were moved to a server that can be given some, and to which.

    Of two servers that are to have the same one it is always the same, whoever looks.
    """
    found: dict[str, dict[int, str]] = {}
    for name in takers(seen):
        for placement in seen[name].placements:
            if placement.application == application:
                of_state = found.setdefault(placement.state, {})
                for group in placement.key_groups:
                    of_state.setdefault(group, name)
    return found


@dataclass(frozen=True)
class Member:
    """A server that has an open grant of this run."""

    target: Target
    grant: str


@dataclass(frozen=True)
class Membership:
    """Who may write now, and what. The assignment's version grows with every change of it.

    Attributes:
        settled: False from a change's first step until its last: servers may own less than the assignment says.
        released: Servers may have given up what the assignment says they own. They take its version for done: another
            one is needed.
        warm: By server, the standby copies that have caught up.
        goal: By state, the owners that planned moves lead to. It stays while no nearer one is as good, so that no copy
            is made in vain.
    """

    members: Mapping[str, Member]
    assignment: AssignmentRecord
    settled: bool = True
    released: bool = False
    warm: Mapping[str, Held] = field(default_factory=dict)
    goal: Mapping[str, Owners] = field(default_factory=dict)

    def begun(self, fenced: Collection[str]) -> Membership:
        """A change has begun: who was fenced is no member any more. Until `assigned`, a failure begins again here."""
        members = {name: member for name, member in self.members.items() if member.grant not in fenced}
        return replace(self, members=members, settled=False)

    def assigned(
        self, opened: Mapping[str, Member], assignment: AssignmentRecord, goal: Mapping[str, Owners]
    ) -> Membership:
        """The assignment is on record, the servers have yet to get it. A failure begins again with this assignment."""
        after = Membership({**self.members, **opened}, assignment, settled=False, goal=goal)
        # A copy that is followed before and after stays as warm as it is.
        return after.heard({name: held for name, held in self.warm.items() if name not in opened})

    def heard(self, warm: Mapping[str, Held]) -> Membership:
        """Servers have reported which of their copies are warm; of the others it is known from before."""
        followed = all_followed(self.assignment)
        reported = {
            name: {state: groups & followed.get((name, state), frozenset()) for state, groups in held.items()}
            for name, held in warm.items()
            if name in self.members
        }
        known = {**self.warm, **reported}
        return self if known == self.warm else replace(self, warm=known)


def owners_of(assignment: AssignmentRecord, state: str) -> dict[int, str]:
    """The owner of each key group of a state."""
    return {group: assignment.servers[index] for group, index in enumerate(assignment.owners.get(state, ()))}


def owning(assignment: AssignmentRecord) -> frozenset[str]:
    """The servers that own a key group of any state."""
    return frozenset(assignment.servers[index] for owners in assignment.owners.values() for index in owners)


def standbys_of(assignment: AssignmentRecord, state: str) -> dict[int, tuple[str, ...]]:
    """The standbys of each key group of a state, in the order in which they are kept."""
    return {
        group: tuple(assignment.servers[index] for index in of)
        for group, of in enumerate(assignment.standbys.get(state, ()))
    }


def groups_of(assignment: AssignmentRecord, server: str, state: str) -> tuple[int, ...]:
    """The key groups of a state that a server owns. Of many servers: `all_owned`."""
    return all_owned(assignment, (state,)).get((server, state), ())


def followed_by(assignment: AssignmentRecord, server: str, state: str) -> frozenset[int]:
    """The key groups of a state of which a server is a standby. Of many servers: `all_followed`."""
    return all_followed(assignment, (state,)).get((server, state), frozenset())


def all_owned(
    assignment: AssignmentRecord, states: Iterable[str] | None = None
) -> dict[tuple[str, str], tuple[int, ...]]:
    """By server and state the key groups that it owns, in order; found by one look at each key group.

    Args:
        states: None: all of them.
    """
    found: dict[tuple[str, str], list[int]] = {}
    for state in assignment.owners if states is None else states:
        for group, index in enumerate(assignment.owners.get(state, ())):
            found.setdefault((assignment.servers[index], state), []).append(group)
    return {of: tuple(groups) for of, groups in found.items()}


def all_followed(
    assignment: AssignmentRecord, states: Iterable[str] | None = None
) -> dict[tuple[str, str], frozenset[int]]:
    """As `all_owned`, the key groups of which it is a standby."""
    found: dict[tuple[str, str], list[int]] = {}
    for state in assignment.standbys if states is None else states:
        for group, of in enumerate(assignment.standbys.get(state, ())):
            for index in of:
                found.setdefault((assignment.servers[index], state), []).append(group)
    return {of: frozenset(groups) for of, groups in found.items()}


def assignment_of(
    version: int, generation: int, owners: Mapping[str, Owners], standbys: Mapping[str, Standbys]
) -> AssignmentRecord:
    """The record. Every key group of every state has an owner."""
    named = {server for of in owners.values() for server in of.values()}
    named |= {server for by_group in standbys.values() for of in by_group.values() for server in of}
    servers = tuple(sorted(named))
    index = {server: number for number, server in enumerate(servers)}
    return AssignmentRecord(
        version,
        servers,
        {state: tuple(index[of[group]] for group in range(len(of))) for state, of in owners.items()},
        {
            state: tuple(tuple(index[server] for server in by_group[group]) for group in range(len(by_group)))
            for state, by_group in standbys.items()
            if any(by_group.values())
        },
        generation,
    )
