"""Rules that a processor goes by: another application's broadcast state, beside the rows that it is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from keyhole.errors import InvalidConfiguration
from keyhole.spark import queryable
from tests.support.scenario import Scenarios

pytestmark = pytest.mark.usefixtures("rocksdb")


class Beyond(StatefulProcessor):
    """Per key how many values were beyond the threshold that was looked up beside them; -1: there was none."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._beyond = handle.getValueState("beyond", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        (n,) = self._beyond.get() or (0,)
        for row in rows:
            n = -1 if row.rule is None else n + (row.v > row.rule["threshold"])
        self._beyond.update((n,))
        return iter(())

    def close(self) -> None:
        pass


def test_a_processor_is_given_beside_each_row_the_rule_of_its_key_as_it_is_when_the_batch_runs(
    spark: SparkSession, scenarios: Scenarios
) -> None:
    scenario, rules = scenarios(), scenarios()

    def announce(threshold: int) -> None:
        sink = queryable.broadcast("rules", key="k", query="rules", config=rules.config, on_new_checkpoint="reset")
        rows = spark.createDataFrame([("a", threshold)], "k string, threshold long")
        assert sink.bootstrap(rows, name=f"rules-{threshold}")

    announce(10)
    of, proxy = f"{rules.application}/rules", rules.service.proxy
    data = scenario.stream("k string, v long", [[{"k": k, "v": v} for k in "ab" for v in (5, 15)]] * 2)
    processor = queryable.QueryableProcessor(
        Beyond(), key="k", expose={"beyond": queryable.ExposedValue("n bigint", name="beyond_the_rule")}
    )
    sink = queryable.exposed(processor, query="main", key_groups=4, config=scenario.config)
    beyond: list[int] = []

    def feed(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)
        beyond.append(scenario.get("beyond_the_rule", "a").value.n)
        announce(1 - batch_id)

    enriched = queryable.lookup(data, of, key="k", proxy=proxy, into="rule")
    scenario.run(processor.transform(enriched, "k string"), "update", feed)
    assert beyond == [1, 3]
    assert scenario.get("beyond_the_rule", "b").value.n == -1
    # What is the same for a batch that is run again is read where there is a batch, which is behind the processor.
    with pytest.raises(InvalidConfiguration, match="foreachBatch"):
        queryable.BroadcastReader(of, proxy=proxy).read(data)
