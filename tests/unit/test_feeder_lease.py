"""A feeder whose lease was taken hears so, also where the broker has no answer to its commit; an outage is no such."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
from confluent_kafka import KafkaError, KafkaException

from keyhole.errors import Fenced, KafkaUnreachable
from keyhole.feed.kafka import lease
from keyhole.feed.kafka.lease import KafkaFeederLease
from tests.support.waiting import PATIENCE_SECONDS


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


def test_a_call_that_kafka_s_client_never_ends_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its broker died in the middle: the feeder begins again, or ends."""
    ended = threading.Event()

    class Hanging(_Kafka):
        def send_offsets_to_transaction(self, *_: object) -> None:
            assert ended.wait(5 * PATIENCE_SECONDS)

    for name, value in {"Producer": Hanging, "Consumer": _Kafka, "_SECONDS": 0.01, "_CLOSE_SECONDS": 0.01}.items():
        monkeypatch.setattr(lease, name, value)
    opened = KafkaFeederLease("localhost:1", "name", "orders")
    opened.keep({0: 1})
    with pytest.raises(KafkaUnreachable, match="no answer in time"):
        opened.keep({0: 2})
    closing_it = threading.Thread(target=opened.close)
    closing_it.start()
    closing_it.join(PATIENCE_SECONDS)
    try:
        assert not closing_it.is_alive()
    finally:
        ended.set()
        closing_it.join()
