"""What an owner makes of a broker that has not heard of an updates topic, and of a producer whose queue is full."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from keyhole.changelog.base import Partition, RefusedRecord
from keyhole.changelog.kafka import dead_letter_topics, updates_topics
from keyhole.changelog.kafka.updates_topics import KafkaUpdatesTopics
from keyhole.errors import KafkaUnreachable, KeyholeError
from keyhole.protocol.updates import LoggedUpdate
from tests.support.waiting import PATIENCE_SECONDS

NOBODY = "127.0.0.1:1"


class Topics:
    """What a cluster says of the topic."""

    def __init__(self) -> None:
        self.id: str | None = "id"

    def describe(self, topic: str, deadline: object) -> SimpleNamespace | None:
        return None if self.id is None else SimpleNamespace(topic_id=self.id)

    def close(self) -> None: ...


class Looks:
    """Looks at one topic, by a clock that stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topics = KafkaUpdatesTopics(NOBODY, "app")
        self.cluster = Topics()
        self.now = 100.0
        monkeypatch.setattr(self.topics, "_topics", self.cluster)
        monkeypatch.setattr(updates_topics, "time", SimpleNamespace(monotonic=lambda: self.now))

    def look(self) -> list[str]:
        return list(self.topics.lost({"s": "id"}, 1.0))


def test_a_topic_is_gone_once_two_looks_some_seconds_apart_did_not_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    of = Looks(monkeypatch)
    assert of.look() == []
    of.cluster.id = None
    for _ in range(3):
        with pytest.raises(KafkaUnreachable, match="not heard"):
            of.look()
        of.now += 0.5
    of.now += 1.0
    assert of.look() == ["s"]


def test_a_topic_that_was_not_found_now_and_then_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    of = Looks(monkeypatch)
    for _ in range(3):
        of.cluster.id = None
        with pytest.raises(KafkaUnreachable):
            of.look()
        of.cluster.id, of.now = "id", of.now + 5
        assert of.look() == []
    of.cluster.id = None
    for _ in range(3):  # nobody looked between them
        with pytest.raises(KafkaUnreachable):
            of.look()
        of.now += 3_600


def test_another_id_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    of = Looks(monkeypatch)
    of.cluster.id = "another"
    assert of.look() == ["s"]


def test_dead_letters_for_which_there_is_no_room_end_with_their_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letter_topics, "make_topics", lambda *_: None)
    few = {**dead_letter_topics._SETTINGS, "queue.buffering.max.messages": 10}
    monkeypatch.setattr(dead_letter_topics, "_SETTINGS", few)
    topics = KafkaUpdatesTopics(NOBODY, "app")
    letters = [RefusedRecord(Partition("s", 0), LoggedUpdate(at, 0, b"{}"), "x") for at in range(20)]
    raised: list[KeyholeError] = []

    def put() -> None:
        try:
            topics.put_aside(letters, 0.2)
        except KeyholeError as error:
            raised.append(error)

    thread = threading.Thread(target=put, daemon=True)  # else it would never end where this fails
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert [type(error) for error in raised] == [KafkaUnreachable]
    assert "full" in str(raised[0])
