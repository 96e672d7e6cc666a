"""What can't be had of a real broker at will: a producer that has failed for good, and one that has lost records."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from keyhole.changelog.kafka.transactions import PartitionAppend, Transactions
from keyhole.errors import KafkaUnreachable, OutcomeUnknown

Delivered = Callable[[KafkaError | None, Message], None]


class Broken:
    """A producer that has failed for good: every poll says so again."""

    def purge(self) -> None:
        pass

    def poll(self, timeout: float) -> int:
        raise KafkaException(KafkaError(KafkaError.INVALID_TXN_STATE, fatal=True))


class Taken:
    """A record that was acknowledged."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset


class Losing:
    """A producer that acknowledges all, of which its broker has none of the first ones of a partition."""

    def __init__(self, lost: int) -> None:
        self.committed = self.aborted = False
        self._lost, self._sent = lost, 0
        self._callbacks: list[tuple[Delivered, int]] = []

    def begin_transaction(self) -> None:
        self._sent = 0

    def produce(self, topic: str, value: bytes, key: bytes, partition: int, delivered: Delivered | None = None) -> None:
        if delivered is not None:
            # As librdkafka says of a record that it only believes to be there.
            self._callbacks.append((delivered, self._sent - self._lost if self._sent >= self._lost else -1001))
        self._sent += 1

    def flush(self, timeout: float) -> int:
        for delivered, offset in self._callbacks:
            delivered(None, cast(Message, Taken(offset)))
        return 0

    def commit_transaction(self, timeout: float) -> None:
        self.committed = True

    def abort_transaction(self, timeout: float) -> None:
        self.aborted = True


class Dropping(Losing):
    """A producer of which one record is refused for good, by this error, and the others are dropped for that."""

    def __init__(self, code: int) -> None:
        super().__init__(0)
        self._code = code

    def flush(self, timeout: float) -> int:
        for number, (delivered, offset) in enumerate(self._callbacks):
            error = KafkaError(KafkaError._PURGE_QUEUE if number else self._code)
            delivered(error, cast(Message, Taken(offset)))
        self._callbacks.clear()
        return 0


def written(producer: Losing, records: int) -> list[int]:
    transactions = Transactions("127.0.0.1:1", "grant")
    transactions._producer = cast(Producer, producer)
    return transactions.write([PartitionAppend("topic", 0, [(b"k", b"v")] * records, (b"last", b""))], 1.0)


def test_a_producer_that_has_failed_for_good_can_be_closed() -> None:
    transactions = Transactions("127.0.0.1:1", "grant")
    transactions._producer = cast(Producer, Broken())
    transactions.close()
    transactions.close()


@pytest.mark.parametrize("records", [0, 1, 5])
def test_a_transaction_whose_first_records_are_lost_is_aborted(records: int) -> None:
    for lost in range(1, records + 2):
        producer = Losing(lost)
        with pytest.raises(KafkaUnreachable, match="fewer records than it has acknowledged"):
            written(producer, records)
        assert (producer.committed, producer.aborted) == (False, True)


@pytest.mark.parametrize("records", [0, 1, 5])
def test_a_transaction_whose_records_are_all_there_is_committed(records: int) -> None:
    producer = Losing(0)
    assert written(producer, records) == [records]
    assert producer.committed


def test_a_producer_that_has_dropped_records_writes_no_more_unless_it_begins_another_epoch() -> None:
    for code, ended in [(KafkaError.TOPIC_AUTHORIZATION_FAILED, True), (KafkaError._MSG_TIMED_OUT, False)]:
        producer = Dropping(code)
        transactions = Transactions("127.0.0.1:1", "grant")
        transactions._producer = cast(Producer, producer)
        both = [PartitionAppend("topic", partition, [], (b"last", b"")) for partition in range(2)]
        for _ in range(2):
            with pytest.raises(OutcomeUnknown if ended else KafkaUnreachable):
                transactions.write(both, 1.0)
        assert (producer.committed, producer.aborted) == (False, True)


def test_what_is_refused_before_any_record_was_sent_ends_no_producer() -> None:
    class Unready(Losing):
        def begin_transaction(self) -> None:
            if not self.aborted:
                raise KafkaException(KafkaError(KafkaError._STATE))
            super().begin_transaction()

    producer = Unready(0)
    with pytest.raises(KafkaUnreachable):
        written(producer, 1)
    assert written(producer, 1) == [1]
