"""A program's writes, without Kafka: what a producer sends beside them, whom it holds up, how an error is told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest

from keyhole.changelog.kafka.clients import Deadline
from keyhole.errors import ChangelogRecreated, ClientClosed, InvalidConfiguration, KafkaUnreachable, ValueMismatch
from keyhole.feed import Producer
from keyhole.model.state import StateKind, ValueField, ValueSchema
from keyhole.protocol.updates import BoundaryRecord, EndRecord, Record, UpdateRecord, decode
from keyhole.testing.clock import ManualClock
from tests.support.states import KEY_GROUPS, descriptor
from tests.support.waiting import PATIENCE_SECONDS, until

SUM = descriptor(
    kind=StateKind.REDUCING, reducers=("sum",), value=ValueSchema(1, (ValueField("n", "bigint"),)), topic_id=""
)
OF_UPDATES = msgspec.structs.replace(SUM, updates_topic_id="updates-1")


class Acknowledgement:
    """A record as it stands in the topic."""

    def __init__(self, at: int) -> None:
        self.offset = lambda: at


class FakeUpdates:
    """An updates topic that takes what it is sent once somebody looks, unless Kafka is `away`, or has no `room`."""

    made: FakeUpdates

    def __init__(self, *_: str) -> None:
        FakeUpdates.made = self
        self.topic_id = "updates-1"
        self.partitions = KEY_GROUPS
        self.most_bytes = 1_000
        self.log: list[tuple[int, Record]] = []
        self.closed = False
        self.away = threading.Event()
        self.looked = threading.Event()
        self.room = True
        self.in_order = True
        self._underway: list[tuple[int, bytes, Callable[[Acknowledgement], None]]] = []

    def bounds(self, partition: int) -> tuple[int, int]:
        return 0, 1

    def ends(self) -> dict[int, int]:
        return {partition: self.bounds(partition)[1] for partition in range(self.partitions)}

    def send_record(
        self, partition: int, value: bytes, done: Callable[[Acknowledgement], None], deadline: Deadline
    ) -> None:
        assert deadline.seconds <= 30, "nobody waits for ever"
        if not self.room:
            raise KafkaUnreachable("its queue is full and does not drain")
        self._underway.append((partition, value, done))

    def poll(self, seconds: float) -> None:
        assert seconds < 1
        if self.away.is_set():
            if seconds:
                self.looked.set()
            return
        acknowledged = []
        while self._underway:
            partition, value, done = self._underway.pop(0)
            self.log.append((partition, decode(value)))
            acknowledged.append((done, Acknowledgement(len(self.log))))
        for done, of in acknowledged if self.in_order else reversed(acknowledged):
            done(of)

    def close(self) -> None:
        self.closed = True

    def of(self, kind: type[Record]) -> list[Record]:
        return [record for _, record in self.log if isinstance(record, kind)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyhole.feed.producer.recorded_state", lambda *_: OF_UPDATES)
    monkeypatch.setattr("keyhole.feed.producer.KafkaUpdates", FakeUpdates)


@pytest.fixture
def producer(fed: None, clock: ManualClock) -> Iterator[Producer]:
    with Producer("kafka:1", "app/counts", clock=clock) as opened:
        yield opened


def test_a_boundary_names_the_updates_topic_that_has_its_rows(producer: Producer, clock: ManualClock) -> None:
    producer.add("a", {"n": 1})
    clock.advance(6)
    producer.add("b", {"n": 1})
    producer.flush()
    producer.flush()
    boundaries = FakeUpdates.made.of(BoundaryRecord)
    assert len(boundaries) == KEY_GROUPS
    assert {(one.ends[0], one.topic, one.updates_id) for one in boundaries} == {(2, "", "updates-1")}


def test_one_that_writes_no_more_has_its_boundary_all_the_same(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Owners remember all rows above the last one, and read the topic again from there."""
    monkeypatch.setattr("keyhole.feed.producer._BOUNDARY_SECONDS", 0.05)
    producer.add("a", {"n": 1})
    producer.flush()
    until(lambda: len(FakeUpdates.made.of(BoundaryRecord)) == KEY_GROUPS)
    producer.flush()
    assert producer._bounding is None, "there is nothing more to say"
    assert {one.ends[0] for one in FakeUpdates.made.of(BoundaryRecord)} == {1}


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"topic_id": "updates-2"}, ChangelogRecreated),
        ({"bounds": lambda self, partition: (0, 0)}, InvalidConfiguration),
        ({"bounds": lambda self, partition: (0, int(partition < KEY_GROUPS - 1))}, InvalidConfiguration),
        ({"bounds": lambda self, partition: 1 // 0}, ZeroDivisionError),
    ],
    ids=["made anew", "no rules", "no rules in one partition", "a bug"],
)
def test_a_topic_that_does_not_fit_is_refused_and_closed(
    fed: None, wrong: dict[str, object], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(FakeUpdates):
        def __init__(self, *_: str) -> None:
            super().__init__()
            vars(self).update({name: value for name, value in wrong.items() if not callable(value)})

    for name, value in wrong.items():
        if callable(value):
            monkeypatch.setattr(Wrong, name, value)
    monkeypatch.setattr("keyhole.feed.producer.KafkaUpdates", Wrong)
    with pytest.raises(error):
        Producer("kafka:1", "app/counts")
    assert FakeUpdates.made.closed


def test_a_write_is_taken_while_another_thread_waits_for_kafka(producer: Producer) -> None:
    updates = FakeUpdates.made
    producer.add("a", {"n": 0})
    producer.flush()
    updates.away.set()
    producer.add("a", {"n": 1})
    flushed, wrote = threading.Event(), threading.Event()

    def flush() -> None:
        producer.flush(PATIENCE_SECONDS)
        flushed.set()

    def write() -> None:
        producer.add("b", {"n": 1})
        wrote.set()

    threads = [threading.Thread(target=flush), threading.Thread(target=write)]
    try:
        threads[0].start()
        assert updates.looked.wait(PATIENCE_SECONDS)
        threads[1].start()
        assert wrote.wait(PATIENCE_SECONDS / 4)
        assert not flushed.is_set()
    finally:
        updates.away.clear()
        for thread in threads:
            thread.join()
    assert flushed.is_set()


def test_a_token_has_the_last_of_ones_own_writes_whoever_hears_of_them_first(producer: Producer) -> None:
    updates = FakeUpdates.made
    updates.in_order = False
    updates.away.set()  # two are under way at once
    producer.add("a", {"n": 1})
    producer.add("a", {"n": 2})
    updates.away.clear()
    token = producer.flush()
    assert list(token.epochs.values()) == [len(updates.log) + 1]


def test_a_write_that_kafka_has_no_room_for_is_raised_and_nobody_waits_for_it(producer: Producer) -> None:
    FakeUpdates.made.room = False
    with pytest.raises(KafkaUnreachable, match="queue is full"):
        producer.add("a", {"n": 1})
    FakeUpdates.made.room = True
    producer.add("a", {"n": 2})
    assert list(producer.flush(1.0).epochs) == [producer.key_group("a")]
    (found,) = FakeUpdates.made.of(UpdateRecord)
    assert found.value == [2]


def test_what_is_given_up_at_the_end_is_logged(
    fed: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("keyhole.feed.producer._CLOSE_SECONDS", 0.05)
    producer = Producer("kafka:1", "app/counts")
    FakeUpdates.made.away.set()
    producer.add("a", {"n": 1})
    with caplog.at_level(logging.WARNING):
        producer.close()
    assert "gives up what is under way" in caplog.text
    assert not FakeUpdates.made.of(EndRecord)
    assert FakeUpdates.made.closed
    with pytest.raises(ClientClosed):
        producer.flush()


@pytest.mark.parametrize("value", [None, 5, "n", [("n", 1)]], ids=repr)
def test_a_value_that_is_no_mapping_of_fields_is_refused(producer: Producer, value: object) -> None:
    with pytest.raises(ValueMismatch, match="is given by field, as"):
        producer.add("a", value)


def test_fields_that_there_are_not_are_named_whatever_they_are(producer: Producer) -> None:
    with pytest.raises(ValueMismatch, match="has no field 1"):
        producer.add("a", {1: 2, "zz": 3})
