"""What the exporter finds out from Kafka, and what it leaves unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest
from confluent_kafka import KafkaError

from keyhole.changelog.kafka import offsets as kafka_offsets
from keyhole.changelog.kafka.asked_offsets import AskedOffsets
from keyhole.changelog.kafka.consumer import TopicPart
from keyhole.changelog.kafka.offsets import TopicOffsets
from keyhole.errors import InvalidConfiguration
from keyhole.testing.clock import ManualClock
from services.metrics_exporter.kafka_look import Found, KafkaLook, SourceRead, Wanted, look
from tests.support.waiting import until


class Offsets:
    """Kafka, as of a test. Topics that it doesn't have are left out."""

    def __init__(self, **ends: list[int]) -> None:
        self._ends = ends

    def _of(self, topics: object, which: int) -> dict[tuple[str, int], int]:
        assert isinstance(topics, dict)
        return {
            (topic, part): 0 if which else self._ends[topic][part]
            for topic in topics
            if topic in self._ends
            for part in topics[topic]
        }

    def ends(self, topics: object, timeout_seconds: float) -> dict[tuple[str, int], int]:
        return self._of(topics, 0)

    def starts(self, topics: object, timeout_seconds: float) -> dict[tuple[str, int], int]:
        return self._of(topics, 1)


def test_a_kafka_that_was_asked_for_nothing_is_not_told_to_be_away() -> None:
    kafka = KafkaLook(Offsets(), ManualClock(), 1.0)
    assert kafka.up is None


def test_source_lag_is_what_lies_between_where_spark_is_and_the_topics_ends() -> None:
    reads = [SourceRead("shop", "main", "orders", part, 90) for part in range(2)]
    offsets = Offsets(**{"orders": [100, 95], "keyhole.shop.carts": [7, 5]})
    found = look(offsets, Wanted({("shop", "carts"): 2, ("shop", "without-a-topic"): 2}, reads))
    assert found.source_lag == {("shop", "main", "orders"): 15}
    assert found.changelogs == {("shop", "carts"): 12}


def test_an_application_of_which_a_source_is_gone_has_no_lag_that_looks_as_if_all_were_read() -> None:
    orders, other = SourceRead("shop", "main", "orders", 0, 90), SourceRead("mall", "main", "orders", 0, 80)
    gone = SourceRead("shop", "main", "deleted", 0, 5)
    assert look(Offsets(orders=[90]), Wanted({}, (orders, gone, other))).source_lag == {("mall", "main", "orders"): 10}


def test_a_source_that_was_read_before_and_is_gone_hides_no_lag_of_the_others() -> None:
    orders, before = SourceRead("shop", "main", "orders", 0, 90), SourceRead("shop", "old", "deleted", 0, 5, told=False)
    assert look(Offsets(orders=[95]), Wanted({}, (orders, before))).source_lag == {("shop", "main", "orders"): 5}


def test_where_kafka_tells_of_no_changelog_the_lag_is_told_all_the_same() -> None:
    class Refusing(Offsets):
        def starts(self, topics: object, timeout_seconds: float) -> dict[tuple[str, int], int]:
            raise InvalidConfiguration("not these")

    wanted = Wanted({("shop", "carts"): 1}, (SourceRead("shop", "main", "orders", 0, 90),))
    found = look(Refusing(orders=[95]), wanted)
    assert (found.source_lag, found.changelogs) == ({("shop", "main", "orders"): 5}, {})


def test_a_topic_that_was_made_anew_has_no_lag_once_two_looks_in_a_row_say_so() -> None:
    wanted = Wanted({}, (SourceRead("shop", "main", "orders", 0, 90), SourceRead("mall", "main", "orders", 0, 3)))
    mall = {("mall", "main", "orders"): 2}
    first = look(Offsets(orders=[5]), wanted)
    assert first.source_lag == {("shop", "main", "orders"): 0} | mall
    second = look(Offsets(orders=[5]), wanted, first)
    assert second.source_lag == mall
    again = look(Offsets(orders=[95]), wanted, second)
    assert again.source_lag == {("shop", "main", "orders"): 5, ("mall", "main", "orders"): 92}
    assert look(Offsets(orders=[5]), wanted, again).source_lag == first.source_lag


def test_nothing_stays_found_once_nothing_is_wanted() -> None:
    clock = ManualClock()
    kafka = KafkaLook(Offsets(orders=[100]), clock, 1.0)

    def moves(condition: Callable[[], object]) -> Callable[[], object]:
        def moved() -> object:
            clock.advance(1.0)
            return condition()

        return moved

    kafka.wanted = Wanted({}, (SourceRead("shop", "main", "orders", 0, 90),))
    kafka.start()
    until(moves(lambda: kafka.up))
    assert kafka.found.source_lag == {("shop", "main", "orders"): 10}
    kafka.wanted = Wanted()
    until(moves(lambda: kafka.up is None))
    assert (kafka.found, kafka.age_seconds) == (Found(), float("inf"))
    kafka.close()


class Client:
    """In place of an OffsetsClient: topics named `good...` end at 7, of all others Kafka refuses the offsets."""

    made: ClassVar[list[Client]] = []

    def __init__(self, bootstrap_servers: str, *, committed: bool) -> None:
        self.closed = 0
        self.made.append(self)

    def ends(self, parts: Sequence[TopicPart], timeout_seconds: float) -> AskedOffsets:
        refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        good = {part: 7 for part in parts if "good" in part[0]}
        return AskedOffsets(good, {part: refused for part in parts if part not in good})

    def starts(self, parts: Sequence[TopicPart], timeout_seconds: float) -> AskedOffsets:
        asked = self.ends(parts, timeout_seconds)
        return asked._replace(found=dict.fromkeys(asked.found, 3))

    def close(self) -> None:
        self.closed += 1


class _Failing(Client):
    def __init__(self, bootstrap_servers: str, *, committed: bool) -> None:
        raise OSError("too many open files")


@pytest.fixture(autouse=True)
def _clients(monkeypatch: pytest.MonkeyPatch) -> None:
    Client.made = []
    monkeypatch.setattr(kafka_offsets, "OffsetsClient", Client)


def test_a_topic_that_kafka_refuses_takes_away_its_own_figures_alone() -> None:
    offsets = TopicOffsets("k:1", partial=True)
    assert offsets.ends({"good": [0], "bad": [0]}, 1) == {("good", 0): 7}
    assert [client.closed for client in Client.made] == [1, 0], "a client may go on being refused for ever"
    reads = (
        SourceRead("a", "main", "good", 0, 4),
        SourceRead("b", "main", "good", 0, 4),
        SourceRead("b", "main", "bad", 0, 4),
    )
    found = look(offsets, Wanted({("good", "carts"): 2, ("bad", "carts"): 2}, reads))
    assert found.source_lag == {("a", "main", "good"): 3}
    assert found.changelogs == {("good", "carts"): 8}
    with pytest.raises(InvalidConfiguration, match="TOPIC_AUTHORIZATION_FAILED"):
        offsets.ends({"bad": [0, 1]}, 1)


def test_whoever_needs_all_of_the_offsets_is_told_of_one_that_kafka_refuses() -> None:
    with pytest.raises(InvalidConfiguration, match="TOPIC_AUTHORIZATION_FAILED"):
        TopicOffsets("k:1").ends({"good": [0], "bad": [0]}, 1)


def test_where_no_new_client_can_be_made_the_old_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = TopicOffsets("k:1")
    with monkeypatch.context() as patched:
        patched.setattr(kafka_offsets, "OffsetsClient", _Failing)
        with pytest.raises(OSError, match="too many open files"):
            offsets.ends({"bad": [0]}, 1)
    assert [client.closed for client in Client.made] == [0]
    assert offsets.ends({"good": [0]}, 1) == {("good", 0): 7}
