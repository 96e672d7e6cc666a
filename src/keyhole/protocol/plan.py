"""How to get from one membership to the next. Pure. docs/protocol.md has the reasons.

A change is forced where a server was lost: what it owned gets another owner at once, a warm standby if there is one.
All else is planned: a key group moves only to a server whose copy is warm, so that no reader waits for a restore.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from keyhole.protocol.assignment import assign, assign_standbys, take_over
from keyhole.protocol.control import AssignmentRecord, GrantRecord
from keyhole.protocol.membership import (
    Held,
    Membership,
    Owners,
    Sighting,
    Standbys,
    assignment_of,
    owners_of,
    standbys_of,
    takers,
)
from keyhole.protocol.receipts import Target


@dataclass(frozen=True)
class Needs:
    """What a state wants: an owner for each of its key groups, and so many standbys where there are as many servers."""

    key_groups: int
    standbys: int = 0


@dataclass(frozen=True)
class AssignmentChange:
    """How to get from one membership to the next; the steps must be taken in this order.

    Attributes:
        fence: Grants whose holders must be fenced before anyone takes over their key groups.
        open: Servers that need a (new) grant.
        release: By server that stays, the key groups of each state that it must give up first.
        assignment: The next one.
        goal: See Membership.
    """

    fence: tuple[str, ...]
    open: tuple[Target, ...]
    release: Mapping[str, Mapping[str, tuple[int, ...]]]
    assignment: AssignmentRecord
    goal: Mapping[str, Owners]


def plan_change(
    current: Membership,
    old_grants: Sequence[GrantRecord],
    seen: Mapping[str, Sighting],
    broken: frozenset[str],
    needs: Mapping[str, Needs],
    generation: int,
    placed: Mapping[str, Owners] = MappingProxyType({}),
) -> AssignmentChange | None:
    """The next change on the way to a live owner for each key group, evenly, with its standbys; None: nothing to do.

    Taken again and again it comes to an end: at once where no key group needs to move, else when the copies that it
    asks for have become warm.

    Args:
        old_grants: All grants on record, of this run and of earlier ones.
        seen: The servers that answer now, by id; at least one of them is no replica.
        broken: Servers whose grant is no longer any good (a transaction's end was not seen, a lost call).
        needs: By state.
        generation: Of this run.
        placed: By state, who is to own a key group because it was moved there. Who can't be given any is passed over.
    """
    able = takers(seen)
    unchanged = {
        name for name, member in current.members.items() if name in seen and seen[name].target == member.target
    }
    kept = unchanged - broken
    opened = tuple(seen[name].target for name in able if name not in kept)
    kept_grants = {current.members[name].grant for name in kept}
    fence = tuple(grant.grant for grant in old_grants if grant.grant not in kept_grants)
    # Whose grant alone is broken has all that was committed but for the last epoch: nobody is better.
    stay = kept | (unchanged & set(able))
    # What a server reported of its copies before it was restarted counts no more.
    warm = {name: held for name, held in current.warm.items() if name in unchanged}
    states = {name: _StateBefore.of(current, name, needs[name], {*kept, *able}, warm) for name in needs}
    owners = {name: state.taken_over(stay, able) for name, state in states.items()}
    forced = fence or opened or any(owners[name] != state.owners for name, state in states.items())
    if not (forced or current.settled or current.released):
        # Under the same version the servers go on with the restores that they have begun.
        return AssignmentChange((), (), {}, current.assignment, current.goal)
    goal = {name: state.nearest(owners[name], able, placed.get(name, {})) for name, state in states.items()}
    if not forced:
        owners = {name: state.moved(goal[name], able) for name, state in states.items()}
    standbys = {name: state.followers(owners[name], goal[name], able) for name, state in states.items()}
    before = current.assignment
    after = assignment_of(before.version + 1, generation, owners, standbys)
    if not (forced or current.released) and _content(after) == _content(before):
        return None
    return AssignmentChange(fence, opened, _released(kept, states, owners), after, goal)


def _content(assignment: AssignmentRecord) -> object:
    return assignment.servers, assignment.owners, assignment.standbys


def _released(
    kept: Collection[str], states: Mapping[str, _StateBefore], after: Mapping[str, Owners]
) -> dict[str, dict[str, tuple[int, ...]]]:
    release: dict[str, dict[str, list[int]]] = {}
    for name, state in states.items():
        for group, owner in state.owners.items():
            if owner in kept and after[name].get(group) != owner:
                release.setdefault(owner, {}).setdefault(name, []).append(group)
    return {owner: {name: tuple(groups) for name, groups in of.items()} for owner, of in release.items()}


@dataclass(frozen=True)
class _StateBefore:
    """One state before a change.

    Attributes:
        present: Who will be there after it.
        owners: As assigned; may be gone.
        standbys: Those that will be there.
        warm: Those of them that have caught up.
        goal: Of the change before; may be empty.
    """

    needs: Needs
    present: Collection[str]
    owners: Owners
    standbys: Standbys
    warm: Standbys
    goal: Owners

    @classmethod
    def of(
        cls, current: Membership, name: str, needs: Needs, present: Collection[str], seen: Mapping[str, Held]
    ) -> _StateBefore:
        warm = {server: held.get(name, frozenset()) for server, held in seen.items()}
        standbys = {
            group: tuple(server for server in of if server in present)
            for group, of in standbys_of(current.assignment, name).items()
        }
        return cls(
            needs,
            present,
            owners_of(current.assignment, name),
            standbys,
            {g: tuple(server for server in of if g in warm.get(server, ())) for g, of in standbys.items()},
            current.goal.get(name, {}),
        )

    def taken_over(self, stay: Collection[str], able: Sequence[str]) -> Owners:
        """The owners where those that don't stay are replaced, by whoever lacks least."""
        staying = {group: owner for group, owner in self.owners.items() if owner in stay}
        # A server that was restarted has what it had written to its disk.
        restarted = {group: (owner,) for group, owner in self.owners.items()}
        return take_over(staying, able, self.needs.key_groups, [self.warm, restarted, self.standbys])

    def nearest(self, owners: Owners, able: Sequence[str], placed: Owners) -> Owners:
        """The even assignment that planned moves lead to."""
        copies = {group: self.warm[group] or of for group, of in self.standbys.items()}
        best = assign(owners, able, self.needs.key_groups, copies, placed)
        among = frozenset(able)
        as_good = (
            self.goal.keys() == best.keys()
            and among.issuperset(self.goal.values())
            and all(self.goal[group] == best[group] for group in placed.keys() & best.keys() if placed[group] in among)
            and _loads(self.goal) == _loads(best)
            and _moves(owners, self.goal) == _moves(owners, best)
        )
        return self.goal if as_good else best

    def moved(self, goal: Owners, able: Sequence[str]) -> Owners:
        """The owners once everything has moved that can: what stays would have to wait for its new owner's copy."""
        load = Counter(self.owners.values())
        after = dict(self.owners)
        for group, owner in self.owners.items():
            warm = [server for server in self.warm.get(group, ()) if server in able]
            if goal[group] in warm:
                after[group] = goal[group]
            elif warm and owner not in able:
                # A draining server does not wait until all is even.
                after[group] = min(warm, key=lambda server: (load[server], server))
            load.subtract([owner])
            load[after[group]] += 1
        return after

    def followers(self, owners: Owners, goal: Owners, able: Sequence[str]) -> Standbys:
        """Who follows what: the standbys as wanted, and for a while those that a change needs."""
        # The last owner is next in line for a standby's place: it has the data.
        before = {
            group: (*self.standbys.get(group, ()), *self._last_owner(group, owner)) for group, owner in owners.items()
        }
        wanted = assign_standbys(owners, before, able, self.needs.standbys)
        return {
            group: tuple(dict.fromkeys(wanted[group] + self._for_a_while(group, owner, wanted[group], goal[group])))
            for group, owner in owners.items()
        }

    def _for_a_while(self, group: int, owner: str, wanted: tuple[str, ...], goal: str) -> tuple[str, ...]:
        warm = self.warm.get(group, ())
        # A copy that is to go stays until the one that comes for it is warm.
        missing = self.needs.standbys - sum(server in warm for server in wanted)
        leaving = islice((server for server in warm if server not in (owner, *wanted)), max(0, missing))
        coming = (goal,) if goal != owner else ()
        # The last owner goes on answering until the new one does.
        return (*leaving, *self._last_owner(group, owner), *coming)

    def _last_owner(self, group: int, owner: str) -> tuple[str, ...]:
        last = self.owners.get(group, owner)
        return (last,) if last != owner and last in self.present else ()


def _loads(owners: Owners) -> list[int]:
    """How many key groups the servers have that have any, in order."""
    return sorted(Counter(owners.values()).values())


def _moves(before: Owners, after: Owners) -> int:
    return sum(after[group] != owner for group, owner in before.items())
