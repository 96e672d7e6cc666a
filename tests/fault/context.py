"""A history, and what the checker's rules look up in it. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass

from keyhole.protocol.failpoints import Step
from tests.fault.expiring import Clock, Expiring
from tests.fault.history import Counted, Dealt, EpochStep, History, Pinned, Read, Scanned, Watched
from tests.fault.recount import PartOf, Question, Recount, Shown, key_of, part
from tests.fault.whole_answers import as_read
from tests.fault.workload import BY_CLOCK, Workload


@dataclass(frozen=True)
class Epochs:
    """Of one state: when the commit of each epoch began, when its staging did, and the completions in their order."""

    began_commit: dict[int, float]
    began_stage: dict[int, float]
    complete: list[EpochStep]

    def complete_at(self, at: float) -> int:
        """The last epoch that was complete then; 0: none."""
        index = bisect_right(self.complete, at, key=lambda step: step.at)
        return self.complete[index - 1].epoch if index else 0


class Context:
    """A history, and what the rules look up in it.

    Attributes:
        excused: What may end a driver: the cluster is not to be had for longer than an epoch may take, or a newer run
            exists.
    """

    excused = frozenset({"EPOCH_FAILED", "KAFKA_UNREACHABLE", "NO_SERVER", "FENCED", "STORE_FULL"})

    def __init__(self, history: History) -> None:
        self.history = history
        self.pinned = [event for event in history.events if isinstance(event, Pinned)]
        self.dealt = sorted((event for event in history.events if isinstance(event, Dealt)), key=lambda dealt: dealt.at)
        self.recount = Recount(
            Workload(history.seed),
            {pinned.batch: pinned.epoch for pinned in self.pinned},
            # As at first, where that should change.
            {(dealt.state, dealt.batch): dealt.subtasks for dealt in reversed(self.dealt)},
        )
        self.watched = [event for event in history.events if isinstance(event, Watched)]
        self.scanned = [event for event in history.events if isinstance(event, Scanned)]
        self.counted = [event for event in history.events if isinstance(event, Counted)]
        self.reads = [event for event in history.events if isinstance(event, Read)]
        # Of one without any entry nobody has said anything.
        self.reads += [as_read(scanned) for scanned in self.scanned if scanned.entries]
        steps = sorted((event for event in history.events if isinstance(event, EpochStep)), key=lambda step: step.at)
        self.epochs = {state: _epochs(state, steps) for state in history.states}
        clocks = {
            state: Clock([step for step in steps if state in step.states])
            for state in history.states
            if state in BY_CLOCK
        }
        self.expiring = Expiring(self.recount.workload, clocks)

    def right(self, state: str, question: Question, epoch: int, began: float, ended: float) -> Collection[Shown]:
        """What may be told between two times, once the epoch is committed, and no later one."""
        if state in BY_CLOCK:
            shown = self.expiring.answers(state, key_of(question), epoch, began, ended)
            return {part(state, question, of) for of in shown} if isinstance(question, PartOf) else shown
        return (self.recount.answer(state, question, epoch),)

    def where_from(self, state: str, question: Question, row: Shown) -> str:
        """Of which epochs a wrong answer would be the right one, in words."""
        if state in BY_CLOCK:
            return "its time is over, has not come, or no epoch has that row"
        last = max(self.epochs[state].began_commit, default=0) + 1
        found = self.recount.epochs(state, question, row, last)
        return f"the row is that of epochs {found}" if found else "no epoch has that row"


def _epochs(state: str, steps: list[EpochStep]) -> Epochs:
    epochs = Epochs({}, {}, [])
    for step in steps:
        if state in step.states and step.step == Step.DRIVER_BEFORE_STAGE:
            epochs.began_stage.setdefault(step.epoch, step.at)
        elif state in step.states and step.step == Step.DRIVER_BEFORE_COMMIT:
            epochs.began_commit.setdefault(step.epoch, step.at)
        elif state in step.states and step.step == Step.DRIVER_COMPLETE:
            epochs.complete.append(step)
    return epochs
