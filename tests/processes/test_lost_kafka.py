"""Kafka is lost with all that it held: a savepoint and the sources are what is left."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from keyhole import Client
from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka
from tests.spark.test_savepoints import QUERY, STATE, STATELESS, done
from tests.support.streams import Service, Stream, served
from tests.support.waiting import LONG_SECONDS

SCHEMA = "k string, v bigint"


@pytest.mark.usefixtures("spark")
def test_once_kafka_is_lost_with_all_that_it_held_the_job_goes_on_from_a_savepoint_in_an_empty_one(
    stream: Stream, jars: list[Path], java: Java, application: str, tmp_path: Path
) -> None:
    """Its source are files, which outlive Kafka: what came after the savepoint is read once more."""
    draw, directory, savepoint = random.Random(1), tmp_path / "service", str(tmp_path / "savepoint")
    batches = [[{"k": f"key-{draw.randrange(30)}", "v": draw.randrange(1000)} for _ in range(50)] for _ in range(6)]

    def feed(until: int, checkpoint: Path, service: Service) -> None:
        with STATELESS.running(stream(SCHEMA, batches[:until]), checkpoint, service, application) as job:
            job.processAllAvailable()
        wanted = Counter[str]()
        for row in (row for batch in batches[:until] for row in batch):
            wanted[row["k"]] += row["v"]
        with Client(service.proxy, timeout=LONG_SECONDS) as client:
            answers = client.get_many(application, STATE, list(wanted))
        assert {key: answer.value.v for key, answer in zip(wanted, answers, strict=True) if answer.found} == wanted

    lost = LocalKafka(tmp_path / "lost", jars, java)
    with lost, served(lost.bootstrap_servers, directory) as service:
        feed(3, tmp_path / "old", service)
        kafka = ["--bootstrap-servers", lost.bootstrap_servers]
        given = ["--checkpoint", f"{QUERY}={tmp_path / 'old'}"]
        (saved,) = done("create", application, "--to", savepoint, *given, *kafka)
        feed(5, tmp_path / "old", service)
        lost.kill()
    shutil.rmtree(tmp_path / "lost")
    shutil.rmtree(tmp_path / "old")

    with LocalKafka(tmp_path / "empty", jars, java) as empty:
        kafka = ["--bootstrap-servers", empty.bootstrap_servers]
        assert not AdminClient({"bootstrap.servers": empty.bootstrap_servers}).list_topics(timeout=LONG_SECONDS).topics
        (restored,) = done("restore", savepoint, "--checkpoint", f"{QUERY}={tmp_path / 'new'}", *kafka)
        assert restored["next_epoch"] == saved["epoch"] + 1 == 4
        # Where the stores are that the server of the lost one has filled.
        with served(empty.bootstrap_servers, directory) as service:
            feed(6, tmp_path / "new", service)
