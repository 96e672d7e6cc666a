"""A schedule comes from its seed alone."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from tests.fault.schedule import Kind, Targets, schedule

# The harness itself, without processes.
pytestmark = pytest.mark.core

TARGETS = Targets(
    ("server-0", "server-1", "server-2"),
    ("replica-0",),
    "server-3",
    ("driver>server-0", "server-0>kafka", "proxy>server-1"),
    executors=True,
)


def test_a_seed_gives_the_same_schedule_every_time_and_another_seed_another_one() -> None:
    assert schedule(5, 300, TARGETS) == schedule(5, 300, TARGETS)
    assert schedule(5, 300, TARGETS) != schedule(6, 300, TARGETS)


def test_every_kind_of_fault_comes_up() -> None:
    kinds = Counter(fault.kind for seed in range(20) for fault in schedule(seed, 150, TARGETS))
    assert set(kinds) == set(Kind)


def test_without_executors_none_is_killed() -> None:
    without = dataclasses.replace(TARGETS, executors=False)
    assert Kind.LOSE_EXECUTOR not in {fault.kind for seed in range(20) for fault in schedule(seed, 150, without)}


def test_no_two_faults_strike_one_target_at_once() -> None:
    for seed in range(20):
        faults = schedule(seed, 150, TARGETS)
        for number, fault in enumerate(faults):
            for other in faults[number + 1 :]:
                if other.at_seconds < fault.at_seconds + fault.seconds:
                    assert not set(fault.targets) & set(other.targets)
