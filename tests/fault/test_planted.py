"""Bugs planted into real state servers: the checker catches each of them. What it can't catch it can't rule out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from keyhole.steps import Step
from tests.fault.checker import check
from tests.fault.cluster import Machine, Plan
from tests.fault.episode import run_episode
from tests.fault.planted import PLANTS
from tests.fault.schedule import Fault, Kind
from tests.fault.workload import STATES

pytestmark = [pytest.mark.fault, pytest.mark.timeout(240)]

ROWS = "every_answer_has_the_row_of_its_epoch"
FAULTS = [Fault(8.0 + 3 * number, Kind.KILL, (f"server-{number}",), 1.0) for number in range(3)]

# All of a server's transaction is in the changelog, and nothing in its store: the markers decide.
SERVER_DIES = {"server-0": Step.SERVER_TRANSACTION_COMMITTED}
# All servers have committed, and nobody has been told: the epoch is run again.
DRIVER_DIES = {"driver": Step.DRIVER_COMMITTED}


def plan(plant: str, kill_at: Mapping[str, str]) -> Plan:
    return Plan(5, 16.0, tuple(STATES), replicas=0, pace_seconds=0.1, plant=plant, kill_at=kill_at)


@pytest.mark.parametrize(
    ("plant", "kill_at"),
    [("dropped marker", SERVER_DIES), ("double apply", DRIVER_DIES), ("uncommitted answer", {})],
    ids=PLANTS,
)
def test_a_planted_bug_is_caught(plant: str, kill_at: Mapping[str, str], tmp_path: Path, machine: Machine) -> None:
    verdict = check(run_episode(plan(plant, kill_at), FAULTS, tmp_path, machine))
    assert verdict.violated[ROWS], verdict


def test_every_plant_is_tried() -> None:
    assert set(PLANTS) == {"dropped marker", "double apply", "uncommitted answer"}


def test_without_a_planted_bug_the_same_episode_is_right(tmp_path: Path, machine: Machine) -> None:
    verdict = check(run_episode(plan("", SERVER_DIES | DRIVER_DIES), FAULTS, tmp_path, machine))
    assert [violation for violation in verdict.violations if "EXIT_-9" not in violation.text] == []
