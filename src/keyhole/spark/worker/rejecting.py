"""Records that a job can't take, on their way to the topic of dead letters: sent by the task that reads them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import pyarrow as pa
from confluent_kafka import KafkaError, Message, Producer
from pyspark import Accumulator

from keyhole.changelog.kafka.clients import ONE_REQUEST, as_ours, common_settings
from keyhole.errors import KafkaUnreachable
from keyhole.spark.worker.worker_setup import hasten_rows

REASON = "__reason"
"""The column that says what is wrong with a record; null: nothing."""

KEPT = ("key", "value", "topic", "partition", "offset")
"""What is sent of a record: beside its other columns, with `__` before their names."""

_FLUSH_SECONDS = 60
_FULL_PAUSE_SECONDS = 0.5
_LARGEST_BYTES = 100_000_000  # the broker's own limit comes first
_BATCH_BYTES = 16_384


def set_aside(
    bootstrap_servers: str,
    topic: str,
    checked: Accumulator[int],
    sent: Accumulator[int],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """In a task: hands on what is good, and does not end before Kafka has the others."""
    hasten_rows()
    sender: _LetterSender | None = None
    try:
        for batch in batches:
            checked.add(len(batch))
            reasons = batch.column(REASON)
            taken = batch.select([name for name in batch.schema.names if not name.startswith("__")])
            if reasons.null_count == len(batch):
                yield taken
                continue
            sender = sender or _LetterSender(_producer(bootstrap_servers), bootstrap_servers, topic)
            bad = batch.filter(reasons.is_valid())
            columns = [bad.column(name).to_pylist() for name in (REASON, *(f"__{name}" for name in KEPT))]
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


class _LetterSender:
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
