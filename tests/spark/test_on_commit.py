"""When `on_commit` is called, where, with which epochs; and when it is not."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from keyhole.protocol.epoch_of_batch import OnNewCheckpoint
from keyhole.protocol.failpoints import Step
from keyhole.spark import queryable
from tests.support.scenario import Scenario, Scenarios

SCHEMA = "k string, v bigint"
BATCHES = [[{"k": "a", "v": 10}], [{"k": "a", "v": 20}], [{"k": "a", "v": 30}]]


class Failed(Exception):
    """What a test makes go wrong."""


@dataclass
class Known:
    """What became known of the epochs in one run, in order: each as it is complete, and as `on_commit` is told of it.

    Attributes:
        dies_at: The epoch that is the run's last: it ends once it is complete, and tells nobody.
        fails: `on_commit` raises, at its first call.
        seen: With each epoch that was told, the epoch and the value that a reader got at that moment.
        latest: With each epoch that all tasks had staged, what a reader of the latest got: epoch, staged epoch, value.
        places: The processes and threads of those calls.
        callers: Those on which Spark called.
    """

    scenario: Scenario
    dies_at: int = 0
    fails: bool = False
    steps: list[tuple[str, int]] = field(default_factory=list)
    seen: list[tuple[int, int, int]] = field(default_factory=list)
    latest: list[tuple[int, int, int, int]] = field(default_factory=list)
    places: set[tuple[int, int]] = field(default_factory=set)
    callers: set[tuple[int, int]] = field(default_factory=set)

    def reached(self, step: Step, epoch: int) -> None:
        if step is Step.DRIVER_STAGED:
            # Of a confirmed owner: on a slow machine the lease may have passed, until the next heartbeat.
            answer = self.scenario.get("last", "a", consistency="latest", stale="never")
            self.latest.append((epoch, answer.epoch, answer.source.staged_epoch, answer.value.v))
        if step is Step.DRIVER_COMPLETE:
            self.steps.append(("complete", epoch))
            if epoch == self.dies_at:
                raise Failed("the driver's end")

    def on_commit(self, epoch: int) -> None:
        self.steps.append(("told", epoch))
        self.places.add((os.getpid(), threading.get_ident()))
        answer = self.scenario.get("last", "a")
        self.seen.append((epoch, answer.epoch, answer.value.v))
        if self.fails:
            raise Failed("what on_commit does")

    def run(self, data: DataFrame, checkpoint: str = "checkpoint") -> Known:
        on_new_checkpoint: OnNewCheckpoint = "refuse" if checkpoint == "checkpoint" else "continue"
        sink = queryable.value(
            "last",
            key="k",
            key_groups=4,
            on_commit=self.on_commit,
            observer=self,
            on_new_checkpoint=on_new_checkpoint,
            config=self.scenario.config,
        )

        def feed(batch: DataFrame, batch_id: int) -> None:
            self.callers.add((os.getpid(), threading.get_ident()))
            sink(batch, batch_id)

        self.scenario.run(data, "append", feed, checkpoint=checkpoint)
        return self


@dataclass(frozen=True)
class Runs:
    """Of one query, which was started again after each.

    Attributes:
        died: Its driver ended between the first epoch's completion and `on_commit`.
        failed: `on_commit` failed.
        third: Its driver ended as the first one's, at the last epoch.
        anew: It had a new checkpoint, and took all batches once more.
    """

    died: Known
    failed: Known
    third: Known
    anew: Known


@pytest.fixture(scope="module")
def runs(scenarios: Scenarios) -> Runs:
    scenario = scenarios()
    data = scenario.stream(SCHEMA, BATCHES)
    died, failed, third = Known(scenario, dies_at=1), Known(scenario, fails=True), Known(scenario, dies_at=3)
    with pytest.raises(StreamingQueryException, match="the driver's end"):
        died.run(data)
    with pytest.raises(StreamingQueryException, match="what on_commit does"):
        failed.run(data)
    with pytest.raises(StreamingQueryException, match="the driver's end"):
        third.run(data)
    return Runs(died, failed, third, Known(scenario).run(data, "another"))


def test_an_epoch_that_a_crash_left_untold_is_told_by_the_next_run(runs: Runs) -> None:
    assert runs.died.steps == [("complete", 1)]
    assert [epoch for epoch, *_ in runs.failed.seen] == [1]


def test_it_is_called_again_where_it_failed(runs: Runs) -> None:
    assert runs.failed.steps == [("complete", 1), ("told", 1)]
    assert runs.third.steps == [("complete", 1), ("told", 1), ("complete", 2), ("told", 2), ("complete", 3)]


def test_it_is_called_in_order_once_the_epoch_is_readable(runs: Runs) -> None:
    assert runs.failed.seen == [(1, 1, 10)]
    assert runs.third.seen == [(1, 1, 10), (2, 2, 20)]
    assert runs.anew.steps == [(what, epoch) for epoch in (5, 6, 7) for what in ("complete", "told")]


def test_it_is_called_in_the_driver_on_the_threads_that_spark_calls(runs: Runs) -> None:
    assert runs.failed.places == runs.failed.callers
    assert runs.third.places == runs.third.callers
    assert runs.anew.places == runs.anew.callers


def test_an_untold_epoch_is_not_told_after_a_new_checkpoint(runs: Runs) -> None:
    # Which leaves out the epoch that may have been begun.
    assert runs.anew.seen == [(5, 5, 10), (6, 6, 20), (7, 7, 30)]


def test_the_latest_has_the_rows_of_the_tasks_before_they_are_committed(runs: Runs) -> None:
    assert runs.died.latest == [(1, 0, 1, 10)]
    # The first of these is run again, though it was committed.
    assert runs.third.latest == [(1, 1, 0, 10), (2, 1, 2, 20), (3, 2, 3, 30)]
