"""A schedule comes from its seed alone."""

from __future__ import annotations

import dataclasses
from collections import Counter

from tests.fault.schedule import Kind, Targets, schedule
from tests.fault.workload import KEYS, SUMS, VALUES, Recount, Row, Workload, names

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


def test_a_workload_can_be_recounted_at_any_epoch() -> None:
    workload = Workload(9)
    recount, sums = Recount(workload), Counter[str]()
    rows: dict[str, Row] = {}
    for number in range(60):
        batch = workload.batch(number)
        rows |= batch.values
        for key, amount in batch.amounts:
            sums[key] += amount
    assert {key: recount.row(VALUES, key, 60) for key in names()} == {key: rows.get(key) for key in names()}
    assert {key: (recount.row(SUMS, key, 60) or (0,))[0] for key in names()} == {key: sums[key] for key in names()}
    assert recount.row(VALUES, names()[0], 0) is None


def test_batches_of_every_size_and_deletions_come_up() -> None:
    batches = [Workload(9).batch(number) for number in range(100)]
    assert {len(batch.values) for batch in batches} >= {0, 1, KEYS}
    assert any(row is None for batch in batches for row in batch.values.values())
    assert all(row is not None for n in range(100) for row in Workload(9, deletes=False).batch(n).values.values())
