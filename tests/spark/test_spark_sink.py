"""The sink in real streaming queries, with a state server and a coordinator that only keep what they get."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from keyhole.coordinator.stats import stats_of
from keyhole.errors import InvalidConfiguration, KeyholeError, KeyMismatch, NullKey
from keyhole.local.ports import free_ports
from keyhole.spark import queryable
from keyhole.spark.executors import Executor, live_executors
from keyhole.spark.sink import Sink
from tests.support.proxies import unused_address
from tests.support.recording import Backend, RecordingCoordinator, RecordingServer
from tests.support.streams import Rows, RunQuery, Stream
from tests.support.waiting import until

SCHEMA = "k string, v double"


@pytest.fixture
def backend() -> Iterator[Backend]:
    server = RecordingServer()  # type: ignore[abstract]  # tasks call Stage alone; gRPC refuses the rest by itself
    yield Backend(server)
    server.stop()


def batches(count: int, keys: int = 7) -> list[Rows]:
    """Each batch has every key once; its values are higher than those of the batch before."""
    return [[{"k": f"k{i}", "v": float(100 * n + i)} for i in range(keys)] for n in range(count)]


def highest(data: DataFrame) -> DataFrame:
    return data.groupBy("k").agg(F.max("v").alias("m"), F.max("k").alias("name"))


def threads_of_sinks() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("keyhole-end-")]


def test_update_mode_merges_each_batch_and_everything_ends_with_the_query(
    stream: Stream, run_query: RunQuery, backend: Backend
) -> None:
    sink = backend.sink(order_by="m")
    run_query(highest(stream(SCHEMA, batches(2))), "update", sink, name="highest")
    (run,) = backend.runs
    assert run.query == "highest", "the query is called as Spark calls it"
    assert run.fields() == [[100.0 + i, f"k{i}"] for i in range(7)]
    assert [epoch.batch_id for epoch in run.epochs] == [0, 1]
    assert len({epoch.offsets_hash for epoch in run.epochs}) == 2
    (plan,) = run.epochs[0].states
    assert plan.replace is False
    assert plan.descriptor.order_by == "m"
    assert [column.name for column in plan.descriptor.key] == ["k"]
    assert [(field.name, field.type) for field in plan.descriptor.value.fields] == [("m", "double"), ("name", "string")]
    assert len(backend.server.staged) <= 2 * 4, "each of the 4 partitions is staged once per epoch"
    assert sink.failure is None
    assert run.closed.wait(20)
    until(lambda: not threads_of_sinks())


def test_what_spark_tells_of_its_batches_is_kept_where_somebody_may_ask_for_it(
    spark: SparkSession, stream: Stream, run_query: RunQuery, backend: Backend
) -> None:
    listeners = len(spark._jsparkSession.streams().listListeners())
    backend.config = dataclasses.replace(backend.config, application="asked", stats="127.0.0.1:0")
    run_query(highest(stream(SCHEMA, batches(3))), "update", backend.sink(), name="highest")
    stats = stats_of(backend.config)
    counts = stats.counts.spark("highest")
    until(lambda: counts.batches == 3)
    assert (counts.batch, counts.input_rows, counts.state_rows, counts.state_updated) == (2, 21, 7, 21)
    assert {"addBatch", "triggerExecution"} <= counts.phase_seconds.keys()
    assert sum(counts.seconds.counts) == 3
    until(lambda: len(spark._jsparkSession.streams().listListeners()) == listeners)
    stats.stop()


def test_two_queries_of_a_driver_with_configurations_of_their_own_are_told_on_one_port(
    stream: Stream, run_query: RunQuery, backend: Backend
) -> None:
    (port,) = free_ports(1)
    first = dataclasses.replace(backend.config, application="of-two", stats=f"127.0.0.1:{port}")
    second = dataclasses.replace(first, epoch_deadline_seconds=first.epoch_deadline_seconds + 60)
    for name, backend.config in (("one", first), ("other", second)):
        run_query(highest(stream(SCHEMA, batches(2))), "update", backend.sink(), checkpoint=name, name=name)
    stats = stats_of(first)
    for name in ("one", "other"):
        counts = stats.counts.spark(name)
        until(lambda counts=counts: counts.batches == 2)  # type: ignore[misc]
    stats.stop()


def test_an_epoch_says_what_a_savepoint_needs_of_spark(
    stream: Stream, run_query: RunQuery, backend: Backend, tmp_path: Path
) -> None:
    run_query(highest(stream(SCHEMA, batches(2))), "update", backend.sink(standbys=2), checkpoint="stateful")
    run_query(stream(SCHEMA, batches(2)), "append", backend.sink(), checkpoint="stateless")
    stateful, stateless = backend.runs
    assert [epoch.stateful for epoch in (*stateful.epochs, *stateless.epochs)] == [True, True, False, False]
    assert [epoch.states[0].standbys for epoch in (stateful.epochs[0], stateless.epochs[0])] == [2, 0]
    for epoch in stateful.epochs:
        file = tmp_path / "stateful" / "offsets" / str(epoch.batch_id)
        assert epoch.offsets == file.read_text()


def test_in_local_mode_the_driver_is_executor_0(spark: SparkSession) -> None:
    (executor,) = live_executors(spark.sparkContext)
    assert executor == Executor(0, "127.0.0.1")


def test_complete_mode_replaces_the_state_with_each_batch(
    stream: Stream, run_query: RunQuery, backend: Backend
) -> None:
    data = stream(SCHEMA, batches(2))
    run_query(highest(data), "complete", backend.sink())
    (run,) = backend.runs
    assert run.query == "last", "the query has no name of its own, and takes the state's"
    assert [epoch.states[0].replace for epoch in run.epochs] == [True, True]
    assert run.fields() == [[100.0 + i, f"k{i}"] for i in range(7)]


def test_append_mode_is_shuffled_by_key_group_and_survives_batches_that_spark_proves_empty(
    stream: Stream, run_query: RunQuery, backend: Backend
) -> None:
    sink = backend.sink()

    def first_batch_only(data: DataFrame, batch_id: int) -> None:
        sink(data if batch_id == 0 else data.filter("false"), batch_id)

    run_query(stream(SCHEMA, batches(2)), "append", first_batch_only)
    (run,) = backend.runs
    assert [(epoch.partitions, epoch.states[0].replace) for epoch in run.epochs] == [({"last": 4}, False)] * 2
    assert run.fields() == [[float(i)] for i in range(7)]
    assert [len(receipts) for receipts in run.receipts] == [4, 4]


def test_a_server_that_can_not_be_reached_costs_another_round_and_no_task(
    stream: Stream, run_query: RunQuery, backend: Backend
) -> None:
    with unused_address() as nobody:
        backend.addresses[:] = [nobody, backend.server.address]
        run_query(highest(stream(SCHEMA, batches(1))), "update", backend.sink())
    (run,) = backend.runs
    assert run.fields() == [[float(i), f"k{i}"] for i in range(7)]
    first, second = run.receipts
    assert any(server.error for receipt in first for server in receipt.servers)
    attempts = [receipt.attempt_id for receipt in (*first, *second)]
    assert len(set(attempts)) == 8, "each round's attempts have their own ids"


class Counting:
    """An operator that keeps how many rows each batch had."""

    def process(self, subtask: queryable.Subtask, elements: list[Any], rows: Iterator[Any]) -> list[Any]:
        return [*elements, sum(1 for _ in rows)]

    def result(self, elements: list[Any]) -> dict[str, Any]:
        return {"rows": sum(elements)}


def test_nor_does_it_where_a_subtask_would_have_to_ask_it_what_it_held(
    stream: Stream, run_query: RunQuery, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordingCoordinator, "_merge", lambda *_: None)  # they are accumulators
    declared = queryable.operator(
        "subtasks", operator=Counting(), result="rows bigint", subtasks=3, config=backend.config
    )
    with unused_address() as nobody:
        backend.addresses[:] = [nobody, backend.server.address]
        sink = Sink(declared.parts_alone(), None, backend.config, backend._coordinator)
        run_query(stream(SCHEMA, batches(1)), "append", sink)
    (run,) = backend.runs
    first, second = run.receipts
    assert {server.error[0] for receipt in first for server in receipt.servers if server.error} == {"SERVER_LOST"}
    assert not any(server.error for receipt in second for server in receipt.servers)
    groups = [group for receipt in second for server in receipt.servers for group in server.groups]
    assert sum(group.rows for group in groups) == 3, "one of each subtask"


@pytest.mark.parametrize(
    ("schema", "row", "key", "error", "message"),
    [
        ("k string, v double", {"k": None, "v": 1.0}, "k", NullKey, ""),
        ("k string, v double", {"k": "a", "v": 1.0}, "K2", KeyMismatch, "key column 'K2' does not exist"),
        ("k double, v double", {"k": 1.0, "v": 1.0}, "k", KeyMismatch, "of type double, which can't be a key"),
    ],
)
def test_rows_that_can_not_be_stored_end_the_query_once_with_their_own_error(
    stream: Stream,
    run_query: RunQuery,
    backend: Backend,
    schema: str,
    row: dict[str, object],
    key: str,
    error: type[KeyholeError],
    message: str,
) -> None:
    sink = backend.sink(key=key)
    with pytest.raises(StreamingQueryException, match=f"{error.__name__}.*{message}"):
        run_query(stream(schema, [[row]]), "append", sink)
    assert type(sink.failure) is error
    assert sum(len(run.receipts) for run in backend.runs) <= 1, "nobody tries again what can't help"
    assert not any(run.values for run in backend.runs)
    until(lambda: all(run.closed.is_set() for run in backend.runs))


def test_a_sink_of_the_users_own_runs_after_and_a_failure_there_repeats_the_same_epoch(
    stream: Stream, run_query: RunQuery, backend: Backend
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

    # Not highest(): Spark 4.2 can't persist the rows of an aggregation by sorting, such as the highest string
    # ("key not found"; docs/spark.md).
    data = stream(SCHEMA, batches(1)).groupBy("k").agg(F.max("v").alias("m"))
    with pytest.raises(StreamingQueryException, match="database is away"):
        run_query(data, "update", both)
    assert written == []
    run_query(data, "update", both)
    assert written == [(0, 7)]
    first, second = backend.runs
    assert [first.epochs[0].batch_id, second.epochs[0].batch_id] == [0, 0]
    assert first.epochs[0].offsets_hash == second.epochs[0].offsets_hash
    assert first.epochs[0].spark_query_id == second.epochs[0].spark_query_id
    assert first.values == second.values
    assert first.closed.is_set()


def test_two_states_of_one_streaming_query_need_names_of_their_own(
    stream: Stream, run_query: RunQuery, backend: Backend
) -> None:
    data = highest(stream(SCHEMA, batches(1)))
    one, two = backend.sink("one"), backend.sink("two")

    def clash(data: DataFrame, batch_id: int) -> None:
        one(data, batch_id)
        two(data, batch_id)

    with pytest.raises(StreamingQueryException, match=r"'one' and 'two'.*with query="):
        run_query(data, "update", clash, name="both")
    assert isinstance(two.failure, InvalidConfiguration)

    renamed = backend.sink("two", query="both-two")

    def together(data: DataFrame, batch_id: int) -> None:
        one(data, batch_id)
        renamed(data, batch_id)

    run_query(data, "update", together, name="both", checkpoint="anew")
    assert [run.query for run in backend.runs[-2:]] == ["both", "both-two"]
    assert backend.runs[-1].values == backend.runs[-2].values != {}


def test_one_sink_is_refused_to_a_second_query_while_the_first_one_runs(
    stream: Stream, run_query: RunQuery, backend: Backend, tmp_path: Path
) -> None:
    data = highest(stream(SCHEMA, batches(1)))
    sink = backend.sink()
    first = data.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "first"))
    running = first.foreachBatch(sink).start()
    try:
        running.processAllAvailable()
        with pytest.raises(StreamingQueryException, match=r"'last' was given to two streaming queries"):
            run_query(data, "update", sink, checkpoint="second")
        assert isinstance(sink.failure, InvalidConfiguration)
        stream(SCHEMA, batches(2))
        running.processAllAvailable()
    finally:
        running.stop()
    (run,) = backend.runs
    assert [epoch.batch_id for epoch in run.epochs] == [0, 1], "the first one has not noticed"
    run_query(data, "update", sink, checkpoint="second")
    assert len(backend.runs) == 2, "now it is free"
