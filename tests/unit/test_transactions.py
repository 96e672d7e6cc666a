"""What a producer says while it is given up concerns nobody."""

from __future__ import annotations

from typing import cast

from confluent_kafka import KafkaError, KafkaException, Producer

from keyhole.changelog.transactions import Transactions


class Broken:
    """A producer that has failed for good: every poll says so again."""

    def purge(self) -> None:
        pass

    def poll(self, timeout: float) -> int:
        raise KafkaException(KafkaError(KafkaError.INVALID_TXN_STATE, fatal=True))


def test_a_producer_that_has_failed_for_good_can_be_closed() -> None:
    transactions = Transactions("127.0.0.1:1", "grant")
    transactions._producer = cast(Producer, Broken())
    transactions.close()
    transactions.close()
