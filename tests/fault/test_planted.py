"""Bugs planted into real state servers: the checker catches each of them. What it can't catch it can't rule out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from keyhole.protocol.failpoints import Step
from tests.fault import planted_driver, planted_proxy
from tests.fault.checker import check
from tests.fault.cluster import KILL_EPOCH, Machine, Plan
from tests.fault.episode import run_episode
from tests.fault.evidence import EVIDENCE, Looks, wrong_rows
from tests.fault.planted import PLANTS
from tests.fault.schedule import Fault, Kind
from tests.fault.workload import (
    ALERTS,
    BY_CLOCK,
    CHAINS,
    DRAWN,
    EXPOSED,
    GUESTS,
    LEASES,
    LEDGERS,
    LOANS,
    NOTICES,
    ROSTERS,
    SPANS,
    STAY_MS,
    STOPS,
    STREAKS,
    SUMS,
    TALLIES,
    TRAILS,
    VALUES,
    Workload,
    names,
    subtasks,
)

SEED = 11
SEED_OF_SPARK = 6
SUBTASKS = "a_batch_that_is_run_again_has_the_subtasks_that_it_had_before"
FAULTS = [Fault(8.0 + 3 * number, Kind.KILL, (f"server-{number}",), 1.0) for number in range(3)]

# All of a server's transaction is in the changelog, and nothing in its store: the markers decide.
SERVER_DIES = {"server-0": Step.SERVER_TRANSACTION_COMMITTED}
# All servers have committed, and nobody has been told: the epoch is run again.
DRIVER_DIES = {"driver": Step.DRIVER_COMMITTED}
OPERATORS_RESTORED = 3


# Each is seen in states of its own, so that one episode shows them all.
OF_KINDS = {
    "double apply": {SUMS},
    "uncommitted answer": {VALUES},
    "torn scan": {SPANS},
    "lost element": {TRAILS},
    "aggregate merged twice": {CHAINS},
    "kept deletion": {NOTICES},
    "reduced clear": {TALLIES},
    "expired counted": {LEASES, STREAKS},
    "expired shown": {GUESTS},
    "lifetime not renewed": {LOANS},
}
ALL = (*DRAWN, *BY_CLOCK)

# `python -m tests.fault --plant "dropped marker"`: of all states, and seen by the same rule as those of each. And one
# that only Spark has.
APART = {"dropped marker", "forgotten subtask"}

# Each of them writes every key of STREAKS, as did an earlier one. At any other pace, what expires by the clock is
# mostly removed by epochs that bring nothing to it, and whether it would have been counted nobody sees. The later ones
# come where nobody has read in time what the first have made.
WAITED_FOR = (25, 29, 66, 72, 93, 113, 120, 129, 135)


def plan(plant: str, kill_at: Mapping[str, str], epochs: int = KILL_EPOCH + 2) -> Plan:
    # On a slow machine the episode's end must not come between the death and the epoch's second run.
    waits = dict.fromkeys(WAITED_FOR, STAY_MS / 1000 + 1)
    return Plan(
        SEED,
        16.0,
        ALL,
        replicas=0,
        pace_seconds=0.1,
        hedge_quantile=0.5,
        # Whose bug of them is looked for; others took the reader's time, and a slow machine has few epochs.
        selected=(VALUES,) if plant else (),
        plant=plant,
        plant_proxy=",".join(planted_proxy.PLANTS) if plant else "",
        epochs=epochs,
        kill_at=kill_at,
        waits=waits,
    )


@pytest.mark.core
def test_the_batches_before_which_entries_expire_write_all_of_them() -> None:
    for batch in WAITED_FOR:
        assert {change.key for change in Workload(SEED).batch(batch).of(STREAKS)} == set(names(STREAKS))


@pytest.mark.core
def test_the_epoch_at_which_processes_die_has_rows_of_all_states() -> None:
    assert set(Workload(SEED).batch(KILL_EPOCH - 1).changes) >= set(ALL)


def test_a_planted_bug_of_each_kind_is_caught(tmp_path: Path, machine: Machine) -> None:
    # Handovers and an epoch that is run again, by epochs and not by seconds, and then many more.
    plants = [bug for bug in PLANTS if bug not in APART]
    planned = plan(",".join(plants), SERVER_DIES | DRIVER_DIES, epochs=60)
    # Which few reads of one reader meet by chance, and what soon expires by the clock; on a slow machine in more epochs
    # than those.
    history = run_episode(planned, [], tmp_path, machine, enough=Looks())
    assert {state for state in ALL if wrong_rows(history, state)} == set().union(*OF_KINDS.values()), check(history)
    assert [evidence for evidence in EVIDENCE if not evidence.is_in(history)] == []


@pytest.mark.timeout(1500)
def test_a_planted_bug_of_each_kind_that_only_spark_has_is_caught(tmp_path: Path, machine: Machine) -> None:
    states = (LEDGERS, LEASES, NOTICES, ALERTS, ROSTERS, *EXPOSED)
    spark = Plan(
        SEED_OF_SPARK,
        5.0,
        states,
        replicas=0,
        spark=True,
        plant="forgotten subtask",
        epochs=8,
        reader_pause_seconds=0.8,
    )
    # The driver dies in an epoch of both operators, and comes back with another number of subtasks.
    spark = replace(
        spark, plant_driver=",".join(planted_driver.PLANTS), kill_at=DRIVER_DIES, kill_epoch=OPERATORS_RESTORED
    )
    history = run_episode(spark, [], tmp_path, machine)
    assert {state for state in states if wrong_rows(history, state)} == {LEDGERS, ALERTS, STOPS, ROSTERS}
    assert check(history).violated[SUBTASKS]


@pytest.mark.core
def test_the_driver_with_spark_comes_back_with_more_than_one_subtask() -> None:
    """Which would have all elements, whether they are dealt out or given to all."""
    assert (subtasks(SEED_OF_SPARK, 0), subtasks(SEED_OF_SPARK, 1)) == (2, 3)


@pytest.mark.core
def test_every_plant_is_looked_for() -> None:
    assert set(PLANTS) | set(planted_proxy.PLANTS) == APART | set(OF_KINDS) | {evidence.bug for evidence in EVIDENCE}


def test_without_a_planted_bug_the_same_episode_is_right(tmp_path: Path, machine: Machine) -> None:
    verdict = check(run_episode(plan("", SERVER_DIES | DRIVER_DIES), FAULTS, tmp_path, machine))
    assert [violation for violation in verdict.violations if "EXIT_-9" not in violation.text] == []
