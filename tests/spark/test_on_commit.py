"""When `on_commit` is called, where, with which epochs; and when it is not."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from keyhole import Client
from keyhole.coordinator.decisions import OnNewCheckpoint
from keyhole.spark import queryable
from keyhole.spark.sink import Sink
from keyhole.steps import Step
from tests.support.streams import RunQuery, Service, Stream

SCHEMA = "k string, v bigint"
BATCHES = [[{"k": "a", "v": 10}], [{"k": "a", "v": 20}], [{"k": "a", "v": 30}]]


class Failed(Exception):
    """What a test makes go wrong."""


@dataclass
class Told:
    """What became known of the epochs, in order: each as it is complete, and as `on_commit` is told of it.

    Attributes:
        seen: With each epoch that was told, the epoch and the value that a reader got at that moment.
        places: The processes and threads of those calls.
        fails_at: At which call of `on_commit`, counted from 1, it raises.
        dies_at: The epoch that is the first run's last: the run ends once it is complete, and tells nobody.
    """

    service: Service
    application: str
    steps: list[tuple[str, int]] = field(default_factory=list)
    seen: list[tuple[int, int, int]] = field(default_factory=list)
    places: set[tuple[int, int]] = field(default_factory=set)
    fails_at: int = 0
    dies_at: int = 0

    def reached(self, step: Step, epoch: int) -> None:
        if step is Step.DRIVER_COMPLETE:
            self.steps.append(("complete", epoch))
            if epoch == self.dies_at:
                self.dies_at = 0
                raise Failed("the driver's end")

    def on_commit(self, epoch: int) -> None:
        self.steps.append(("told", epoch))
        self.places.add((os.getpid(), threading.get_ident()))
        with Client(self.service.proxy) as client:
            answer = client.get(self.application, "last", "a")
        self.seen.append((epoch, answer.epoch, answer.value.v))
        if len(self.seen) == self.fails_at:
            raise Failed("what on_commit does")

    def sink(self, on_new_checkpoint: OnNewCheckpoint = "refuse") -> Sink:
        """Of a new run."""
        return queryable.value(
            "last",
            key="k",
            key_groups=4,
            on_commit=self.on_commit,
            observer=self,
            on_new_checkpoint=on_new_checkpoint,
            config=self.service.config(self.application),
        )


@pytest.fixture
def told(service: Service, application: str) -> Told:
    return Told(service, application)


def test_it_is_called_in_the_driver_in_order_once_the_epoch_is_readable_and_again_where_it_failed(
    stream: Stream, run_query: RunQuery, told: Told
) -> None:
    data, sink = stream(SCHEMA, BATCHES), told.sink()
    callers: set[tuple[int, int]] = set()

    def feed(batch: DataFrame, batch_id: int) -> None:
        callers.add((os.getpid(), threading.get_ident()))
        sink(batch, batch_id)

    told.fails_at = 1
    with pytest.raises(StreamingQueryException, match="what on_commit does"):
        run_query(data, "append", feed)
    sink = told.sink()
    run_query(data, "append", feed)
    assert told.seen == [(1, 1, 10), (1, 1, 10), (2, 2, 20), (3, 3, 30)]
    assert told.steps == [(what, epoch) for epoch in (1, 1, 2, 3) for what in ("complete", "told")]
    assert told.places == callers, "in this process, on the threads that Spark calls"


@pytest.mark.parametrize(
    ("checkpoint", "epochs"),
    [("checkpoint", [1, 2, 3]), ("another", [3, 4, 5])],  # a new one leaves out the epoch that may have been begun
    ids=["the same checkpoint", "a new one"],
)
def test_an_epoch_that_a_crash_left_untold_is_told_by_the_next_run_but_not_after_a_new_checkpoint(
    stream: Stream, run_query: RunQuery, told: Told, checkpoint: str, epochs: list[int]
) -> None:
    data = stream(SCHEMA, BATCHES)
    told.dies_at = 1
    with pytest.raises(StreamingQueryException, match="the driver's end"):
        run_query(data, "append", told.sink())
    assert told.steps == [("complete", 1)]
    run_query(data, "append", told.sink("continue"), checkpoint=checkpoint)
    assert [epoch for epoch, *_ in told.seen] == epochs
