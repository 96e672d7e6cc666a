"""A feeder whose lease was taken hears so, also where the broker has no answer to its commit; an outage is no such."""

from __future__ import annotations

from contextlib import closing

import pytest
from confluent_kafka import KafkaError, KafkaException

from keyhole.errors import Fenced, KafkaUnreachable
from keyhole.feed.kafka import lease
from keyhole.feed.kafka.lease import KafkaFeederLease


class _Kafka:
    """Producer and consumer in one, whose commits fail."""

    def __init__(self, _: object) -> None:
        self.aborts: int | None = None

    def begin_transaction(self) -> None: ...

    def send_offsets_to_transaction(self, *_: object) -> None: ...

    def consumer_group_metadata(self) -> None: ...

    def close(self) -> None: ...

    def commit_transaction(self, _: float) -> None:
        raise KafkaException(KafkaError(KafkaError.UNKNOWN))

    def abort_transaction(self, _: float) -> None:
        if self.aborts is not None:
            raise KafkaException(KafkaError(self.aborts))


@pytest.mark.parametrize(
    ("aborts", "error"),
    [
        (KafkaError._FENCED, Fenced),
        (KafkaError._TIMED_OUT, KafkaUnreachable),
        (None, KafkaUnreachable),
    ],
)
def test_a_commit_without_an_answer_is_asked_after(
    monkeypatch: pytest.MonkeyPatch, aborts: int | None, error: type[Exception]
) -> None:
    monkeypatch.setattr(lease, "Producer", _Kafka)
    monkeypatch.setattr(lease, "Consumer", _Kafka)
    with closing(KafkaFeederLease("localhost:1", "name", "orders")) as opened:
        opened._producer.aborts = aborts  # type: ignore[attr-defined]  # _Kafka
        opened.keep({0: 1})
        with pytest.raises(error):
            opened.keep({0: 2})
