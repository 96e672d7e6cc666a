"""What batches read of a broadcast state is written where it has changed, and kept while a batch may ask for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from keyhole.cli.main import main
from keyhole.encoding.columnar import ipc_stream
from keyhole.spark import queryable
from tests.support.micro_batches import MicroBatches
from tests.support.streams import Service

SCHEMA = "k string, v long"
KEPT_BATCHES = 2
RULES = 2_000


@pytest.fixture(scope="module")
def batches(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MicroBatches]:
    kept = {"spark.sql.streaming.minBatchesToRetain": str(KEPT_BATCHES)}
    with MicroBatches(spark, tmp_path_factory.mktemp("pins"), SCHEMA, settings=kept) as batches:
        yield batches


@pytest.fixture
def announce(spark: SparkSession, service: Service, application: str) -> Callable[[int], None]:
    """Broadcasts all rules, of which one has this threshold, at an epoch of its own."""
    config, epochs = service.config(application), iter(range(100))
    sink = queryable.broadcast("rules", key="k", query="rules", config=config, on_new_checkpoint="reset")
    rows = spark.range(RULES).selectExpr("concat('k', id) as k", "id as threshold")

    def announce(threshold: int) -> None:
        changed = rows.selectExpr("k", f"if(k = 'k0', {threshold}, threshold) as threshold")
        assert sink.bootstrap(changed, name=f"rules-{next(epochs)}")

    return announce


@pytest.fixture
def rules(service: Service, application: str) -> queryable.BroadcastReader:
    return queryable.BroadcastReader(f"{application}/rules", proxy=service.proxy)


@pytest.fixture
def folder(batches: MicroBatches, application: str) -> Path:
    return batches.checkpoint / "keyhole" / "broadcast" / f"{application}.rules"


def test_what_batches_have_read_is_kept_as_long_as_spark_keeps_their_logs(
    batches: MicroBatches, announce: Callable[[int], None], rules: queryable.BroadcastReader, folder: Path
) -> None:
    def process(data: DataFrame, batch_id: int) -> int:
        rules.read(data)
        return batch_id

    for threshold in range(2):
        announce(threshold)
        numbers = [batches.run([{"k": "k0", "v": number}], process) for number in range(4)]
        kept = sorted(int(path.name) for path in folder.glob("[0-9]*"))
        assert kept == [numbers[0], *numbers[-KEPT_BATCHES:]], "they have all read what the first one had"


def test_rules_that_stay_are_written_once_and_are_no_updates_also_at_a_later_epoch(
    batches: MicroBatches, announce: Callable[[int], None], rules: queryable.BroadcastReader, folder: Path
) -> None:
    def process(data: DataFrame, batch_id: int) -> tuple[int, int, int, int]:
        updates = rules.updates(data).count()
        return updates, rules.read(data).count(), rules.epoch(data), (folder / str(batch_id)).stat().st_size

    read = []
    for threshold in (0, 0, 1):
        announce(threshold)
        read += [batches.run([{"k": "k0", "v": number}], process) for number in range(2)]
    updates, entries, epochs, written = zip(*read, strict=True)
    assert updates == (RULES, 0, 0, 0, 1, 0)
    assert entries == (RULES,) * 6
    assert epochs[::2] == epochs[1::2]
    assert epochs[0] < epochs[2] < epochs[4]
    assert [size > 10 * RULES for size in written] == [True, False, False, False, True, False]
    assert max(written[1:4]) < 200


def test_what_earlier_versions_wrote_is_read_as_it_is(
    batches: MicroBatches, announce: Callable[[int], None], rules: queryable.BroadcastReader, folder: Path
) -> None:
    """They wrote the table with its epoch, in each batch."""
    results: list[tuple[int, int, int]] = []

    def process(data: DataFrame, batch_id: int) -> None:
        results.append((rules.epoch(data), rules.read(data).count(), rules.updates(data).count()))

    def before(data: DataFrame, batch_id: int) -> None:
        process(data, batch_id)
        head, _, content = (folder / str(batch_id)).read_bytes().partition(b"\n")
        table = pa.ipc.open_stream(content).read_all()
        epoch = {b"keyhole_epoch": json.loads(head)["note"].encode()}
        old = ipc_stream(table.replace_schema_metadata(table.schema.metadata | epoch))
        (folder / str(batch_id)).write_bytes(old)
        process(data, batch_id)

    announce(0)
    batches.run([{"k": "k0", "v": 0}], before)
    batches.run([{"k": "k0", "v": 1}], process)
    announce(1)
    batches.run([{"k": "k0", "v": 2}], process)
    epochs = [epoch for epoch, _, _ in results]
    assert epochs[0] == epochs[1] == epochs[2] < epochs[3]
    assert [of[1:] for of in results] == [(RULES, RULES), (RULES, RULES), (RULES, 0), (RULES, 1)]


def test_a_job_from_a_savepoint_knows_what_its_last_batch_had_read(
    spark: SparkSession,
    service: Service,
    application: str,
    announce: Callable[[int], None],
    rules: queryable.BroadcastReader,
    tmp_path: Path,
) -> None:
    """An earlier batch's file has it."""
    old, new = f"{application}-old", f"{application}-new"

    def run(job: str, batches: MicroBatches, announced: list[int]) -> list[tuple[int, int]]:
        sink = queryable.value("last", key="k", query="payments", key_groups=4, config=service.config(job))

        def process(data: DataFrame, batch_id: int) -> tuple[int, int]:
            result = rules.updates(data).count(), rules.epoch(data)
            sink(data, batch_id)
            return result

        results = []
        for number, threshold in enumerate(announced):
            if number == 0 or threshold != announced[number - 1]:
                announce(threshold)
            results.append(batches.run([{"k": "k0", "v": number}], process))
        return results

    kafka, saved, laid = ("--bootstrap-servers", service.bootstrap_servers), str(tmp_path / "saved"), tmp_path / "laid"
    with MicroBatches(spark, tmp_path, SCHEMA, name="payments") as batches:
        results = run(old, batches, [0, 0, 0])
        batches.stop()
        checkpoint = "--checkpoint", f"payments={batches.checkpoint}"
        assert main(["savepoint", "create", old, "--to", saved, *kafka, *checkpoint]) == 0
        checkpoint = "--checkpoint", f"payments={laid}"
        assert main(["savepoint", "restore", saved, *kafka, "--application", new, *checkpoint]) == 0
        read = laid / "keyhole" / "broadcast" / f"{application}.rules"
        assert sorted(path.name for path in read.iterdir()) == ["0", "2"]
        # In its place, as Spark's source of files must be where it was.
        shutil.rmtree(batches.checkpoint)
        laid.rename(batches.checkpoint)
        results += run(new, batches, [0, 1, 1])
    assert [updates for updates, _ in results] == [RULES, 0, 0, 0, 1, 0]
    epochs = [epoch for _, epoch in results]
    assert epochs == sorted(epochs)
