"""What Keyhole relies on in Spark's foreachBatch; these fail first where another version of Spark differs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from keyhole.errors import InvalidConfiguration
from keyhole.spark.batch import MicroBatch, OutputMode, classic, current
from keyhole.spark.partitioning import HashLayout, by_key_group, layout_of
from tests.support.streams import RunQuery, Stream

SCHEMA = "k string, g int, t timestamp, v double"
BATCHES = [
    [{"k": f"k{i % 7}", "g": i % 3, "t": f"2020-01-01T00:{n * 10 + i % 10:02}:00Z", "v": i + n} for i in range(20)]
    for n in range(2)
]


def facts(batch: MicroBatch) -> tuple[object, ...]:
    return batch.query_id, batch.name, batch.output_mode, batch.offsets, batch.watermark_ms


def test_a_batch_tells_its_query_mode_watermark_and_offsets_and_the_same_when_it_is_run_again(
    stream: Stream, run_query: RunQuery, tmp_path: Path
) -> None:
    seen: list[MicroBatch] = []

    def see(data: DataFrame, batch_id: int) -> None:
        seen.append(current(classic(data), batch_id))
        data.collect()

    counts = stream(SCHEMA, BATCHES[:2]).withWatermark("t", "1 minute").groupBy("k").agg(F.max("v").alias("m"))
    run_query(counts, "update", see, name="counts")
    first, last = seen[0], seen[-1]
    assert uuid.UUID(first.query_id)
    assert first.query_id in (tmp_path / "checkpoint" / "metadata").read_text()
    assert [batch.name for batch in seen] == ["counts"] * 3
    assert [batch.output_mode for batch in seen] == [OutputMode.UPDATE] * 3
    # The third has no rows: Spark runs it because the watermark has moved.
    assert [batch.offsets for batch in seen] == ['[{"logOffset":0}]', '[{"logOffset":1}]', '[{"logOffset":1}]']
    # The highest time of the batches before, 00:09 and 00:19, less the minute.
    assert [batch.watermark_ms for batch in seen] == [0, 1577837280000, 1577837880000]

    for name in ("2", ".2.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    seen.clear()
    run_query(counts, "update", see, name="counts")
    assert facts(seen[0]) == facts(last), "the replay looks like the batch it repeats"
    assert seen[0].run_id != last.run_id


def test_outside_of_a_batch_there_is_nothing_to_tell(spark: SparkSession) -> None:
    with pytest.raises(InvalidConfiguration, match=r"writeStream\.foreachBatch"):
        current(classic(spark.range(1)), 0)


def test_a_stream_grouped_by_the_key_needs_no_second_shuffle_and_any_other_gets_one(
    stream: Stream, run_query: RunQuery
) -> None:
    layouts: dict[str, HashLayout | None] = {}
    exchanges: dict[str, int] = {}

    def look(case: str, data: DataFrame, batch_id: int, key: list[str], key_groups: int) -> None:
        frame = classic(data)
        execution = current(frame, batch_id).execution
        layouts[case] = layout_of(frame, execution)
        rows, partitions = by_key_group(frame, layout_of(frame, execution), key, key_groups)
        numbers = F.spark_partition_id(), F.pmod(F.hash(*key), F.lit(partitions))
        assert rows.select(*numbers).filter(numbers[0] != numbers[1]).count() == 0, case
        exchanges[case] = classic(rows)._jdf.queryExecution().executedPlan().toString().count("Exchange ")

    def grouped(data: DataFrame, batch_id: int) -> None:
        look("whole batch", data, batch_id, ["k", "g"], 64)
        look("key in another order", data, batch_id, ["g", "k"], 64)
        look("part of the key", data, batch_id, ["k"], 64)
        look("partitions don't divide", data, batch_id, ["k", "g"], 6)
        persisted = data.repartition(4, "k", "g").persist()
        look("shuffled and persisted", persisted, batch_id, ["k", "g"], 64)
        persisted.unpersist()
        look("changed rows", data.filter("m > 3"), batch_id, ["k", "g"], 64)
        look("grouped again", data.groupBy("k").count(), batch_id, ["k"], 64)
        joined = data.join(data.select("g").distinct(), "g")
        look("joined and grouped", joined.groupBy("k").count(), batch_id, ["k"], 64)
        numbered = data.withColumn("n", F.row_number().over(Window.partitionBy("k").orderBy("m")))
        look("numbered", numbered, batch_id, ["k"], 64)
        # Spark leaves out the window that nobody reads, and its shuffle: 4 partitions are by k and g again.
        look("numbered in vain", numbered.select("k", "m"), batch_id, ["k"], 64)

    counts = stream(SCHEMA, BATCHES[:1]).groupBy("k", "g").agg(F.max("v").alias("m")).select("m", "g", "k")
    run_query(counts, "update", grouped)

    def stateless(data: DataFrame, batch_id: int) -> None:
        look("stateless", data, batch_id, ["k"], 64)
        look("grouped in the function", data.groupBy("k").count(), batch_id, ["k"], 64)

    run_query(stream(SCHEMA, BATCHES[:1]), "append", stateless, checkpoint="stateless")
    assert layouts["whole batch"] == HashLayout(("k", "g"), 4)
    # A join and a window may be planned otherwise when the rows are asked for.
    assert layouts["grouped again"] == HashLayout(("k",), 4)
    assert layouts["joined and grouped"] is layouts["numbered"] is layouts["numbered in vain"] is None
    # (The plan below a micro-batch's own rows isn't shown: each Exchange is one that was added.)
    assert exchanges == {
        "whole batch": 0,
        "key in another order": 1,
        "part of the key": 1,
        "partitions don't divide": 1,
        "shuffled and persisted": 1,
        "changed rows": 1,
        "grouped again": 1,
        "joined and grouped": 4,
        "numbered": 2,
        "numbered in vain": 1,
        "stateless": 1,
        "grouped in the function": 2,
    }


def count_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    rows = sorted(str(row) for batch in batches for row in batch.to_pylist())
    yield pa.RecordBatch.from_pydict(
        {"partition": [context.partitionId()], "attempt": [context.taskAttemptId()], "rows": [str(rows)]}
    )


def test_a_task_runs_for_every_partition_and_a_second_run_in_one_call_gives_the_same_rows(
    stream: Stream, run_query: RunQuery
) -> None:
    def twice(data: DataFrame, batch_id: int) -> None:
        schema = "partition long, attempt long, rows string"
        runs = [data.mapInArrow(count_rows, schema).collect() for _ in range(2)]
        for rows in runs:
            assert [row.partition for row in rows] == [0, 1, 2, 3], "empty partitions are run too"
        assert len({row.rows for row in runs[0]}) > 1
        assert [row.rows for row in runs[0]] == [row.rows for row in runs[1]]
        attempts = [row.attempt for rows in runs for row in rows]
        assert len(set(attempts)) == len(attempts), "attempt ids are unique over the runs"
        # But a plan that Spark proves to be empty has no partitions, and runs nothing.
        assert data.filter("false").mapInArrow(count_rows, schema).collect() == []

    few = [[{"k": "a", "v": 1.0}, {"k": "b", "v": 2.0}]] * 2
    counts = stream(SCHEMA, few).groupBy("k").agg(F.sum("v").alias("total"))
    run_query(counts, "update", twice)
