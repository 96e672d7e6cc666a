"""A streaming query that is started again, and gets no new data: its states are read as if it did."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from keyhole import Client
from keyhole.errors import KeyholeError
from keyhole.rpc.retiring import retire
from keyhole.spark import queryable
from keyhole.spark.sink import Sink
from tests.support.streams import Service, file_stream
from tests.support.waiting import LONG_SECONDS, until

SCHEMA = "k string, n bigint"
ROWS = [[{"k": "a", "n": 1}, {"k": "b", "n": 2}], [{"k": "a", "n": 3}]]


def test_an_idle_query_whose_servers_have_lost_all_is_restored_and_its_next_batch_counts_once(
    spark: SparkSession, service: Service, application: str, tmp_path: Path
) -> None:
    sink = summing(service, application)
    started(spark, tmp_path, sink, batches=1).stop()
    # The server is as one that has come in the place of another: it knows nothing of the application.
    assert retire(service.server, application, timeout_seconds=LONG_SECONDS)
    with Client(service.proxy, timeout=LONG_SECONDS) as client:
        sums = Sums(client, application)
        assert sums.confirmed() is None
        again = summing(service, application)
        query = started(spark, tmp_path, again, batches=1)
        try:
            until(lambda: sums.confirmed() == [1, 2], LONG_SECONDS)
            # For longer than a lease: somebody renews it, on a machine that stands still meanwhile, too.
            time.sleep(5.0)
            until(lambda: sums.confirmed() == [1, 2], LONG_SECONDS)
            assert client.get(application, "sums", "a").epoch == 1
            file_stream(spark, tmp_path / "source", SCHEMA, ROWS)
            query.processAllAvailable()
            until(lambda: sums.confirmed() == [4, 2], LONG_SECONDS)
            assert client.get(application, "sums", "a").epoch == 2
            until(lambda: not caretakers(), LONG_SECONDS)
        finally:
            query.stop()


def test_a_query_that_is_stopped_before_its_first_batch_leaves_nothing_behind(
    spark: SparkSession, service: Service, application: str, tmp_path: Path
) -> None:
    """And another one, with the same sink, is none of its business."""
    sink = summing(service, application)
    started(spark, tmp_path, sink, batches=1).stop()
    with Client(service.proxy, timeout=LONG_SECONDS) as client:
        sums = Sums(client, application)
        query = started(spark, tmp_path, sink, batches=1)
        try:
            until(lambda: bool(caretakers()), LONG_SECONDS)
            # The lease of its last run has ended by now, so that another one has renewed it.
            time.sleep(5.0)
            until(lambda: sums.confirmed() == [1, 2], LONG_SECONDS)
        finally:
            query.stop()
        until(lambda: not caretakers(), LONG_SECONDS)
        until(lambda: sums.confirmed() is None, LONG_SECONDS)
        query = started(spark, tmp_path, sink, batches=2)
        query.stop()
        # Perhaps after the lease.
        assert [answer.value.n for answer in client.get_many(application, "sums", ["a", "b"])] == [4, 2]


def test_two_idle_queries_of_one_driver_are_both_restored_and_a_third_one_s_start_changes_nothing(
    spark: SparkSession, service: Service, application: str, tmp_path: Path
) -> None:
    """They have no other names than Spark's, and one and two states."""
    config = service.config(application)

    def sum_of(state: str) -> Sink:
        return queryable.reducing(state, key="k", reducers={"n": "sum"}, key_groups=4, config=config)

    def both_started() -> list[StreamingQuery]:
        sinks = {"one": sum_of("sums"), "two": queryable.together(sum_of("left"), sum_of("right"), config=config)}
        return [started(spark, tmp_path / name, sink, batches=1, name=name) for name, sink in sinks.items()]

    for query in both_started():
        query.stop()
    assert retire(service.server, application, timeout_seconds=LONG_SECONDS)
    with Client(service.proxy, timeout=LONG_SECONDS) as client:
        states = [Sums(client, application, state) for state in ("sums", "left", "right")]
        assert [of.confirmed() for of in states] == [None] * 3
        queries = both_started()
        try:
            until(lambda: [of.confirmed() for of in states] == [[1, 2]] * 3, LONG_SECONDS)
            data = file_stream(spark, tmp_path / "source", SCHEMA, ROWS[:1])
            third = data.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).format("noop")
            queries.append(third.start())
            assert {"keyhole-caretaker-one", "keyhole-caretaker-two"} <= set(caretakers())
            # For longer than the third one's first batch is waited for, and than a lease.
            time.sleep(8.0)
            until(lambda: [of.confirmed() for of in states] == [[1, 2]] * 3, LONG_SECONDS)
        finally:
            for query in queries:
                query.stop()
        until(lambda: not caretakers(), LONG_SECONDS)


def summing(service: Service, application: str) -> Sink:
    config = service.config(application)
    return queryable.reducing("sums", key="k", reducers={"n": "sum"}, key_groups=4, query="idle", config=config)


def started(spark: SparkSession, directory: Path, sink: Sink, *, batches: int, name: str = "") -> StreamingQuery:
    """Of so many files, and it has taken them all."""
    directory.mkdir(exist_ok=True)
    writer = file_stream(spark, directory / "source", SCHEMA, ROWS[:batches]).writeStream
    if name:
        writer = writer.queryName(name)
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).foreachBatch(sink).start()
    query.processAllAvailable()
    return query


class Sums:
    """What readers get of the state who want nothing stale."""

    def __init__(self, client: Client, application: str, state: str = "sums") -> None:
        self._client = client
        self._application = application
        self._state = state

    def confirmed(self) -> list[int] | None:
        """None: nobody confirms it."""
        try:
            answers = self._client.get_many(self._application, self._state, ["a", "b"], stale="never", timeout=5)
        except KeyholeError:
            return None
        return [answer.value.n for answer in answers]


def caretakers() -> list[str]:
    """Those of these tests' queries: other tests run in this process, too."""
    names = {f"keyhole-caretaker-{query}" for query in ("idle", "one", "two")}
    return [thread.name for thread in threading.enumerate() if thread.name in names]
