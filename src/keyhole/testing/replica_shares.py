"""How a group of replicas shares partitions in memory. Pure; Kafka's cooperative-sticky assignment is the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from keyhole.changelog.base import Partition


class ReplicaShares:
    """Who has which partition. One that moves is free until its old holder has asked again, and so has let it go."""

    def __init__(self) -> None:
        self._states: dict[int, Mapping[str, int]] = {}
        self._holders: dict[Partition, int] = {}
        self._joined = 0

    def join(self) -> int:
        """A new member's number. It counts from its first `share` on."""
        self._joined += 1
        return self._joined

    def leave(self, member: int) -> None:
        """Frees what it has. Idempotent."""
        self._states.pop(member, None)
        self._holders = {part: holder for part, holder in self._holders.items() if holder != member}

    def share(self, member: int, states: Mapping[str, int]) -> frozenset[Partition]:
        """What the member has from now on."""
        self._states[member] = dict(states)
        wanted = {Partition(state, group) for of in self._states.values() for state in of for group in range(of[state])}
        targets = balanced(wanted, sorted(self._states), self._holders)
        self._holders = {
            part: holder for part, holder in self._holders.items() if holder != member or targets.get(part) == member
        }
        for part, target in targets.items():
            if target == member:
                self._holders.setdefault(part, member)
        return frozenset(part for part, holder in self._holders.items() if holder == member)


def balanced(
    partitions: Iterable[Partition], members: list[int], holders: Mapping[Partition, int]
) -> dict[Partition, int]:
    """A member for each partition: balanced within one, and as many as possible stay with their holders."""
    ordered = sorted(partitions)
    held = {member: [part for part in ordered if holders.get(part) == member] for member in members}
    least, larger = divmod(len(ordered), len(members))
    # The larger shares go to those who hold the most already.
    by_size = sorted(members, key=lambda member: (-len(held[member]), member))
    sizes = {member: least + (place < larger) for place, member in enumerate(by_size)}
    targets = {part: member for member in members for part in held[member][: sizes[member]]}
    free = iter([part for part in ordered if part not in targets])
    for member in members:
        for _ in range(sizes[member] - len(held[member])):
            targets[next(free)] = member
    return targets
