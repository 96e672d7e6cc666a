"""Where topics begin and end, as Kafka tells it, and what becomes of a process that is not told in time."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest
from confluent_kafka import Producer

from keyhole.changelog.kafka import reader
from keyhole.changelog.kafka.offsets import TopicOffsets
from keyhole.changelog.kafka.reader import CommittedLog
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.changelog.kafka.unmade_topics import unmade
from keyhole.errors import ChangelogRecreated
from tests.support.waiting import LONG_SECONDS

DEADLINE = LONG_SECONDS
# Each deadline may pass in another step of the question.
ASKED_TOO_SHORTLY = """
import contextlib, random, sys
from keyhole.changelog.kafka.offsets import TopicOffsets
from keyhole.changelog.kafka.reader import CommittedLog
from keyhole.errors import KafkaUnreachable

log, chance, late = CommittedLog(sys.argv[1]), random.Random(1), 0
for _ in range(300):
    try:
        log.ends([(sys.argv[2], 0)], chance.uniform(0.0005, 0.008))
    except KafkaUnreachable:
        late += 1
with contextlib.closing(TopicOffsets(sys.argv[1])) as offsets:
    for _ in range(300):
        try:
            offsets.ends({sys.argv[2]: [0]}, chance.uniform(0.0005, 0.008))
        except KafkaUnreachable:
            late += 1
print(late)
"""


def test_a_process_that_is_not_told_the_end_in_time_goes_on(kafka: str, application: str) -> None:
    make_topics(kafka, {application: 1}, DEADLINE)
    # In one of its own: a client of librdkafka's that frees memory twice ends it by a signal.
    command = [sys.executable, "-c", ASKED_TOO_SHORTLY, kafka, application]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


def test_committed_records_end_before_a_transaction_that_is_open(kafka: str, application: str) -> None:
    make_topics(kafka, {application: 2}, DEADLINE)
    # Kafka does not end it by itself meanwhile, however slow the machine is.
    settings: dict[str, str | int] = {"bootstrap.servers": kafka, "transaction.timeout.ms": 600_000}
    producer = Producer({**settings, "transactional.id": application})
    producer.init_transactions(DEADLINE)
    producer.begin_transaction()
    producer.produce(application, b"not yet", partition=1)
    producer.flush(DEADLINE)
    parts, log = [(application, 0), (application, 1)], CommittedLog(kafka)
    with contextlib.closing(TopicOffsets(kafka)) as offsets:
        assert log.ends(parts, DEADLINE) == {(application, 0): 0, (application, 1): 0}
        assert offsets.ends({application: [0, 1]}, DEADLINE) == {(application, 0): 0, (application, 1): 1}
        producer.commit_transaction(DEADLINE)
        assert offsets.starts({application: [0, 1]}, DEADLINE) == {(application, 0): 0, (application, 1): 0}


def test_a_topic_that_was_never_made_is_refused_at_once(
    kafka: str, application: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new query's first batch asks so for the control topic: brokers that may be behind need not be waited for."""
    monkeypatch.setattr(reader, "_NEW_TOPIC_SECONDS", float("inf"))
    make_topics(kafka, {application: 1}, DEADLINE)
    none = f"{application}-none"
    assert unmade(kafka, [application, none], DEADLINE) == {none}
    with pytest.raises(ChangelogRecreated, match=none):
        CommittedLog(kafka).ends([(application, 0), (none, 0)], DEADLINE)
    with contextlib.closing(TopicOffsets(kafka)) as offsets:
        assert offsets.ends({none: [0]}, DEADLINE) == {}, "and nothing was made"


def test_what_there_is_not_is_missing_or_refused_by_its_name(kafka: str, application: str) -> None:
    make_topics(kafka, {application: 1}, DEADLINE)
    none = f"{application}-none"
    with contextlib.closing(TopicOffsets(kafka)) as offsets:
        assert offsets.ends({none: [0]}, DEADLINE) == {}
        assert offsets.ends({none: [0], application: [0, 7]}, DEADLINE) == {(application, 0): 0}
        assert offsets.ends({}, DEADLINE) == {}
    for parts in ([(none, 0)], [(application, 0), (application, 7)]):
        with pytest.raises(ChangelogRecreated, match="gone, or has fewer partitions"):
            CommittedLog(kafka).ends(parts, DEADLINE)
