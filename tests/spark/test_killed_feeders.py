"""Feeders in processes of their own, killed without warning and started beside each other: each row counts once."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing

from confluent_kafka import Producer

from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.changelog.settings import updates_topic_name
from keyhole.feed.kafka.updates_topic import KafkaUpdates
from keyhole.protocol.seen import SeenRows
from keyhole.protocol.updates import BoundaryRecord, UpdateRecord, decode
from tests.support.killable_feeder import KEY_GROUPS, feed_of
from tests.support.waiting import LONG_SECONDS, until

RECORDS = 3_000


def produce(kafka: str, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": kafka})
    for n in numbers:
        producer.produce(topic, json.dumps({"id": f"k{n % 11}", "n": n}).encode(), partition=n % 2)
    assert producer.flush(LONG_SECONDS) == 0


def counted(updates: KafkaUpdates) -> Counter[int]:
    """The amounts that owners count, each as often as they do."""
    found: Counter[int] = Counter()
    for group in range(KEY_GROUPS):
        seen = SeenRows()
        for at, value in enumerate(updates.read(group, *updates.bounds(group))):
            record = decode(value)
            if isinstance(record, BoundaryRecord):
                seen.reach(record)
            elif isinstance(record, UpdateRecord) and seen.take(record.row, at):
                assert record.value is not None
                found[record.value[0]] += 1
    return found


def test_feeders_that_are_killed_lose_no_row_and_count_none_twice(kafka: str, application: str) -> None:
    topic = f"{application}-orders"
    make_topics(kafka, {topic: 2, updates_topic_name(application, "s"): KEY_GROUPS}, LONG_SECONDS)
    command = [sys.executable, "-m", "tests.support.killable_feeder", kafka, application, topic]
    processes: list[subprocess.Popen[bytes]] = []
    with closing(KafkaUpdates(kafka, updates_topic_name(application, "s"))) as updates:

        def some_are_there(more_than: int) -> bool:
            return sum(updates.bounds(group)[1] for group in range(KEY_GROUPS)) > more_than

        try:
            for turn in range(3):
                before = sum(updates.bounds(group)[1] for group in range(KEY_GROUPS))
                processes.append(subprocess.Popen(command))
                produce(kafka, topic, range(turn * RECORDS // 3, (turn + 1) * RECORDS // 3))
                until(lambda before=before: some_are_there(before + 2 * KEY_GROUPS), LONG_SECONDS)
                if not turn:
                    processes[-1].kill()
            # Two were left beside each other: the first of them has heard that another one has begun.
            until(lambda: processes[1].poll() == 3, LONG_SECONDS)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        stop = threading.Event()
        last = threading.Thread(target=feed_of(kafka, application, topic).run, args=(stop,))
        last.start()
        deadline = time.monotonic() + LONG_SECONDS
        while len(found := counted(updates)) < RECORDS and time.monotonic() < deadline:
            time.sleep(0.5)
        stop.set()
        last.join()
    assert found == Counter(range(RECORDS))
