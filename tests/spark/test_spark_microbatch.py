"""What Keyhole relies on in Spark's foreachBatch; these fail first where another version of Spark differs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from keyhole.errors import InvalidConfiguration
from keyhole.spark.driver.data_frames import classic
from keyhole.spark.driver.layout import HashLayout, layout_of
from keyhole.spark.driver.micro_batch import MicroBatch, OutputMode, current
from keyhole.spark.driver.partitioning import by_key_group
from tests.support.micro_batches import session_settings
from tests.support.streams import file_stream, run_to_end

SCHEMA = "k string, g int, t timestamp, v double"
BATCHES = [
    [{"k": f"k{i % 7}", "g": i % 3, "t": f"2020-01-01T00:{n * 10 + i % 10:02}:00Z", "v": i + n} for i in range(20)]
    for n in range(2)
]
FEW = [{"k": "a", "v": 1.0}, {"k": "b", "v": 2.0}]


def count_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    rows = sorted(str(row) for batch in batches for row in batch.to_pylist())
    yield pa.RecordBatch.from_pydict(
        {"partition": [context.partitionId()], "attempt": [context.taskAttemptId()], "rows": [str(rows)]}
    )


@dataclass
class Seen:
    """What two queries have been in their batches: one that groups by k and g, and a stateless one.

    Attributes:
        batches: Of the grouped one: of all rows, of few, of all, and of none, because the watermark has moved on.
        again: The last of these, run again.
        tasks: By run, the rows of a batch of few that each partition's task had.
        of_nothing: The same where Spark proves that there are none.
    """

    metadata: Path
    batches: list[MicroBatch] = field(default_factory=list)
    again: list[MicroBatch] = field(default_factory=list)
    layouts: dict[str, HashLayout | None] = field(default_factory=dict)
    exchanges: dict[str, int] = field(default_factory=dict)
    tasks: list[list[Row]] = field(default_factory=list)
    of_nothing: list[Row] = field(default_factory=list)

    def look(self, case: str, data: DataFrame, batch_id: int, key: list[str], key_groups: int = 64) -> None:
        frame = classic(data)
        execution = current(frame, batch_id).execution
        self.layouts[case] = layout_of(frame, execution)
        rows, partitions = by_key_group(frame, layout_of(frame, execution), key, key_groups)
        numbers = F.spark_partition_id(), F.pmod(F.hash(*key), F.lit(partitions))
        assert rows.select(*numbers).filter(numbers[0] != numbers[1]).count() == 0, case
        self.exchanges[case] = classic(rows)._jdf.queryExecution().executedPlan().toString().count("Exchange ")

    def grouped(self, data: DataFrame, batch_id: int) -> None:
        self.look("whole batch", data, batch_id, ["k", "g"])
        self.look("key in another order", data, batch_id, ["g", "k"])
        self.look("part of the key", data, batch_id, ["k"])
        self.look("partitions don't divide", data, batch_id, ["k", "g"], 6)
        persisted = data.repartition(4, "k", "g").persist()
        self.look("shuffled and persisted", persisted, batch_id, ["k", "g"])
        persisted.unpersist()
        self.look("changed rows", data.filter("m > 3"), batch_id, ["k", "g"])
        self.look("grouped again", data.groupBy("k").count(), batch_id, ["k"])
        joined = data.join(data.select("g").distinct(), "g")
        self.look("joined and grouped", joined.groupBy("k").count(), batch_id, ["k"])
        numbered = data.withColumn("n", F.row_number().over(Window.partitionBy("k").orderBy("m")))
        self.look("numbered", numbered, batch_id, ["k"])
        # Spark leaves out the window that nobody reads, and its shuffle: 4 partitions are by k and g again.
        self.look("numbered in vain", numbered.select("k", "m"), batch_id, ["k"])

    def stateless(self, data: DataFrame, batch_id: int) -> None:
        self.look("stateless", data, batch_id, ["k"])
        self.look("grouped in the function", data.groupBy("k").count(), batch_id, ["k"])

    def twice(self, data: DataFrame) -> None:
        schema = "partition long, attempt long, rows string"
        self.tasks += [data.mapInArrow(count_rows, schema).collect() for _ in range(2)]
        self.of_nothing += data.filter("false").mapInArrow(count_rows, schema).collect()


@pytest.fixture(scope="module")
def seen(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    directory = tmp_path_factory.mktemp("batches")
    checkpoint = directory / "checkpoint"
    seen = Seen(checkpoint / "metadata")

    def see(data: DataFrame, batch_id: int) -> None:
        seen.batches.append(current(classic(data), batch_id))
        data.collect()
        if batch_id == 0:
            seen.grouped(data, batch_id)
        elif batch_id == 1:
            seen.twice(data)

    def see_again(data: DataFrame, batch_id: int) -> None:
        seen.again.append(current(classic(data), batch_id))
        data.collect()

    data = file_stream(spark, directory / "source", SCHEMA, [BATCHES[0], FEW, BATCHES[1]])
    counts = data.withWatermark("t", "1 minute").groupBy("k", "g").agg(F.max("v").alias("m")).select("m", "g", "k")
    with session_settings(spark, {"spark.sql.shuffle.partitions": "4"}):
        run_to_end(counts, "update", see, checkpoint, "counts")
    for name in ("3", ".3.crc"):
        (checkpoint / "commits" / name).unlink()
    run_to_end(counts, "update", see_again, checkpoint, "counts")
    stateless = file_stream(spark, directory / "stateless", SCHEMA, BATCHES[:1])
    run_to_end(stateless, "append", seen.stateless, directory / "checkpoint of the stateless one")
    return seen


def facts(batch: MicroBatch) -> tuple[object, ...]:
    return batch.query_id, batch.name, batch.output_mode, batch.offsets, batch.watermark_ms


def test_a_batch_tells_its_query_mode_watermark_and_offsets(seen: Seen) -> None:
    first = seen.batches[0]
    assert uuid.UUID(first.query_id)
    assert first.query_id in seen.metadata.read_text()
    assert [batch.name for batch in seen.batches] == ["counts"] * 4
    assert [batch.output_mode for batch in seen.batches] == [OutputMode.UPDATE] * 4
    # The fourth has no rows: Spark runs it because the watermark has moved.
    assert [batch.offsets for batch in seen.batches] == [f'[{{"logOffset":{offset}}}]' for offset in (0, 1, 2, 2)]
    # The highest time of the batches before, 00:09 and 00:19, less the minute.
    assert [batch.watermark_ms for batch in seen.batches] == [0, 1577837280000, 1577837280000, 1577837880000]


def test_a_batch_tells_the_same_when_it_is_run_again(seen: Seen) -> None:
    (again,), last = seen.again, seen.batches[-1]
    assert facts(again) == facts(last)
    assert again.run_id != last.run_id


def test_outside_of_a_batch_there_is_nothing_to_tell(spark: SparkSession) -> None:
    with pytest.raises(InvalidConfiguration, match=r"writeStream\.foreachBatch"):
        current(classic(spark.range(1)), 0)


def test_a_stream_grouped_by_the_key_needs_no_second_shuffle_and_any_other_gets_one(seen: Seen) -> None:
    layouts = seen.layouts
    assert layouts["whole batch"] == HashLayout(("k", "g"), 4)
    # A join and a window may be planned otherwise when the rows are asked for.
    assert layouts["grouped again"] == HashLayout(("k",), 4)
    assert layouts["joined and grouped"] is layouts["numbered"] is layouts["numbered in vain"] is None
    # (The plan below a micro-batch's own rows isn't shown: each Exchange is one that was added.)
    assert seen.exchanges == {
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


def test_a_task_runs_for_every_partition_and_a_second_run_in_one_call_gives_the_same_rows(seen: Seen) -> None:
    for rows in seen.tasks:
        assert [row.partition for row in rows] == [0, 1, 2, 3], "empty partitions are run too"
    first, second = seen.tasks
    assert len({row.rows for row in first}) > 1
    assert [row.rows for row in first] == [row.rows for row in second]
    attempts = [row.attempt for row in (*first, *second)]
    assert len(set(attempts)) == len(attempts), "attempt ids are unique over the runs"


def test_a_plan_that_spark_proves_to_be_empty_has_no_partitions_and_runs_nothing(seen: Seen) -> None:
    assert seen.of_nothing == []
