"""The sink in real streaming queries, with a state server and a coordinator that only keep what they get."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from keyhole.coordinator.stats import stats_of
from keyhole.errors import InvalidConfiguration, NullKey
from keyhole.local.ports import free_ports
from keyhole.spark import queryable
from keyhole.spark.driver.executors import Executor, live_executors
from keyhole.spark.sink import Sink
from tests.support.micro_batches import MicroBatches, session_settings
from tests.support.proxies import unused_address
from tests.support.recording import Backend, RecordingCoordinator, RecordingServer
from tests.support.streams import Rows, file_stream, run_to_end
from tests.support.waiting import LONG_SECONDS, until

SCHEMA = "k string, v double"
PARTITIONS = 2


@pytest.fixture
def backend() -> Iterator[Backend]:
    with recording() as backend:
        yield backend


@contextmanager
def recording() -> Iterator[Backend]:
    server = RecordingServer()  # type: ignore[abstract]  # tasks call Stage alone; gRPC refuses the rest by itself
    yield Backend(server)
    server.stop()


def batches(count: int, keys: int = 7) -> list[Rows]:
    """Each batch has every key once; its values are higher than those of the batch before."""
    return [[{"k": f"k{i}", "v": float(100 * n + i)} for i in range(keys)] for n in range(count)]


def highest(data: DataFrame) -> DataFrame:
    return data.groupBy("k").agg(F.max("v").alias("m"), F.max("k").alias("name"))


@dataclass(frozen=True)
class Ended:
    """A query that has ended.

    Attributes:
        listeners: How many Spark had before it.
    """

    backend: Backend
    sink: Sink
    checkpoint: Path
    listeners: int

    @property
    def run(self) -> RecordingCoordinator:
        (run,) = self.backend.runs
        return run


def ended(
    spark: SparkSession, directory: Path, backend: Backend, sink: Sink, mode: str, count: int, name: str | None
) -> Ended:
    """All rows of so many batches, aggregated."""
    listeners = len(spark._jsparkSession.streams().listListeners())
    data = highest(file_stream(spark, directory / "source", SCHEMA, batches(count)))
    with session_settings(spark, {"spark.sql.shuffle.partitions": str(PARTITIONS)}):
        run_to_end(data, mode, sink, directory / "checkpoint", name)
    return Ended(backend, sink, directory / "checkpoint", listeners)


@pytest.fixture(scope="module")
def stats_port() -> int:
    """Where the driver tells of its queries."""
    (port,) = free_ports(1)
    return port


@pytest.fixture(scope="module")
def updated(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, stats_port: int) -> Iterator[Ended]:
    """The query `highest`, in update mode, of three batches."""
    with recording() as backend:
        backend.config = dataclasses.replace(backend.config, application="of-two", stats=f"127.0.0.1:{stats_port}")
        sink = backend.sink(order_by="m", standbys=2)
        yield ended(spark, tmp_path_factory.mktemp("updated"), backend, sink, "update", 3, "highest")
        stats_of(backend.config).stop()


@pytest.fixture(scope="module")
def replaced(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, updated: Ended) -> Iterator[Ended]:
    """A query without a name, in complete mode, of two batches; by a configuration of its own."""
    with recording() as backend:
        of_other = updated.backend.config
        backend.config = dataclasses.replace(
            backend.config,
            application=of_other.application,
            stats=of_other.stats,
            epoch_deadline_seconds=of_other.epoch_deadline_seconds + 60,
        )
        directory = tmp_path_factory.mktemp("replaced")
        yield ended(spark, directory, backend, backend.sink(), "complete", 2, None)


@pytest.fixture(scope="module")
def appends(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MicroBatches]:
    """The query `appends`, in append mode, whose batches the tests run. Their sinks give their queries other names."""
    directory = tmp_path_factory.mktemp("appends")
    with MicroBatches(spark, directory, SCHEMA, name="appends", partitions=PARTITIONS) as query:
        yield query


@pytest.fixture(scope="module")
def updates(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MicroBatches]:
    """The same of a query in update mode."""

    def plan(data: DataFrame) -> DataFrame:
        # Not highest(): Spark 4.2 can't persist the rows of an aggregation by sorting, such as the highest string
        # ("key not found"; docs/spark.md).
        return data.groupBy("k").agg(F.max("v").alias("m"))

    directory = tmp_path_factory.mktemp("updates")
    with MicroBatches(spark, directory, SCHEMA, plan, mode="update", partitions=PARTITIONS) as query:
        yield query


def test_update_mode_merges_each_batch(updated: Ended) -> None:
    run = updated.run
    assert run.query == "highest", "the query is called as Spark calls it"
    assert run.fields() == [[200.0 + i, f"k{i}"] for i in range(7)]
    assert [epoch.batch_id for epoch in run.epochs] == [0, 1, 2]
    assert len({epoch.offsets_hash for epoch in run.epochs}) == 3
    (plan,) = run.epochs[0].states
    assert plan.replace is False
    assert plan.descriptor.order_by == "m"
    assert [column.name for column in plan.descriptor.key] == ["k"]
    assert [(field.name, field.type) for field in plan.descriptor.value.fields] == [("m", "double"), ("name", "string")]
    assert len(updated.backend.server.staged) <= 3 * PARTITIONS, "each partition is staged once per epoch"
    assert updated.sink.failure is None


def test_everything_that_a_sink_has_started_ends_with_its_query(updated: Ended) -> None:
    assert updated.run.closed.wait(LONG_SECONDS)
    until(lambda: "keyhole-end-highest" not in [thread.name for thread in threading.enumerate()], LONG_SECONDS)


def test_what_spark_tells_of_its_batches_is_kept_where_somebody_may_ask_for_it(
    spark: SparkSession, updated: Ended
) -> None:
    counts = stats_of(updated.backend.config).counts.spark("highest")
    # The last of what is kept of a batch: another thread does.
    until(lambda: (counts.batches, counts.state_updated) == (3, 21), LONG_SECONDS)
    assert (counts.batch, counts.input_rows, counts.state_rows, counts.state_updated) == (2, 21, 7, 21)
    assert {"addBatch", "triggerExecution"} <= counts.phase_seconds.keys()
    assert sum(counts.seconds.counts) == 3
    until(lambda: len(spark._jsparkSession.streams().listListeners()) == updated.listeners, LONG_SECONDS)


def test_two_queries_of_a_driver_with_configurations_of_their_own_are_told_on_one_port(
    updated: Ended, replaced: Ended
) -> None:
    stats = stats_of(updated.backend.config)
    for name, query in (("highest", updated), ("last", replaced)):
        counts = stats.counts.spark(name)
        wanted = len(query.run.epochs)
        until(lambda counts=counts, wanted=wanted: counts.batches == wanted, LONG_SECONDS)  # type: ignore[misc]


def test_an_epoch_says_what_a_savepoint_needs_of_spark(updated: Ended, appends: MicroBatches, backend: Backend) -> None:
    sink = backend.sink(query="stateless")
    for rows in batches(2):
        appends.run(rows, sink)
    stateful, (stateless,) = updated.run, backend.runs
    assert [epoch.stateful for epoch in (*stateful.epochs, *stateless.epochs)] == [True, True, True, False, False]
    assert [epoch.states[0].standbys for epoch in (stateful.epochs[0], stateless.epochs[0])] == [2, 0]
    for epoch in stateful.epochs:
        file = updated.checkpoint / "offsets" / str(epoch.batch_id)
        assert epoch.offsets == file.read_text()


def test_in_local_mode_the_driver_is_executor_0(spark: SparkSession) -> None:
    (executor,) = live_executors(spark.sparkContext)
    assert executor == Executor(0, "127.0.0.1")


def test_complete_mode_replaces_the_state_with_each_batch(replaced: Ended) -> None:
    run = replaced.run
    assert run.query == "last", "the query has no name of its own, and takes the state's"
    assert [epoch.states[0].replace for epoch in run.epochs] == [True, True]
    assert run.fields() == [[100.0 + i, f"k{i}"] for i in range(7)]


def test_append_mode_is_shuffled_by_key_group_and_survives_batches_that_spark_proves_empty(
    appends: MicroBatches, backend: Backend
) -> None:
    sink = backend.sink(query="shuffled")
    first, second = batches(2)
    appends.run(first, sink)
    appends.run(second, lambda data, batch_id: sink(data.filter("false"), batch_id))
    (run,) = backend.runs
    assert [(epoch.partitions, epoch.states[0].replace) for epoch in run.epochs] == [({"last": PARTITIONS}, False)] * 2
    assert run.fields() == [[float(i)] for i in range(7)]
    assert [len(receipts) for receipts in run.receipts] == [PARTITIONS, PARTITIONS]


def test_a_server_that_can_not_be_reached_costs_another_round_and_no_task(
    appends: MicroBatches, backend: Backend
) -> None:
    with unused_address() as nobody:
        backend.addresses[:] = [nobody, backend.server.address]
        appends.run(batches(1)[0], backend.sink(query="unreachable"))
    (run,) = backend.runs
    assert run.fields() == [[float(i)] for i in range(7)]
    first, second = run.receipts
    assert any(server.error for receipt in first for server in receipt.servers)
    attempts = [receipt.attempt_id for receipt in (*first, *second)]
    assert len(set(attempts)) == 2 * PARTITIONS, "each round's attempts have their own ids"


class Counting:
    """An operator that keeps how many rows each batch had."""

    def process(self, subtask: queryable.Subtask, elements: list[Any], rows: Iterator[Any]) -> list[Any]:
        return [*elements, sum(1 for _ in rows)]

    def result(self, elements: list[Any]) -> dict[str, Any]:
        return {"rows": sum(elements)}


def test_nor_does_it_where_a_subtask_would_have_to_ask_it_what_it_held(
    appends: MicroBatches, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordingCoordinator, "_merge", lambda *_: None)  # they are accumulators
    declared = queryable.operator(
        "subtasks", operator=Counting(), result="rows bigint", subtasks=3, config=backend.config
    )
    with unused_address() as nobody:
        backend.addresses[:] = [nobody, backend.server.address]
        sink = Sink(declared.parts_alone(), "subtasks", backend.config, backend._coordinator)
        appends.run(batches(1)[0], sink)
    (run,) = backend.runs
    first, second = run.receipts
    assert {server.error[0] for receipt in first for server in receipt.servers if server.error} == {"SERVER_LOST"}
    assert not any(server.error for receipt in second for server in receipt.servers)
    groups = [group for receipt in second for server in receipt.servers for group in server.groups]
    assert sum(group.rows for group in groups) == 3, "one of each subtask"


def test_two_states_of_one_streaming_query_need_names_of_their_own(appends: MicroBatches, backend: Backend) -> None:
    one, two = backend.sink("one"), backend.sink("two")

    def clash(data: DataFrame, batch_id: int) -> None:
        one(data, batch_id)
        two(data, batch_id)

    with pytest.raises(InvalidConfiguration, match=r"'one' and 'two'.*with query="):
        appends.run(batches(1)[0], clash)
    assert isinstance(two.failure, InvalidConfiguration)

    renamed = backend.sink("two", query="appends-two")

    def together(data: DataFrame, batch_id: int) -> None:
        one(data, batch_id)
        renamed(data, batch_id)

    appends.run(batches(1)[0], together)
    assert [run.query for run in backend.runs] == ["appends", "appends-two"]
    assert backend.runs[-1].values == backend.runs[-2].values != {}


def test_a_sink_that_is_called_twice_for_a_batch_is_refused(appends: MicroBatches, backend: Backend) -> None:
    sink = backend.sink(query="twice")

    def twice(data: DataFrame, batch_id: int) -> None:
        sink(data.limit(1), batch_id)
        sink(data, batch_id)

    with pytest.raises(InvalidConfiguration, match=r"was called twice for batch \d+, which is one epoch"):
        appends.run(batches(1)[0], twice)
    assert isinstance(sink.failure, InvalidConfiguration)


def test_a_sink_of_the_users_own_runs_after_and_a_failure_there_repeats_the_same_epoch(
    updates: MicroBatches, backend: Backend
) -> None:
    sink = backend.sink()
    written: list[tuple[int, int]] = []
    broken = [True]

    def both(data: DataFrame, batch_id: int) -> None:
        data.persist()
        try:
            sink(data, batch_id)
            if broken:
                broken.clear()
                raise ConnectionError("the user's own database is away")
            written.append((batch_id, data.count()))
        finally:
            data.unpersist()

    with pytest.raises(StreamingQueryException, match="database is away"):
        updates.fail(batches(1)[0], both)
    assert written == []
    updates.again(both)
    first, second = backend.runs
    assert written == [(first.epochs[0].batch_id, 7)]
    assert first.epochs[0].batch_id == second.epochs[0].batch_id
    assert first.epochs[0].offsets_hash == second.epochs[0].offsets_hash
    assert first.epochs[0].spark_query_id == second.epochs[0].spark_query_id
    assert first.values == second.values
    assert first.closed.is_set()


def test_one_sink_is_refused_to_a_second_query_while_the_first_one_runs(
    updates: MicroBatches, appends: MicroBatches, backend: Backend
) -> None:
    sink = backend.sink(query="one")
    first_rows, second_rows = batches(2)
    updates.run(first_rows, sink)
    with pytest.raises(InvalidConfiguration, match=r"'last' was given to two streaming queries"):
        appends.run(first_rows, sink)
    assert isinstance(sink.failure, InvalidConfiguration)
    updates.run(second_rows, sink)
    updates.stop()
    (run,) = backend.runs
    first, second = run.epochs
    assert second.batch_id == first.batch_id + 1, "the first one has not noticed"
    appends.run(first_rows, sink)
    assert len(backend.runs) == 2, "now it is free"


def test_rows_that_can_not_be_stored_end_the_query_once_with_their_own_error(
    appends: MicroBatches, backend: Backend
) -> None:
    """Of errors that the batch's columns show already: tests/unit/test_spark_declaration.py."""
    sink = backend.sink(query="null")
    with pytest.raises(StreamingQueryException, match="NullKey"):
        appends.fail([{"k": None, "v": 1.0}], sink)
    assert type(sink.failure) is NullKey
    assert sum(len(run.receipts) for run in backend.runs) <= 1, "nobody tries again what can't help"
    assert not any(run.values for run in backend.runs)
    until(lambda: all(run.closed.is_set() for run in backend.runs), LONG_SECONDS)
