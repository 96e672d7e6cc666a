"""`keyhole job NAME`: Kafka, Spark, a server, a proxy, its source, and its recount; of one job while it is killed.

The others, with what tests share in place of processes of their own: tests/spark/test_whole_jobs.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keyhole.demo.described_jobs import described
from tests.support.embedded import KEYHOLE, assert_nothing_is_left, environ, ran
from tests.support.object_store import ObjectStore

PATIENTS = 20
# A chunk that is lost is a gap: with more, hardly a wave would be long enough for a breathing rate.
MALFORMED = "0.005"
ACCOUNTS_BEFORE = 60
# Of some hundred payments some are alerts.
FEW_PAYMENTS = {
    "KEYHOLE_PAYMENTS_ACCOUNTS": "50",
    "KEYHOLE_PAYMENTS_RATE": "30",
    "KEYHOLE_PAYMENTS_FRAUDS": "0.2",
}


@pytest.fixture
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Payments of before, two of each account: of those that pay in the run, and of others. Where no run looks."""
    folder = tmp_path_factory.mktemp("history")
    accounts = [f"account-{number}" for number in range(ACCOUNTS_BEFORE)] * 2
    table = pa.table({"account": accounts, "cents": pa.array(range(1, len(accounts) + 1), pa.int64())})
    pq.write_table(table, folder / "payments.parquet")
    return folder


def test_a_job_agrees_with_its_recount_keeps_what_it_cant_take_and_leaves_nothing(
    tmp_path: Path, object_store: ObjectStore
) -> None:
    name = "vital_signs"
    command = [*KEYHOLE, "job", name, "--seconds", "10", "--verify", "--json"]
    # What has waited while a busy machine started Spark is to be caught up with, too.
    few = {
        # Of so many, there are always some waves long enough that rates are demanded; and there is time to close blobs.
        "KEYHOLE_CHUNKS_PATIENTS": str(PATIENTS),
        "KEYHOLE_CHUNKS_RATE": "50",
        "KEYHOLE_VITAL_SIGNS_BLOB_SECONDS": "20",
        f"{described(name).source_prefix}MALFORMED": MALFORMED,
        # In a folder: tests/spark/test_vital_signs_reads.py
        "KEYHOLE_VITAL_SIGNS_FILES": object_store.at("of-a-job"),
    }
    settings = environ(tmp_path, **few, **object_store.environ)
    done = ran(command, settings, 1400)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["keys"] == result["agreed"] > 0
    assert result["mismatches"] == 0
    assert rejected_topics(result) == {described(name).topic, *described(name).more_topics.values()}
    assert result["epochs"] > 1
    assert sorted(result["states"]) == list(described(name).states)
    assert all(entries > 0 for entries in result["states"].values()), result["states"]
    of_signal = ["its segments", "a range of them", "its chunks"]
    of_patient = [*2 * of_signal, "the piece of wave", "its rates", "the oxygen saturation"]
    assert result["keys"] == len(of_patient) * PATIENTS + len(["a heart rate", "a breathing rate"])
    # What is in the list no more is in a file, or some of the chunks would differ.
    assert result["states"]["open_chunks"] < 0.75 * result["events"], result
    assert any(file.endswith(".parquet") for file in object_store.names("of-a-job"))
    assert_nothing_is_left(tmp_path, done.stderr)


def test_rules_that_change_are_those_of_each_batch_though_server_and_driver_are_killed(
    tmp_path: Path, history: Path
) -> None:
    command = [*KEYHOLE, "job", "fraud_detection", "--seconds", "20", "--verify", "--chaos", "--json"]
    more = {"KEYHOLE_PAYMENTS_MALFORMED": "0.02", "KEYHOLE_FRAUD_DETECTION_HISTORY": str(history)}
    settings = environ(tmp_path, **FEW_PAYMENTS, **more)
    done = ran(command, settings, 1400)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["keys"] == result["agreed"] > 0
    assert result["mismatches"] == 0
    assert rejected_topics(result) == {"payments", "rules", "aggregations"}
    assert sorted(result["states"]) == list(described("fraud_detection").states)
    assert all(entries > 0 for entries in result["states"].values()), result["states"]
    assert result["states"]["spent"] == ACCOUNTS_BEFORE
    assert "chaos: kill -9 of the state server\nstarting server-0 again" in done.stderr
    assert "chaos: kill -9 of the driver\nstarting job again" in done.stderr
    assert_nothing_is_left(tmp_path, done.stderr)


def rejected_topics(result: dict[str, Any]) -> set[str]:
    """Those of which some records can't be taken, all of which were found among the dead letters."""
    return {topic for topic, records in result["rejected_by_topic"].items() if records > 0}
