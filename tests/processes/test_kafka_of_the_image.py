"""The image's Kafka, without its image: what clients find while the address that they are told leads nowhere."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from keyhole.changelog.kafka.admin import Topics
from keyhole.changelog.kafka.clients import Deadline
from keyhole.changelog.kafka.reader import CommittedLog
from keyhole.changelog.kafka.transactions import PartitionAppend, Transactions
from keyhole.config import KafkaConfig
from keyhole.local import kafka_container
from keyhole.local.java import Java
from keyhole.local.ports import free_ports
from tests.support.waiting import LONG_SECONDS, until

TOPIC = "keyhole.image.control"


@pytest.fixture
def lost(jars: list[Path], java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where clients from outside reach a broker that nobody finds at the address that it tells those beside it."""
    itself, controller, port, outside, nowhere = free_ports(5)
    monkeypatch.setattr(kafka_container, "_ITSELF_PORT", itself)
    monkeypatch.setattr(kafka_container, "_CONTROLLER", f"127.0.0.1:{controller}")
    libs = tmp_path / "libs"
    libs.mkdir()
    for jar in jars:
        (libs / jar.name).symlink_to(jar)
    advertised, reached = f"127.0.0.1:{nowhere}", f"127.0.0.1:{outside}"
    config = KafkaConfig(
        port=port, advertise=advertised, outside=reached, outside_port=outside, directory=tmp_path / "kafka", jars=libs
    )
    node = kafka_container.prepare(config, {**os.environ, "JAVA_HOME": str(java.executable.parents[1])})
    with (tmp_path / "log").open("wb") as log:
        broker = subprocess.Popen(node.command, stdout=log, stderr=subprocess.STDOUT)
    try:
        until(lambda: broker.poll() is not None or kafka_container.answers(outside), 5 * LONG_SECONDS)
        assert broker.poll() is None, (tmp_path / "log").read_text()[-3000:]
        yield reached
    finally:
        broker.terminate()
        broker.wait(LONG_SECONDS)


def test_what_is_committed_is_seen_at_once(lost: str) -> None:
    Topics(lost).ensure(TOPIC, 1, Deadline(LONG_SECONDS))
    transactions, log = Transactions(lost, "keyhole.image.writer"), CommittedLog(lost)
    transactions.open(LONG_SECONDS)
    (offset,) = transactions.write([PartitionAppend(TOPIC, 0, [], (b"key", b"value"))], LONG_SECONDS)
    transactions.close()
    # The end of a transaction is a message of the broker to itself.
    until(lambda: log.ends([(TOPIC, 0)], LONG_SECONDS)[TOPIC, 0] > offset, LONG_SECONDS)
