"""What only shows from the answers of all state servers together. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from keyhole.metrics.cardinality import RANGES, Kept
from keyhole.metrics.families import Figures
from keyhole.v1 import state_pb2
from keyhole.v1 import stats_pb2 as pb

_P = "keyhole_cluster"

Name = tuple[str, str]

# A state that no server has any more: its key groups have no owner, and that is exposed for so long.
REMEMBERED_SECONDS = 3600.0


@dataclass(frozen=True)
class ServerHoldings:
    """What a server that answers holds of a state, in one role."""

    server: str
    copy: pb.StateCopy

    @property
    def owner(self) -> bool:
        return self.copy.role == state_pb2.ROLE_OWNER


@dataclass
class Memory:
    """Which states there are, and how many key groups they have: also those that no server has any more.

    Attributes:
        seen: By (application, state): the key groups, and when a server had it last, in monotonic seconds.
    """

    seen: dict[Name, tuple[int, float]] = field(default_factory=dict)

    def note(self, held: Iterable[ServerHoldings], now_monotonic: float) -> Mapping[Name, int]:
        """The states that there are now, with their key groups."""
        for one in held:
            self.seen[one.copy.application, one.copy.state] = (one.copy.all_key_groups, now_monotonic)
        self.seen = {name: of for name, of in self.seen.items() if now_monotonic - of[1] < REMEMBERED_SECONDS}
        return {name: key_groups for name, (key_groups, _) in self.seen.items()}


def tell(figures: Figures, kept: Kept, states: Mapping[Name, int], held: Iterable[ServerHoldings], now_ms: int) -> None:
    """The cluster's view.

    Args:
        states: All states, with their key groups.
        held: By the servers that answer: what one held that does not answer counts no more.
    """
    figures.add(f"{_P}_known_states", (), len(states))
    by_state: dict[Name, list[ServerHoldings]] = {name: [] for name in states}
    for one in held:
        by_state.setdefault((one.copy.application, one.copy.state), []).append(one)
    for name, of in by_state.items():
        _state(figures, kept.label(name), states.get(name, 0), of, now_ms)


def _state(figures: Figures, labels: Name, key_groups: int, held: Sequence[ServerHoldings], now_ms: int) -> None:
    owned: set[int] = set()
    contested: set[int] = set()
    followed: set[int] = set()
    readable: set[int] = set()
    given: set[int] = set()
    for one in held:
        groups = set(one.copy.key_groups)
        readable |= groups
        if one.owner:
            contested |= owned & groups
            owned |= groups
            given |= set(one.copy.assigned_key_groups)
        else:
            followed |= groups
    figures.add(f"{_P}_all_key_groups", labels, key_groups)
    figures.add(f"{_P}_unowned_key_groups", labels, key_groups - len(owned | given))
    figures.add(f"{_P}_restoring_key_groups", labels, len(given - owned))
    figures.add(f"{_P}_unreadable_key_groups", labels, key_groups - len(readable))
    figures.add(f"{_P}_contested_key_groups", labels, len(contested))
    figures.add(f"{_P}_followed_key_groups", labels, len(followed))
    for one in held:
        _ranges(figures, labels, key_groups, one)
    _freshness(figures, labels, held, owned, now_ms)


def _ranges(figures: Figures, labels: Name, key_groups: int, held: ServerHoldings) -> None:
    counts: dict[int, int] = {}
    size = -(-key_groups // RANGES)
    for group in held.copy.key_groups:
        counts[group // size] = counts.get(group // size, 0) + 1
    role = "owner" if held.owner else "standby"
    for number, count in counts.items():
        text = f"{number * size}-{min((number + 1) * size, key_groups) - 1}"
        figures.add(f"{_P}_range_key_groups", (held.server, *labels, role, text), count)


def _freshness(
    figures: Figures, labels: Name, held: Sequence[ServerHoldings], owned: Collection[int], now_ms: int
) -> None:
    """Of what readers get: from the owners, and where there is none, from the standby that is furthest."""
    answering = [one.copy for one in held if one.owner and one.copy.key_groups]
    missing = {group for one in held for group in one.copy.key_groups} - set(owned)
    standbys = [one.copy for one in held if not one.owner and one.copy.key_groups]
    for copy in sorted(standbys, key=lambda copy: -copy.epoch):
        if missing & set(copy.key_groups):
            answering.append(copy)
            missing -= set(copy.key_groups)
    if standbys:
        figures.add(f"{_P}_standby_lag_epochs", labels, max(copy.lag_epochs for copy in standbys))
    if not answering:
        return
    figures.add(f"{_P}_oldest_epoch", labels, min(copy.epoch for copy in answering))
    for what, times in (
        ("commit_age", [copy.commit_time_ms for copy in answering]),
        ("watermark_age", [copy.watermark_ms for copy in answering]),
        ("staleness", [copy.as_of_ms for copy in answering]),
    ):
        if all(times):  # else at least one is not known
            figures.add(f"{_P}_{what}_seconds", labels, max(0.0, (now_ms - min(times)) / 1000))
