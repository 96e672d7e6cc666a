"""Bugs planted into real state servers: the checker catches each of them. What it can't catch it can't rule out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec
import pytest

from keyhole.protocol.failpoints import Step
from tests.fault import planted_driver, planted_proxy
from tests.fault.checker import Verdict, check
from tests.fault.cluster import KILL_EPOCH, Machine, Plan
from tests.fault.direct_readers import DIRECT
from tests.fault.episode import run_episode
from tests.fault.history import Answered, Counted, Event, Held, History, Read, Scanned, Watched
from tests.fault.mirroring_readers import MIRRORING
from tests.fault.planted import PLANTS
from tests.fault.recount import ScanOf
from tests.fault.schedule import Fault, Kind
from tests.fault.tempers import LATEST
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
ROWS = "every_answer_has_the_row_of_its_epoch"
END = "the_end_equals_the_recount"
EPOCHS = "an_epoch_that_is_asked_for_is_that_epoch"
COUNTS = "a_count_is_that_of_its_epochs"
LEAST = "min_epoch_is_kept"
TWICE = "a_scan_has_what_was_asked_for_once_and_in_its_order"
MISSES, ONCE = "a_watch_misses_nothing", "a_watch_tells_each_change_once_and_in_order"
TELLS = "a_watch_tells_the_rows_of_their_epochs"
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
# Each breaks a rule, in watches of a state.
OF_WATCHES = {
    "watch skips": (MISSES, VALUES),
    "watch repeats": (ONCE, SUMS),
    "watch of what is no more": (TELLS, VALUES),
}
# In mirrors of a state.
OF_MIRRORS = {"mirror of a part": (ROWS, SPANS)}
# In look-ups of the latest of a state.
OF_THE_LATEST = {"latest without its rows": (ROWS, SPANS)}
# In reads of several keys as of one epoch: it mixes two.
OF_SNAPSHOTS = {"epoch passed over": (EPOCHS, VALUES)}
# In scans of whole states, and in counts, which are found by scans.
OF_SCANS = {
    "whole scan of two epochs": (ROWS, SUMS),
    "whole scan loses a key": (ROWS, CHAINS),
    "snapshot scanned at the last": (EPOCHS, TALLIES),
    "kept index entry": (TWICE, SPANS),
    "predicate on another row": (ROWS, VALUES),
}
OF_COUNTS = {"whole scan loses a key": (COUNTS, CHAINS)}
# In look-ups by lookup ports, which who goes to the servers itself uses, too.
OF_PORTS = {"lookup port answers as before": (ROWS, SPANS)}
# Of the proxy, in look-ups of all states.
OF_HEDGES = {"hedge without bounds"}
ALL = (*DRAWN, *BY_CLOCK)

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
        plant_proxy=",".join(OF_HEDGES) if plant else "",
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
    plants = ",".join((*OF_KINDS, *OF_WATCHES, *OF_MIRRORS, *OF_THE_LATEST, *OF_SNAPSHOTS, *OF_SCANS, *OF_PORTS))
    planned = plan(plants, SERVER_DIES | DRIVER_DIES, epochs=60)
    # Which few reads of one reader meet by chance, and what soon expires by the clock; on a slow machine in more epochs
    # than those.
    history = run_episode(planned, [], tmp_path, machine, enough=all_seen)
    assert {state for state in ALL if wrong_rows(history, state)} == set().union(*OF_KINDS.values()), check(history)
    assert not passed_over(history)


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
        reader_pause_seconds=0.3,
    )
    # The driver dies in an epoch of both operators, and comes back with another number of subtasks.
    spark = dataclasses.replace(
        spark, plant_driver=",".join(planted_driver.PLANTS), kill_at=DRIVER_DIES, kill_epoch=OPERATORS_RESTORED
    )
    history = run_episode(spark, [], tmp_path, machine)
    assert {state for state in states if wrong_rows(history, state)} == {LEDGERS, ALERTS, STOPS, ROSTERS}
    assert check(history).violated[SUBTASKS]


@pytest.mark.core
def test_the_driver_with_spark_comes_back_with_more_than_one_subtask() -> None:
    """Which would have all elements, whether they are dealt out or given to all."""
    assert (subtasks(SEED_OF_SPARK, 0), subtasks(SEED_OF_SPARK, 1)) == (2, 3)


def all_seen(history: History) -> bool:
    """Whether what only reads in time can show was shown. All other kinds show in every read of their states."""
    return bool(wrong_rows(history, STREAKS, {ROWS})) and not passed_over(history)


def wrong_rows(history: History, state: str, rules: Collection[str] = frozenset({ROWS, END})) -> int:
    """How many answers and copies of one state are wrong; those of mirrors, of scans of it all, and of ports have bugs
    of their own.
    """
    others = read_by(history, lambda read: not (_by_mirror(read) or _whole(read) or _may_be_by_port(read)))
    return of_state(others, state, rules).violated.total()


def passed_over(history: History) -> set[str]:
    """Planted bugs of watches, of mirrors, of the latest, of snapshots, of scans, of lookup ports and of hedges that no
    rule has seen.
    """
    of_readers = (
        (history, OF_WATCHES),
        (read_by(history, _by_mirror), OF_MIRRORS),
        (read_by(history, _looked_up_at_latest), OF_THE_LATEST),
        (read_by(history, _of_snapshot), OF_SNAPSHOTS),
        (read_by(history, _whole), OF_SCANS),
        (history, OF_COUNTS),
        (read_by(history, lambda read: _may_be_by_port(read) and read.reader == DIRECT), OF_PORTS),
    )
    hedges = set() if check(history, {LEAST}).violated else OF_HEDGES
    return hedges | {
        bug
        for by_them, bugs in of_readers
        for bug, (rule, state) in bugs.items()
        if not of_state(by_them, state, {rule}).violated[rule]
    }


def read_by(history: History, kept: Callable[[Answered], bool]) -> History:
    """With these answers alone, of all that were given."""
    events: list[Event] = [event for event in history.events if not isinstance(event, Answered) or kept(event)]
    return msgspec.structs.replace(history, events=events)


def _by_mirror(read: Answered) -> bool:
    return read.reader.startswith(MIRRORING)


def _looked_up_at_latest(read: Answered) -> bool:
    """A look-up of what is staged; other bugs are seen in scans."""
    return isinstance(read, Read) and read.reader == LATEST and not isinstance(read.keys[0], ScanOf)


def _of_snapshot(read: Answered) -> bool:
    """It wants all keys as of one epoch, whichever: who names one would see it, too."""
    return read.asked.snapshot


def _may_be_by_port(read: Answered) -> bool:
    """A look-up of the state that has a bug in lookup ports, where that shows."""
    look_up = isinstance(read, Read) and not isinstance(read.keys[0], ScanOf)
    return look_up and read.state == SPANS and not read.asked.latest


def _whole(read: Answered) -> bool:
    return isinstance(read, Scanned | Counted)


def of_state(history: History, state: str, rules: Collection[str]) -> Verdict:
    """What these rules find in one state."""
    kept = [
        event for event in history.events if not isinstance(event, Answered | Watched | Held) or event.state == state
    ]
    return check(msgspec.structs.replace(history, states=(state,), events=kept), rules)


@pytest.mark.core
def test_every_plant_is_tried_here_or_by_its_name() -> None:
    """`python -m tests.fault --plant "dropped marker"`: of all states, and seen by the same rule as those of each."""
    apart = {"dropped marker", "forgotten subtask"}
    of_readers = {*OF_WATCHES, *OF_MIRRORS, *OF_THE_LATEST, *OF_SNAPSHOTS, *OF_SCANS, *OF_PORTS}
    assert set(PLANTS) == apart | set(OF_KINDS) | of_readers
    assert set(planted_proxy.PLANTS) == OF_HEDGES


def test_without_a_planted_bug_the_same_episode_is_right(tmp_path: Path, machine: Machine) -> None:
    verdict = check(run_episode(plan("", SERVER_DIES | DRIVER_DIES), FAULTS, tmp_path, machine))
    assert [violation for violation in verdict.violations if "EXIT_-9" not in violation.text] == []
