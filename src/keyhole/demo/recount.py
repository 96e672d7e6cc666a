"""What a job's recount needs: its source topic once more, by a plain consumer, and a verdict on what readers get.

Each job has its own `verify` module, which runs in a process of its own. Imports nothing of Keyhole but the client, so
that a mistake of Keyhole's can't hide here.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Consumer, Message, TopicPartition

from keyhole import Answer, Client
from keyhole.demo.batch_logs import BatchLogs

_ASK_SECONDS = 10
_ANSWER_SECONDS = 10
_STANDSTILL_SECONDS = 20.0
_BATCH = 10_000
_KEYS = 5_000
_DIFFERS, _CANT_TELL = 1, 2

_Name = TypeVar("_Name")


@dataclass(frozen=True)
class VerifiedJob:
    """What is verified: a job that runs, and has taken all that its source has sent.

    Attributes:
        epoch: That the job has reached. The first one of a fresh application is 1, of Spark's batch 0. Of a job in
            real-time mode, which has none: how many of Spark's batches have ended.
        checkpoint: Spark's, of the job's query whose only source the topic is.
        logs: Copies of what the checkpoint has of batches (keyhole.demo.batch_logs), also of those that it has dropped.
        files: Where the job writes files, if it does: a folder, or a URL of an object store.
        more_topics: What the job reads beside it, by the part of a setting's name that names it.
        settings: Of the job, as its caller gave them, by their names without the job's prefix.
    """

    bootstrap_servers: str
    topic: str
    epoch: int
    checkpoint: Path
    logs: Path
    files: str
    more_topics: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def ends(self) -> dict[int, int]:
        """The offset up to which the epoch has the topic, by partition."""
        return self.batches.ends(self.epoch - 1)

    @property
    def batches(self) -> BatchLogs:
        """What Spark's logs say of the batches of the job's query."""
        return BatchLogs(self.checkpoint, self.logs)

    def beside(self, state: str) -> BatchLogs:
        """The batch logs of the job's other query, which feeds the state, and whose checkpoint is beside this one's."""
        return BatchLogs(self.checkpoint.with_name(f"{self.checkpoint.name}-{state}"), self.logs)


@dataclass(frozen=True)
class RecountVerdict:
    """What the comparison found.

    Attributes:
        epoch: As of which it was asked.
        keys: That were counted.
        agreed: Of these, how many were answered with exactly what was counted.
        surplus: How many keys more the state holds than were counted.
        events: Records counted.
        rejected: How many the job can't take, by the topic that it reads them from.
        unkept: How many of these are not in the dead-letter topic, and how many others are.
        late: How many events no state has, rightly: what they belong to was closed when they came.
    """

    epoch: int
    keys: int
    agreed: int
    surplus: int
    events: int
    rejected: Mapping[str, int] = field(default_factory=dict)
    unkept: int = 0
    late: int = 0

    @property
    def mismatches(self) -> int:
        """Keys that differ, are missing, or should not be there; and dead letters likewise."""
        return self.keys - self.agreed + self.surplus + self.unkept

    @property
    def passed(self) -> bool:
        """Keys were compared, and all agree. Where no key was compared nothing is proven."""
        return self.keys > 0 and self.mismatches == 0


Check = Callable[[VerifiedJob, Client], RecountVerdict]


def main(check: Check, arguments: Sequence[str] | None = None) -> int:
    """A job's `verify` as a program: prints the verdict as one line of JSON.

    Returns:
        The exit code: 1 where something differs, 2 where it can't be found out.
    """
    parser = argparse.ArgumentParser(
        description="Counts a job's source topic again, and compares it with what readers get."
    )
    parser.add_argument("--proxy", required=True, metavar="HOST:PORT,...")
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT", help="Kafka")
    parser.add_argument("--topic", required=True, help="the source's")
    parser.add_argument("--epoch", required=True, type=int, help="which the job has reached")
    parser.add_argument("--checkpoint", required=True, type=Path, help="Spark's, of the job's query")
    parser.add_argument("--logs", required=True, type=Path, help="copies of the logs of its batches")
    parser.add_argument("--files", required=True, help="where the job writes files, if it does: a folder, or s3://...")
    parser.add_argument("--more-topics", default="{}", type=json.loads, metavar="JSON", help="what else the job reads")
    parser.add_argument("--settings", default="{}", type=json.loads, metavar="JSON", help="the job's settings")
    options = vars(parser.parse_args(arguments))
    try:
        with Client(options.pop("proxy"), timeout=_ANSWER_SECONDS) as client:
            verdict = check(VerifiedJob(**options), client)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is no difference
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return _CANT_TELL
    print(json.dumps(dataclasses.asdict(verdict)))
    return 0 if verdict.passed else _DIFFERS


def topic_ends(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """The offset after the last record, by partition."""
    consumer = _consumer(bootstrap_servers)
    try:
        partitions = consumer.list_topics(topic, _ASK_SECONDS).topics[topic].partitions
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), _ASK_SECONDS)[1]
            for partition in partitions
        }
    finally:
        consumer.close()


def records_before(bootstrap_servers: str, topic: str, ends: Mapping[int, int]) -> Iterator[Message]:
    """All records before the ends, of the partitions that are named there; none twice.

    Raises:
        TimeoutError: Kafka gives no more of them.
    """
    waiting = {partition for partition, end in ends.items() if end > 0}
    consumer = _consumer(bootstrap_servers)
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in sorted(waiting)])
        until = time.monotonic() + _STANDSTILL_SECONDS
        while waiting:
            messages = [message for message in consumer.consume(_BATCH, 1.0) if message.error() is None]
            if messages:
                until = time.monotonic() + _STANDSTILL_SECONDS
            elif time.monotonic() > until:
                raise TimeoutError(f"Kafka has given no record of topic {topic} for {_STANDSTILL_SECONDS:.0f} s")
            for message in messages:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                if offset < ends[partition]:
                    yield message
                if offset + 1 >= ends[partition]:
                    waiting.discard(partition)
    finally:
        consumer.close()


def asked(
    client: Client, application: str, state: str, keys: Mapping[Any, _Name], min_epoch: int | Mapping[int, int]
) -> dict[_Name, Answer]:
    """The answers for all keys, by what they are called.

    Args:
        min_epoch: That each has reached; of a state that is fed by updates: by key group.
    """
    found: dict[_Name, Answer] = {}
    pairs = list(keys.items())
    for first in range(0, len(pairs), _KEYS):
        some = pairs[first : first + _KEYS]
        answers = client.get_many(application, state, [key for key, _ in some], min_epoch=min_epoch)
        found.update(zip((name for _, name in some), answers, strict=True))
    return found


def unkept(subject: VerifiedJob, rejected: Set[tuple[int | None, int | None]]) -> int:
    """How many records' dead letters are missing, or should not be there.

    Args:
        rejected: Partition and offset of each record that the job can't take.
    """
    topic = f"{subject.topic}.dead-letter"
    ends = topic_ends(subject.bootstrap_servers, topic)
    kept = set()
    for message in records_before(subject.bootstrap_servers, topic, ends):
        headers: dict[str, Any] = dict(message.headers() or ())
        kept.add((int(headers["partition"]), int(headers["offset"])))
    return len(rejected ^ kept)


def entries(client: Client, application: str, state: str) -> int:
    """How many entries the owners hold of a state."""
    return entries_by_state(client, application).get(state, 0)


def entries_by_state(client: Client, application: str) -> dict[str, int]:
    """How many entries the owners hold of each of an application's states."""
    found = Counter[str]()
    for holding in (holding for server in client.status() for holding in server.holdings):
        if holding.descriptor.application == application and holding.source.role == "owner":
            found[holding.descriptor.state] += holding.entries
    return dict(sorted(found.items()))


def _consumer(bootstrap_servers: str) -> Consumer:
    # Not a member of any group: nothing is committed, and nobody waits for it.
    return Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "recount", "enable.auto.commit": False})
