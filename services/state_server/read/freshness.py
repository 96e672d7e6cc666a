"""What a standby copy stands for: how far it is, seen against the last complete epoch. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from keyhole.model.epoch import Position
from keyhole.protocol.control import CompleteRecord
from services.state_server.read.standing import Standing, lagging

_NONE = Standing()


def standings(
    state: str,
    positions: Mapping[int, Position],
    complete: CompleteRecord | None,
    before: Mapping[int, Standing],
    heard_monotonic: float,
) -> dict[int, Standing]:
    """By key group.

    A key group that has reached its marker of the complete epoch stands for that epoch, also where it has nothing newer
    than an earlier one: the markers say that nothing is missing. One that is behind keeps what it stood for before, and
    knows how much it lacks.

    Args:
        positions: How far the copy is that is shown.
        before: What its key groups stood for until now.
        heard_monotonic: When the complete epoch was heard of.
    """
    if complete is None or state not in complete.markers:
        return {group: _own(position) for group, position in positions.items()}
    markers = complete.markers[state]
    whole = Standing(complete.stamp, as_of_ms=complete.told_ms, heard_monotonic=heard_monotonic)
    return {
        group: _standing(position, markers[group], whole, before.get(group, _NONE))
        for group, position in positions.items()
    }


def _standing(position: Position, marker: int, whole: Standing, before: Standing) -> Standing:
    if position.offset > marker:
        if position.epoch <= whole.stamp.epoch:
            return whole
        # It was committed by its owner, and is not yet known to be complete.
        return _own(position, whole.as_of_ms, whole.heard_monotonic)
    own = _own(position, before.as_of_ms, before.heard_monotonic)
    stands = before if before.stamp.epoch > own.stamp.epoch else own
    return lagging(stands, max(0, whole.stamp.epoch - stands.stamp.epoch))


def _own(position: Position, as_of_ms: int = 0, heard_monotonic: float = 0.0) -> Standing:
    return Standing(position.stamp, as_of_ms=as_of_ms, heard_monotonic=heard_monotonic)


def most_common(found: Mapping[int, Standing]) -> Standing:
    """What most key groups stand for: it is sent once, the others apart."""
    counted = Counter(found.values())
    return counted.most_common(1)[0][0] if counted else Standing()
