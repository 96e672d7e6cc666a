"""Records that a job can't take: kept in a topic of their own, so that they neither stop the job nor are lost.

    dead_letters = DeadLetters(spark, bootstrap_servers, "readings")
    good = dead_letters.accept(json_records.parsed(records, ...), problem)

The tasks that read the records send them there, before the epoch that they would have been in is committed. A batch
that is run again sends them again: who reads the topic goes by the headers `topic`, `partition` and `offset`, which say
where the record was. `reason` says what is wrong with it. Key and value are as they were, byte for byte; they are left
out (the header `omitted` says so) where they are so large that with the headers they are too large for the topic.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import pyarrow as pa
from confluent_kafka import KafkaError, Message, Producer
from pyspark import Accumulator
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everyone who writes PySpark calls it

from keyhole.changelog.kafka.clients import ONE_REQUEST, as_ours, common_settings
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.config import JobConfig
from keyhole.coordinator.stats import stats_of
from keyhole.errors import KafkaUnreachable
from keyhole.spark.driver.arrow_map import map_in_arrow
from keyhole.spark.driver.partitioning import quoted
from keyhole.spark.worker.settings import hasten_rows

SUFFIX = ".dead-letter"

Accept: TypeAlias = Callable[[DataFrame, Column], DataFrame]
"""(parsed records, what is wrong with each, null where nothing is) -> the good ones, without Kafka's columns.

What begins with `__` is left out, too: it is there for the rules alone.
"""

_log = logging.getLogger(__name__)

_KAFKA = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_KEPT = ("key", "value", "topic", "partition", "offset")
_REASON = "__reason"
_ADMIN_SECONDS = 30.0
_FLUSH_SECONDS = 60
_FULL_PAUSE_SECONDS = 0.5
_LARGEST_BYTES = 100_000_000  # the broker's own limit comes first
_BATCH_BYTES = 16_384


def drop(parsed: DataFrame, problem: Column) -> DataFrame:
    """An Accept that keeps none of the others: for batches, and tests."""
    return parsed.where(problem.isNull()).select(*map(quoted, _taken(parsed)))


def _taken(parsed: DataFrame) -> list[str]:
    return [name for name in parsed.columns if name not in _KAFKA and not name.startswith("__")]


def first_broken(rules: Mapping[str, str]) -> Column:
    """What the first rule says that a record breaks; null: it keeps to all.

    Args:
        rules: By condition (SQL), what is said where it doesn't hold, or is null.
    """
    return F.coalesce(
        *(F.when(~F.coalesce(F.expr(rule), F.lit(False)), F.lit(said)) for rule, said in rules.items()), F.lit(None)
    )


class DeadLetters:
    """The dead letters of one source topic. For the driver.

    Makes the topic `<topic>.dead-letter`, of one partition, where there is none.

    Args:
        config: The job's, in whose metrics `tell` counts them, and the records that they are among; None: in none.

    Raises:
        KeyholeError: The topic can't be made.
    """

    def __init__(
        self, spark: SparkSession, bootstrap_servers: str, topic: str, *, config: JobConfig | None = None
    ) -> None:
        self.topic = topic + SUFFIX
        self._source = topic
        self._counts = None if config is None else stats_of(config).counts
        self._bootstrap_servers = bootstrap_servers
        self._checked = spark.sparkContext.accumulator(0)
        self._sent = spark.sparkContext.accumulator(0)
        self._told_checked = self._told_sent = 0
        make_topics(bootstrap_servers, {self.topic: 1}, _ADMIN_SECONDS)
        self._count(0, 0)  # whoever waits for the first one needs a 0 before it

    @property
    def sent(self) -> int:
        """How many were sent since the start; one that was sent again counts again."""
        return int(self._sent.value)

    def accept(self, parsed: DataFrame, problem: Column) -> DataFrame:
        """The good records; the others are sent on their way.

        Args:
            parsed: Kafka's columns, and those that were made of them.
            problem: A string that says what is wrong with a record, and nothing of what is in it; null: nothing is.

        Returns:
            The columns that are not Kafka's, and don't begin with `__`.
        """
        taken = list(map(quoted, _taken(parsed)))
        wrong = problem.isNotNull()
        kept = [F.when(wrong, F.col(name)).alias(f"__{name}") for name in _KEPT]
        rows = parsed.select(*taken, problem.alias(_REASON), *kept)
        set_aside = functools.partial(_set_aside, self._bootstrap_servers, self.topic, self._checked, self._sent)
        return map_in_arrow(rows, set_aside, rows.select(*taken).schema)

    def tell(self, epoch: int) -> None:
        """Logs and counts how many there were since it was last called. For a query's `on_commit`."""
        checked, sent = int(self._checked.value), self.sent
        new = sent - self._told_sent
        self._count(checked - self._told_checked, new)
        self._told_checked, self._told_sent = checked, sent
        if new:
            _log.warning("records were rejected", extra={"records": new, "kept_in": self.topic, "epoch": epoch})

    def _count(self, records: int, rejected: int) -> None:
        if self._counts is not None:
            self._counts.check(self._source, records, rejected)


def _set_aside(
    bootstrap_servers: str,
    topic: str,
    checked: Accumulator[int],
    sent: Accumulator[int],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """In a task: hands on what is good, and does not end before Kafka has the others."""
    hasten_rows()
    sender: _Sender | None = None
    try:
        for batch in batches:
            checked.add(len(batch))
            reasons = batch.column(_REASON)
            taken = batch.select([name for name in batch.schema.names if not name.startswith("__")])
            if reasons.null_count == len(batch):
                yield taken
                continue
            sender = sender or _Sender(_producer(bootstrap_servers), bootstrap_servers, topic)
            bad = batch.filter(reasons.is_valid())
            columns = [bad.column(name).to_pylist() for name in (_REASON, *(f"__{name}" for name in _KEPT))]
            for reason, *kept in zip(*columns, strict=True):
                sender.send(reason, *kept)
            sent.add(len(bad))
            yield taken.filter(reasons.is_null())
        if sender is not None:
            sender.finish()
    except BaseException:
        _producer.cache_clear()  # one that has failed may go on failing, and one that was cut off holds what is left
        raise


@functools.cache
def _producer(bootstrap_servers: str) -> Producer:
    """An idempotent producer, for all tasks of a worker, which runs one after the other. One for each task would make
    each batch with a dead letter half a second longer: it connects, and is given an id.
    """
    settings = {
        **common_settings(bootstrap_servers),
        **ONE_REQUEST,
        "message.max.bytes": _LARGEST_BYTES,
        # The broker refuses whole batches: what is too large must be alone in its own.
        "batch.size": _BATCH_BYTES,
    }
    return Producer(settings)


class _Sender:
    """Sends the dead letters of one task, and keeps the first error for its end."""

    def __init__(self, producer: Producer, bootstrap_servers: str, topic: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._producer = producer
        self._error: KafkaError | None = None

    def send(
        self, reason: str, key: bytes | None, value: bytes | None, topic: str, partition: int, offset: int
    ) -> None:
        headers = {"topic": topic, "partition": str(partition), "offset": str(offset), "reason": reason}
        self._produce(key, value, headers)

    def finish(self) -> None:
        """Raises KeyholeError: Kafka doesn't have all of them."""
        # Twice: what was too large is sent again, without its value, while the first is waited for.
        left = self._producer.flush(_FLUSH_SECONDS) and self._producer.flush(_FLUSH_SECONDS)
        if self._error is not None:
            raise as_ours(self._error, self._bootstrap_servers, f"write to topic {self._topic}")
        if left:
            raise KafkaUnreachable(
                f"Kafka has not taken {left} records for topic {self._topic} within {_FLUSH_SECONDS} s; check that its "
                "brokers run",
                topic=self._topic,
            )

    def _produce(self, key: bytes | None, value: bytes | None, headers: dict[str, str]) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is None:
                return
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE and "omitted" not in headers:
                self._produce(None, None, headers | {"omitted": "key and value are too large"})
            else:
                self._error = error

        until_full = _FLUSH_SECONDS / _FULL_PAUSE_SECONDS
        while True:
            try:
                self._producer.produce(self._topic, value, key, on_delivery=delivered, headers=list(headers.items()))
            except BufferError:
                until_full -= 1
                if until_full < 0:
                    raise
                self._producer.poll(_FULL_PAUSE_SECONDS)
            else:
                return
