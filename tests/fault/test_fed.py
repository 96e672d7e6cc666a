"""The real-time lane under faults: a feeder, owners, standbys and Kafka, sums recounted from the source topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.checker import Verdict
from tests.fault.cluster import Machine, Plan
from tests.fault.fed_episode import run_fed_episode, save
from tests.fault.fed_planted import BOUNDLESS, FORGETFUL, HASTY, VARIABLE
from tests.fault.fed_rules import FedContext, FedHistory, check_fed
from tests.fault.history import Held, Injected, Read
from tests.fault.recount import key_of
from tests.fault.schedule import Fault, Kind
from tests.fault.workload import SUMS

pytestmark = pytest.mark.timeout(1200)

SEED = 21
_LEAST_ANSWERS = 500
# What came to a feeder is sent once more by the next one while owners change: the first one's death, or its sleep.
BLOWS = [
    [Fault(0.0, Kind.KILL, ("driver",), 4.0), Fault(3.0, Kind.KILL, ("server-0",), 0.5)],
    [Fault(0.0, Kind.USURP, ("driver",), 6.0), Fault(2.0, Kind.KILL, ("server-1",), 0.5)],
    [Fault(0.0, Kind.SUSPEND, ("server-0",), 6.0), Fault(0.5, Kind.KILL, ("driver",), 0.2)],
    [Fault(0.0, Kind.CUT, ("server-1>kafka",), 5.0, 2.0), Fault(0.5, Kind.LOSE_STORE, ("server-0",), 1.0)],
]


def plan() -> Plan:
    return Plan(SEED, 0.0, (SUMS,), servers=2, replicas=0, reader_pause_seconds=0.2)


def wrong_groups(history: FedHistory) -> set[int]:
    """The key groups of which an answer, or a copy at the end, is wrong."""
    context, found = FedContext(history), set()
    for event in history.seen.events:
        if isinstance(event, Read):
            of_keys = zip(event.keys, event.rows, (claim.epoch for claim in event.claims), strict=True)
        elif isinstance(event, Held):
            of_keys = ((key, row, context.counts.ends[context.counts.group_of[key]]) for key, row in event.rows.items())
        else:
            continue
        for key, row, epoch in of_keys:
            if row != context.counts.answer(key_of(key), epoch):
                found.add(context.counts.group_of[key_of(key)])
    return found


def checked(history: FedHistory, directory: Path) -> Verdict:
    save(history, directory / "history")
    verdict = check_fed(history)
    assert len([event for event in history.seen.events if isinstance(event, Injected)]) == sum(map(len, BLOWS))
    assert verdict.answers > _LEAST_ANSWERS, "a history of few answers says little"
    return verdict


def test_rows_of_a_feed_count_once_and_answers_are_final_whoever_dies_or_sleeps(
    tmp_path: Path, machine: Machine
) -> None:
    assert checked(run_fed_episode(plan(), BLOWS, tmp_path, machine), tmp_path).violations == []


def test_numbers_that_are_forgotten_boundaries_that_are_dropped_and_those_that_go_too_far_are_caught(
    tmp_path: Path, machine: Machine
) -> None:
    history = run_fed_episode(plan(), BLOWS, tmp_path, machine, rewound=(400,), settings={VARIABLE: "all"})
    verdict = checked(history, tmp_path)
    assert wrong_groups(history) == {FORGETFUL, BOUNDLESS, HASTY}, verdict
    assert verdict.violated["every_answer_has_the_row_of_its_epoch"]
    assert verdict.violated["the_end_has_what_the_source_comes_to"]
