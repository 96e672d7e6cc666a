"""Scenarios: what one streaming query leaves behind, and many tests read.

A pytest plugin (tests/conftest.py loads it). A file's own fixture runs the query; each of its tests is one sentence on
what came of it:

    @pytest.fixture(scope="module")
    def ran(scenarios: Scenarios) -> Scenario:
        scenario = scenarios()
        rows = scenario.stream("of string, k string, v long", [[{"of": "last", "k": "a", "v": 1}]])
        sink = queryable.together(
            queryable.value("last", key="k", config=scenario.config).of(only("last")),
            queryable.value("all", key="k", order_by="v", config=scenario.config),
        )
        scenario.run(rows, "append", sink)
        return scenario

    def test_append_mode_keeps_the_last_row_of_each_key(ran: Scenario) -> None:
        assert ran.get("last", "a").value.v == 1

`only` lets the states of one query have rows of their own. What can be seen only while the query runs, its fixture
notes down, as with `logged` what is logged. Around a query that ends by an error the fixture has `pytest.raises`, as a
test has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from keyhole import Client
from keyhole.client.options import Key
from keyhole.config import JobConfig
from keyhole.model.read import Answer, Entries
from tests.support.streams import Rows, Service, file_stream, new_application, run_to_end
from tests.support.waiting import LONG_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class Scenario:
    """An application, with files and checkpoints of its own, for one streaming query or one that is started again.

    Attributes:
        client: Of the proxy, for as long as the file's tests run.
        directory: Where its files and checkpoints are.
    """

    spark: SparkSession
    service: Service
    application: str
    client: Client
    directory: Path

    @property
    def config(self) -> JobConfig:
        """For `queryable.value(..., config=...)`."""
        return self.service.config(self.application)

    def stream(self, schema: str, batches: Sequence[Rows], name: str = "source") -> DataFrame:
        """(schema, the rows of each micro-batch) -> a streaming data frame. `name`: where a scenario has several."""
        return file_stream(self.spark, self.directory / name, schema, batches)

    def run(
        self,
        data: DataFrame,
        mode: str,
        function: Callable[[DataFrame, int], None],
        *,
        name: str | None = None,
        checkpoint: str = "checkpoint",
        partitions: int = 2,
    ) -> None:
        """Runs a streaming query until it has taken all that its source has; raises what ended it, if it failed.

        Args:
            checkpoint: In the directory, or a URL.
        """
        before = self.spark.conf.get(_SHUFFLE_PARTITIONS)
        assert before is not None
        self.spark.conf.set(_SHUFFLE_PARTITIONS, partitions)
        try:
            run_to_end(data, mode, function, checkpoint if "://" in checkpoint else self.directory / checkpoint, name)
        finally:
            self.spark.conf.set(_SHUFFLE_PARTITIONS, before)

    def get(self, state: str, key: Key, **options: Any) -> Answer:
        """`Client.get` of a state of this application."""
        return self.client.get(self.application, state, key, **options)

    def get_many(self, state: str, keys: Iterable[Key], **options: Any) -> list[Answer]:
        """`Client.get_many` of a state of this application."""
        return self.client.get_many(self.application, state, list(keys), **options)

    def scan(self, state: str, key: Key, **options: Any) -> Entries:
        """`Client.scan` of a state of this application."""
        return self.client.scan(self.application, state, key, **options)


Scenarios = Callable[[], Scenario]


def only(name: str) -> Callable[[DataFrame], DataFrame]:
    """For `Sink.of`: the rows whose column `of` has the name, without that column."""
    return lambda rows: rows.where(f"of = '{name}'").drop("of")


@contextmanager
def logged(logger: str, level: int = logging.WARNING) -> Iterator[list[logging.LogRecord]]:
    """What a logger is given meanwhile: for fixtures of a file, which can't have `caplog`."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(level)
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger(logger).addHandler(handler)
    try:
        yield records
    finally:
        logging.getLogger(logger).removeHandler(handler)


@pytest.fixture(scope="module")
def scenarios(spark: SparkSession, service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenarios]:
    """Makes a new scenario at each call, with an application of its own, which the service forgets at the end."""
    made: list[str] = []

    def scenario() -> Scenario:
        made.append(new_application())
        return Scenario(spark, service, made[-1], client, tmp_path_factory.mktemp("scenario"))

    with Client(service.proxy, timeout=LONG_SECONDS) as client:
        yield scenario
    for application in made:
        service.retire(application)
