"""A transactional producer: the one place that decides what an error of a transaction means."""

from __future__ import annotations

import contextlib
import itertools
import operator
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from keyhole.changelog.kafka.clients import (
    Deadline,
    Settings,
    as_ours,
    common_settings,
    error_of,
    fenced,
    is_fenced,
    is_unanswered,
    outcome_unknown,
    unreachable,
)
from keyhole.changelog.settings import MAX_RECORD_BYTES, too_large
from keyhole.errors import Fenced, KeyholeError, OutcomeUnknown, StageLost

# The broker's default maximum. Nobody waits for it: whoever takes over bumps the id, which ends the transaction.
TRANSACTION_TIMEOUT_MS = 15 * 60 * 1000
_RECORD_SECONDS = 30.0
_EPOCH_SECONDS = 0.02
_DROPPED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
_FULL_QUEUE_POLL_SECONDS = 0.01
_CONNECT_SECONDS = 1.0
# Kafka's own topic of transactions: asked for by name, a broker has less to say than of all topics.
_TRANSACTIONS_TOPIC = "__transaction_state"


class PartitionAppend(NamedTuple):
    """Records for one partition, in order; `last` comes after all `records`. A value of None is a deletion."""

    topic: str
    partition: int
    records: Iterable[tuple[bytes, bytes | None]]
    last: tuple[bytes, bytes | None]


@dataclass
class _PartitionSent:
    """What became of the records for one partition: how many there are, and of the first and the last their offsets, or
    why they have none."""

    count: int = 0
    first: int = -1
    last: int = -1
    error: KafkaError | None = None

    @property
    def complete(self) -> bool:
        """There are offsets for all; maybe for more, as others may write to the partition, too.

        Records of which librdkafka only believes that they were taken have none: await_partitions says how that comes.
        """
        return self.first >= 0 and self.last - self.first >= self.count - 1

    def callback(self, place: int) -> Callable[[KafkaError | None, Message], None]:
        """For the record of that place. A function of Python's own: where librdkafka calls it while it has an error to
        raise, callables of C, as partials are, end in a SystemError."""

        def acknowledged(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.error = error
                return
            offset = message.offset()
            assert offset is not None
            self.first = offset if place == 0 else self.first
            self.last = offset if place == self.count - 1 else self.last

        return acknowledged


class _OversizedError(Exception):
    """Kafka doesn't take one of the records: the largest one. Never leaves this module."""


def take_id(producer: Producer, transactional_id: str, bootstrap_servers: str, deadline: Deadline) -> None:
    """Fences whoever held the id; returns when their transaction is decided, one way or the other. Blocks.

    Raises:
        KafkaUnreachable: Not before the deadline, where waiting may help. May be called again.
        Fenced: Somebody took the id meanwhile.
        InvalidConfiguration: The broker refuses, for a reason that only its operator can remove.
    """
    # Where no broker is connected yet, librdkafka looks for the coordinator again only half a second later. It is
    # connected once there are two answers: after the first one it gives up that connection for one to the same broker.
    with contextlib.suppress(KafkaException):  # whatever it is, what follows says it better
        for _ in range(2):
            producer.list_topics(_TRANSACTIONS_TOPIC, min(_CONNECT_SECONDS, deadline.left))
    while True:
        try:
            producer.init_transactions(deadline.left)
        except KafkaException as exception:
            error = error_of(exception)
            if is_fenced(error):
                raise fenced(transactional_id) from exception
            if error.retriable() and not deadline.passed:
                continue
            raise as_ours(error, bootstrap_servers, f"open {transactional_id}") from exception
        else:
            return


class Transactions:
    """All that is written under one transactional.id by one incarnation. One thread at a time; blocks.

    After Fenced or OutcomeUnknown it only raises that again.

    Args:
        timeout_ms: A transaction that is open for longer is ended by Kafka, and the next call raises Fenced.
        record_seconds: A record without an answer for so long is given up, and its transaction with it. None: 30 s, or
            the deadline of `open` where that is longer.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        transactional_id: str,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        record_seconds: float | None = None,
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._record_seconds = record_seconds
        self._producer: Producer | None = None
        self._must_abort = False
        # Of the transaction under way, or the last one; and whether librdkafka has ended it by itself in the midst.
        self._sent: Sequence[_PartitionSent] = ()
        self._broken_off = False
        self._ended: Fenced | OutcomeUnknown | None = None

    def open(self, deadline_seconds: float) -> None:
        """Fences whoever held the id; returns when their transaction is decided, one way or the other.

        Raises:
            KafkaUnreachable: May be called again.
            Fenced: Somebody took the id meanwhile.
            InvalidConfiguration: The broker refuses, for a reason that only its operator can remove.
        """
        deadline = Deadline(deadline_seconds)
        if self._producer is None:
            seconds = self._record_seconds or max(_RECORD_SECONDS, deadline_seconds)
            record_timeout_ms = min(self._timeout_ms, round(1000 * seconds))
            settings = _settings(self._bootstrap_servers, self._id, self._timeout_ms, record_timeout_ms)
            self._producer = Producer(settings)
        take_id(self._producer, self._id, self._bootstrap_servers, deadline)

    def write(self, batches: Sequence[PartitionAppend], deadline_seconds: float) -> list[int]:
        """Writes all in one transaction; returns the offset of the last record of each.

        Raises:
            KafkaUnreachable: The transaction will never be committed. May be called again.
            TooLarge: A record is too large. Nothing was written.
            StageLost: The records can't be read. Nothing was written.
            Fenced: Somebody took the id.
            InvalidConfiguration: Kafka refuses a record, for a reason that only its operator can remove.
            OutcomeUnknown: The records may or may not be committed; or they are not, and nothing more can be written.
        """
        if self._ended is not None:
            raise self._ended
        try:
            return self._write(batches, deadline_seconds)
        except (Fenced, OutcomeUnknown) as error:
            # A second attempt could abort what the first has committed.
            self._ended = error
            raise
        except _OversizedError as error:
            raise too_large(*_largest(batches)) from error

    def close(self) -> None:
        """Gives up what is under way; an open transaction is left to whoever opens the id next. Idempotent."""
        producer, self._producer = self._producer, None
        if producer is not None:
            # It says once more what ended it, for good; who closes it knows, or doesn't care.
            with contextlib.suppress(KafkaException):
                producer.purge()
                producer.poll(0)

    def _write(self, batches: Sequence[PartitionAppend], deadline_seconds: float) -> list[int]:
        assert self._producer is not None, "open() comes first"
        deadline = Deadline(deadline_seconds)
        self._finish_abort(deadline)
        sent = self._sent = [_PartitionSent() for _ in batches]
        self._broken_off = False
        try:
            self._producer.begin_transaction()
            for index, batch in enumerate(batches):
                self._send(batch, sent[index], deadline)
            # Flushed before the commit is asked for: as long as it was not, an abort is certain.
            unacknowledged = self._producer.flush(deadline.left)
        except KafkaException as exception:
            error = error_of(exception)
            self._broken_off = error.code() == KafkaError._STATE and any(of.count for of in sent)
            raise self._refused(error, deadline) from exception
        except StageLost:
            self._abort(deadline)
            raise
        if unacknowledged > 0:
            raise self._given_up(deadline, f"records were not acknowledged within {deadline_seconds:g} s")
        errors = [of.error for of in sent if of.error is not None]
        if errors:
            # The others were dropped for it.
            raise self._refused(next((of for of in errors if of.code() not in _DROPPED), errors[0]), deadline)
        if not all(of.complete for of in sent):
            raise self._given_up(deadline, "its broker has fewer records than it has acknowledged")
        self._commit(deadline)
        return [of.last for of in sent]

    def _send(self, batch: PartitionAppend, sent: _PartitionSent, deadline: Deadline) -> None:
        producer = self._producer
        assert producer is not None
        topic, partition, records, last = batch
        # A callback for each record would halve the rate; the first one's and the last one's stand for all.
        produce = producer.produce
        for key, value in records:
            sent.count += 1
            if sent.count == 1:
                self._produce(deadline, topic, value, key, partition, sent.callback(0))
                continue
            try:
                produce(topic, value, key, partition)
            except BufferError:
                self._produce(deadline, topic, value, key, partition)
        sent.count += 1
        key, value = last
        self._produce(deadline, topic, value, key, partition, sent.callback(sent.count - 1))

    def _produce(self, deadline: Deadline, *record: Any) -> None:
        """Waits for room in the queue."""
        assert self._producer is not None
        while True:
            try:
                self._producer.produce(*record)
            except BufferError:
                if deadline.passed:
                    raise self._given_up(deadline, "its queue is full and does not drain") from None
                self._producer.poll(_FULL_QUEUE_POLL_SECONDS)
            else:
                return

    def _commit(self, deadline: Deadline) -> None:
        assert self._producer is not None
        while True:
            try:
                self._producer.commit_transaction(deadline.left)
            except KafkaException as exception:
                error = error_of(exception)
                if is_fenced(error):
                    raise fenced(self._id) from exception
                if error.retriable() and not deadline.passed:
                    continue
                if error.txn_requires_abort() and not is_unanswered(error):
                    raise self._refused(error, deadline) from exception
                # Never abort here: the request to commit may be on its way, or carried out.
                raise outcome_unknown(self._id, error.str()) from exception
            else:
                return

    def _refused(self, error: KafkaError, deadline: Deadline) -> KeyholeError | _OversizedError:
        """What to raise for an error before the commit was asked for, or one that says that it wasn't."""
        if is_fenced(error):
            return fenced(self._id)
        if error.fatal():
            return outcome_unknown(self._id, error.str())
        self._abort(deadline)
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return _OversizedError()
        return as_ours(error, self._bootstrap_servers, f"take the transaction of {self._id}")

    def _given_up(self, deadline: Deadline, why: str) -> KeyholeError:
        self._abort(deadline)
        return unreachable(self._bootstrap_servers, f"take the transaction of {self._id}", why)

    def _finish_abort(self, deadline: Deadline) -> None:
        if self._must_abort:
            self._abort(deadline)
        if self._must_abort:
            raise unreachable(self._bootstrap_servers, f"abort the last transaction of {self._id}", "no answer in time")

    def _abort(self, deadline: Deadline) -> None:
        """Aborts, or leaves it to be finished before the next transaction: without a commit the result is the same.

        First each record is answered, or times out. An abort would drop those that wait for a second try, and give
        their sequence numbers to the next records, as if they had never been sent (librdkafka,
        rd_kafka_toppar_purge_queues). A broker that had taken the first ones then took the next ones for the same,
        acknowledged them and dropped them: a commit without its records.

        Raises:
            OutcomeUnknown: librdkafka has dropped some by itself, for an error of another one. It may have given their
                numbers away, so this producer writes no more.
        """
        assert self._producer is not None
        self._must_abort = True
        try:
            if self._producer.flush(deadline.left):
                return
            if any(of.error is not None for of in self._sent):
                # It has said so a moment before it takes the producer to another epoch, which it must have done.
                time.sleep(_EPOCH_SECONDS)
            self._producer.abort_transaction(deadline.left)
        except KafkaException as exception:
            error = error_of(exception)
            if is_fenced(error):
                raise fenced(self._id) from exception
            if error.fatal():
                raise outcome_unknown(self._id, error.str()) from exception
        else:
            self._must_abort = False
            if self._renumbered:
                raise outcome_unknown(self._id, "records were dropped, and others may have got their numbers")

    @property
    def _renumbered(self) -> bool:
        """Whether librdkafka has dropped records, and it is not known that it has begun another epoch since.

        Of a partition whose records it drops the last one is among them, which has a callback, if it was sent at all.
        """
        codes = {of.error.code() for of in self._sent if of.error is not None}
        return self._broken_off or (not codes.isdisjoint(_DROPPED) and KafkaError._MSG_TIMED_OUT not in codes)


def _largest(batches: Sequence[PartitionAppend]) -> tuple[str, int]:
    """The topic of the largest record, and its size. Reads all of them once more."""
    sizes = (
        (batch.topic, len(key) + len(value or b""))
        for batch in batches
        for key, value in itertools.chain(batch.records, [batch.last])
    )
    return max(sizes, key=operator.itemgetter(1))


def _settings(bootstrap_servers: str, transactional_id: str, timeout_ms: int, record_timeout_ms: int) -> Settings:
    return {
        **common_settings(bootstrap_servers),
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "message.timeout.ms": record_timeout_ms,
        "acks": "all",
        "enable.idempotence": True,
        "compression.type": "lz4",
        "message.max.bytes": MAX_RECORD_BYTES,
        # An epoch comes at once: large batches, and a moment for them to fill; the flush before a commit cuts it short.
        "linger.ms": 20,
        "batch.size": 1 << 20,
        "batch.num.messages": 100_000,
        "queue.buffering.max.messages": 500_000,
        # More than a broker takes in a second; an epoch larger than memory must not gather here instead.
        "queue.buffering.max.kbytes": 64 << 10,
    }
