"""What states may tell whose entries expire by processing time: as far as the clock decides it, a set of answers. Pure.

An entry lives from the commit of the epoch that wrote it. An epoch that is run again is committed at another time, and
either run may have committed an entry's key group, so that the end of its life is known to lie between two times.
Before them an entry must be told, or merged with; after them it must not; in between, either is right.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from keyhole.protocol.failpoints import Step
from tests.fault.history import EpochStep
from tests.fault.recount import SHAPES, Shown, by_key
from tests.fault.workload import Workload

# That clocks are read one after the other, and that the machine's own is put right, may make such a difference.
SKEW_MS = 150


class Span(NamedTuple):
    """A time that is not known exactly: milliseconds since 1970, both inclusive."""

    first_ms: float
    last_ms: float


ANY_TIME = Span(float("-inf"), float("inf"))


class _Held(NamedTuple):
    """What a key may have since an epoch: one of the rows, until it expires."""

    epoch: int
    rows: frozenset[Shown]
    expires: Span


_NOTHING = _Held(0, frozenset({None}), ANY_TIME)


class Clock:
    """When the epochs of a state were committed, by the clock that all processes share, and what that was at a time.

    That is decided once an epoch's rows are staged. What its tasks merge with, they look up as of when it began.

    Args:
        steps: Of the state.
    """

    def __init__(self, steps: Sequence[EpochStep]) -> None:
        # A process may be held up between its two clocks: the least difference is the true one.
        self._wall_ms = min((step.wall_ms - 1000 * step.at for step in steps), default=0.0)
        self._began: dict[int, Span] = {}
        # Of a driver's run of an epoch that has decided no commit yet.
        staging: set[tuple[int, int]] = set()
        for step in steps:
            run = step.pid, step.epoch
            if step.step == Step.DRIVER_BEFORE_STAGE:
                staging.add(run)
            elif step.step != Step.DRIVER_BEFORE_COMMIT or run not in staging:
                continue
            else:
                staging.remove(run)
            first, last = self._began.get(step.epoch, (step.wall_ms, step.wall_ms))
            self._began[step.epoch] = Span(min(first, step.wall_ms), max(last, step.wall_ms))

    def began(self, epoch: int) -> Span:
        """The time of an epoch's commit, as its entries carry it."""
        return self._began.get(epoch, ANY_TIME)

    def during(self, began: float, ended: float) -> Span:
        """A time by CLOCK_MONOTONIC, in seconds."""
        return Span(self._wall_ms + 1000 * began, self._wall_ms + 1000 * ended)


@dataclass
class Expiring:
    """The states of workload.BY_CLOCK after every epoch, as tests.fault.recount has the others."""

    workload: Workload
    clocks: Mapping[str, Clock]
    _history: dict[tuple[str, str], list[_Held]] = field(default_factory=dict)
    _epochs: dict[str, int] = field(default_factory=dict)

    def answers(self, state: str, key: str, epoch: int, began: float, ended: float) -> frozenset[Shown]:
        """What may be told of a key between two times, once the epoch is committed, and no later one."""
        self._count(state, epoch)
        held = self._history.get((state, key), [])
        at = bisect_right(held, epoch, key=lambda of: of.epoch)
        return _living(held[at - 1], self.clocks[state].during(began, ended)) if at else _NOTHING.rows

    def _count(self, state: str, epoch: int) -> None:
        shape, clock = SHAPES[state], self.clocks[state]
        for number in range(self._epochs.get(state, 0), epoch):
            began = clock.began(number + 1)
            for key, changes in by_key(self.workload.batch(number).of(state)):
                history = self._history.setdefault((state, key), [])
                before = _living(history[-1] if history else _NOTHING, began)
                rows = frozenset(shape.fold(row, changes) for row in before)
                expires = Span(began.first_ms + shape.ttl_ms, began.last_ms + shape.ttl_ms)
                history.append(_Held(number + 1, rows, expires))
        self._epochs[state] = max(epoch, self._epochs.get(state, 0))


def _living(held: _Held, at: Span) -> frozenset[Shown]:
    """What there may be of it at a time."""
    if at.first_ms - SKEW_MS > held.expires.last_ms:
        return _NOTHING.rows
    return held.rows if at.last_ms + SKEW_MS < held.expires.first_ms else held.rows | _NOTHING.rows
