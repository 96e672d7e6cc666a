"""What only a real Kafka shows to those who follow it: its restart, and a member of a group that dies."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from keyhole.changelog.base import Partition, RestoredEpochs
from keyhole.changelog.control_topic import ControlTail
from keyhole.changelog.kafka import control_tail
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.changelog.kafka.consumer import following_settings
from keyhole.changelog.kafka.control_tail import KafkaControlTail
from keyhole.changelog.settings import CONTROL, topic_name
from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka
from keyhole.model.epoch import START
from tests.support.changelogs import DEADLINE, Cluster, changes, descriptor, grant, key, rows
from tests.support.waiting import LONG_SECONDS, until

A0 = Partition("a", 0)

# A transaction's records come in several of Kafka's answers, which have at most a mebibyte of a partition each.
_LARGE = 400_000

_REPLICA = """
import sys
from keyhole.changelog.kafka.changelog import KafkaChangelog
replicas = KafkaChangelog(sys.argv[1], sys.argv[2]).replicas(sys.argv[3])
while True:
    share = replicas.poll({"a": 3}, 0.1)
    if share:
        print(len(share), flush=True)
"""


def changelog_of(bootstrap_servers: str) -> KafkaChangelog:
    """A new application's, whose state "a" exists."""
    application = f"app-{grant()}"
    made = KafkaChangelog(bootstrap_servers, application)
    made.admin().ensure(descriptor(Cluster(application, lambda: made, print, print)), DEADLINE)
    return made


def test_a_tail_and_a_control_tail_go_on_after_the_broker_was_stopped_and_after_it_was_killed(
    jars: list[Path], java: Java, tmp_path: Path
) -> None:
    with LocalKafka(tmp_path / "kafka", jars, java) as kafka:
        changelog = changelog_of(kafka.bootstrap_servers)
        with (
            closing(changelog.tail()) as tail,
            closing(changelog.control_tail()) as control_tail,
            closing(changelog.control("q")) as control,
            closing(changelog.writer(grant())) as writer,
        ):
            pieces: list[RestoredEpochs] = []
            records: dict[str, bytes | None] = {}

            def reads_epoch(epoch: int) -> bool:
                pieces.extend(item for item in tail.poll(0.2) if isinstance(item, RestoredEpochs))
                records.update(control_tail.poll(0) or {})
                number = b"%d" % epoch
                return rows(pieces) == {key(0, "x"): number} and records == {"a": number}

            ends = {1: kafka.stop, 3: kafka.kill}
            control.open(DEADLINE)
            writer.open(DEADLINE)
            tail.follow({A0: START})
            for epoch in range(1, 6):
                writer.commit([changes(0, epoch, {"x": b"%d" % epoch})], DEADLINE)
                control.append({"a": b"%d" % epoch}, DEADLINE)
                until(lambda epoch=epoch: reads_epoch(epoch), LONG_SECONDS)  # type: ignore[misc]
                if epoch in ends:
                    ends[epoch]()
                    tail.poll(0.5)
                    assert control_tail.poll(0.5) == {}
                    kafka.start()
            # Each epoch once: nothing is read again after a restart.
            assert [piece.position.epoch for piece in pieces] == [1, 2, 3, 4, 5]


def test_the_others_take_over_from_a_replica_that_was_killed(kafka: str) -> None:
    changelog = changelog_of(kafka)
    group = f"replicas-{grant()}"
    application = changelog._application
    with closing(changelog.replicas(group)) as survivor:
        command = [sys.executable, "-c", _REPLICA, kafka, application, group]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            try:
                assert other.stdout is not None
                assert other.stdout.readline().strip() == "3"
                until(lambda: len(survivor.poll({"a": 3}, 0.1) or ()) in (1, 2), LONG_SECONDS)
            finally:
                other.kill()
        until(lambda: len(survivor.poll({"a": 3}, 0.1) or ()) == 3, LONG_SECONDS)


def test_what_two_queries_append_is_told_whole_and_without_waiting_for_the_topics_end(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Kafka would tell a topic's end when it has waited for so long, which this test doesn't.
    late = {"fetch.wait.max.ms": 2000 * LONG_SECONDS, "socket.timeout.ms": 2100 * LONG_SECONDS}
    monkeypatch.setattr(control_tail, "following_settings", lambda bootstrap: following_settings(bootstrap) | late)
    changelog = changelog_of(kafka)
    records: dict[str, int] = {}

    def append(query: str, numbers: range) -> None:
        with closing(changelog.control(query)) as log:
            log.open(DEADLINE)
            for number in numbers:
                log.append({f"{query}/{n}": b"%d " % number + os.urandom(_LARGE) for n in range(4)}, DEADLINE)

    def newest(tail: KafkaControlTail) -> set[int]:
        """Of each query, by all that was told."""
        records.update({name: int((value or b"").split()[0]) for name, value in (tail.poll(0.2) or {}).items()})
        of_query = [{number for name, number in records.items() if name.startswith(query)} for query in ("q1", "q2")]
        assert max(map(len, of_query)) <= 1, records
        return set.union(*of_query)

    with closing(changelog.control_tail()) as tail, ThreadPoolExecutor() as pool:
        appending = [pool.submit(append, query, range(1, 13)) for query in ("q1", "q2")]
        while not all(each.done() for each in appending):
            newest(tail)
        for each in appending:
            each.result()
        # Of two transactions that ended side by side, the markers may stand together at the end.
        append("q1", range(13, 14))
        until(lambda: newest(tail) == {12, 13}, LONG_SECONDS)


def test_what_was_appended_together_is_told_together_though_another_transaction_begins_among_it(kafka: str) -> None:
    application = f"app-{grant()}"
    changelog = KafkaChangelog(kafka, application)
    topic = topic_name(application, CONTROL)
    polled: list[dict[str, bytes | None]] = []

    def write(producer: Producer, name: str) -> None:
        producer.produce(topic, key=name.encode(), value=b"1")
        producer.flush(DEADLINE)

    def read(tail: ControlTail) -> dict[str, bytes | None]:
        polled.append(dict(tail.poll(0.2) or {}))
        return polled[-1]

    with closing(changelog.control("q")) as log, closing(changelog.control_tail()) as tail:
        log.open(DEADLINE)
        log.append({"before": b"1"}, DEADLINE)
        until(lambda: read(tail), LONG_SECONDS)
        # Kafka ends neither by itself meanwhile, however slow the machine is.
        settings: dict[str, str | int] = {"bootstrap.servers": kafka, "transaction.timeout.ms": 600_000}
        first, second = (Producer({**settings, "transactional.id": grant()}) for _ in range(2))
        for producer in (first, second):
            producer.init_transactions(DEADLINE)
            producer.begin_transaction()
        for producer, name in ((first, "a1"), (second, "b1"), (first, "a2")):
            write(producer, name)
        first.commit_transaction(DEADLINE)

        # Kafka shows a1 by now, and a2 only once the other transaction has ended.
        with closing(changelog.control_tail()) as anew:
            until(lambda: "a1" in (anew.poll(0.2) or {}), LONG_SECONDS)
        for _ in range(5):
            assert read(tail) == {}
        second.abort_transaction(DEADLINE)
        until(lambda: read(tail), LONG_SECONDS)
    assert list(filter(None, polled)) == [{"before": b"1"}, {"a1": b"1", "a2": b"1"}]
