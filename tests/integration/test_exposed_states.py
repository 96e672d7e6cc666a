"""The states of a transformWithState processor, read from servers: as Spark has them, without another shuffle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from keyhole import Client
from keyhole.errors import InvalidConfiguration
from keyhole.spark import queryable
from tests.integration.conftest import RunQuery, Service, Stream

pytestmark = pytest.mark.integration

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture(autouse=True)
def _rocksdb(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get(PROVIDER, None)
    spark.conf.set(PROVIDER, ROCKSDB)
    yield
    if before is None:
        spark.conf.unset(PROVIDER)
    else:
        spark.conf.set(PROVIDER, before)


class Highest(StatefulProcessor):
    """Per key the last value, all values since the last negative one, and how often each came."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._last = handle.getValueState("last", "v bigint")
        self._all = handle.getListState("values", "v bigint")
        self._times = handle.getMapState("times", "of bigint", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        from pyspark.sql import Row

        count = 0
        for row in sorted(rows, key=lambda row: row.n):
            count += 1
            if row.v < 0:
                for state in (self._last, self._all, self._times):
                    state.clear()
                continue
            self._last.update((row.v,))
            self._all.appendValue((row.v,))
            (times,) = self._times.getValue((row.v,)) or (0,)
            self._times.updateValue((row.v,), (times + 1,))
        yield Row(k=key[0], rows=count)

    def close(self) -> None:
        pass


EXPOSE: Any = {
    "last": queryable.ExposedValue("v bigint"),
    "values": queryable.ExposedList("v bigint"),
    "times": queryable.ExposedMap("of bigint", "n bigint"),
}
VALUES = [
    [("a", 3), ("a", 3), ("b", 5), ("c", 1), ("c", -1)],
    [("a", 4), ("b", -1), ("b", 7), ("b", 7)],
]


@pytest.mark.parametrize("key_groups", [8, 3], ids=["Spark's partitions", "shuffled once more"])
def test_the_states_of_a_processor_are_read_as_spark_has_them(
    stream: Stream, run_query: RunQuery, service: Service, application: str, key_groups: int
) -> None:
    numbers = iter(range(100))
    batches = [[{"k": k, "v": v, "n": next(numbers)} for k, v in batch] for batch in VALUES]
    exposing = queryable.QueryableProcessor(Highest(), key="k", expose=EXPOSE)
    own: list[tuple[int, str, int]] = []

    def take(rows: DataFrame, batch_id: int) -> None:
        own.extend((batch_id, row.k, row.rows) for row in rows.collect())

    sink = queryable.exposed(exposing, rows=take, key_groups=key_groups, config=service.config(application))
    run_query(exposing.transform(stream("k string, v long, n long", batches), "k string, rows int"), "update", sink)
    with Client(service.proxy) as client:
        last = {key: client.get(application, "last", key) for key in "abc"}
        assert {key: of.value.v for key, of in last.items() if of.found} == {"a": 4, "b": 7}
        values = {key: [of.v for of in client.scan(application, "values", key).values] for key in "abc"}
        assert values == {"a": [3, 3, 4], "b": [7, 7], "c": []}
        times = {key: [(of.map_key, of.value.n) for of in client.scan(application, "times", key)] for key in "abc"}
        assert times == {"a": [(3, 2), (4, 1)], "b": [(7, 2)], "c": []}
        assert {client.scan(application, state, "a").epoch for state in ("values", "times")} == {2}
    assert sorted(own) == [(0, "a", 2), (0, "b", 1), (0, "c", 2), (1, "a", 1), (1, "b", 3)]


def test_what_the_processor_says_is_not_said_again(spark: SparkSession, service: Service, application: str) -> None:
    exposing = queryable.QueryableProcessor(Highest(), key="k", expose=EXPOSE)
    with pytest.raises(InvalidConfiguration, match="delete_when, op can't be given: the processor says what is done"):
        queryable.exposed(exposing, op="o", delete_when="v < 0", config=service.config(application))
