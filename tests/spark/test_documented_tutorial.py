"""What docs/first-state.md shows in Python, word for word: a project's job reads a topic, and servers add up."""

from __future__ import annotations

import json
import runpy
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from keyhole import Client
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.cli.main import main
from keyhole.spark.session import has_kafka
from tests.support.snippets import blocks
from tests.support.streams import Service, run_to_end
from tests.support.waiting import LONG_SECONDS


def test_a_topic_takes_the_place_of_the_folder_and_servers_add_up(
    spark: SparkSession, kafka: str, service: Service, application: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reducing, from_topic = blocks("docs/first-state.md")
    assert main(["new", str(tmp_path / "shop")]) == 0
    job = runpy.run_path(str(tmp_path / "shop" / "job.py"), run_name="job")
    config = service.config(application)
    for name, value in {
        "APPLICATION": application,
        "SERVERS": ",".join(config.servers),
        "BOOTSTRAP_SERVERS": kafka,
        "EPOCH_DEADLINE_SECONDS": str(config.epoch_deadline_seconds),
    }.items():
        monkeypatch.setenv(f"KEYHOLE_JOB_{name}", value)

    topic = f"orders-{uuid.uuid4().hex}"
    make_topics(kafka, {topic: 1}, LONG_SECONDS)
    producer = Producer({"bootstrap.servers": kafka})
    for customer, amount in (("c1", 4.5), ("c2", 12.0), ("c1", 30.0)):
        producer.produce(topic, json.dumps({"customer": customer, "product": "tea", "amount": amount}))
    assert producer.flush(LONG_SECONDS) == 0

    def session(of: str, *, kafka: bool) -> SparkSession:
        """The one that the tests share: another one would change its settings."""
        assert (of, kafka, has_kafka(spark)) == ("shop", True, True)
        return spark

    names: dict[str, Any] = {**job, "session": session}
    assert '"orders"' in from_topic
    exec(from_topic.replace('"orders"', f'"{topic}"'), names)
    assert "\nqueryable.reducing(" in reducing
    exec(reducing.replace("\nqueryable.", "\nsink = queryable."), names)
    run_to_end(names["orders"], "append", names["sink"], tmp_path / "checkpoint")

    with Client(service.proxy, timeout=LONG_SECONDS) as client:
        first, second = (client.get(application, "totals", customer).value for customer in ("c1", "c2"))
    assert (first.orders, first.spent, first.largest) == (2, 34.5, 30.0)
    assert (second.orders, second.spent, second.largest) == (1, 12.0, 12.0)
