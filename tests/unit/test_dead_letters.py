"""The producer of a worker's dead letters: one for all of its tasks, and another one after it has failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from keyhole.errors import KafkaUnreachable
from keyhole.spark.worker import rejecting

_COLUMNS = {"__key": None, "__value": b"broken", "__topic": "readings", "__partition": 0, "__offset": 7}


class Producers:
    """Takes the place of confluent_kafka's Producer. `made`: by each, the reasons that it was given."""

    def __init__(self) -> None:
        self.made: list[list[str]] = []
        self.left = 0
        self.error: KafkaError | None = None
        self.refuses = False

    def __call__(self, settings: dict[str, Any]) -> Any:
        given: list[str] = []
        self.made.append(given)
        reports: list[Callable[[KafkaError | None, Any], None]] = []

        def produce(topic: str, value: Any, key: Any, on_delivery: Any, headers: list[tuple[str, str]]) -> None:
            if self.refuses:
                raise KafkaException(KafkaError(KafkaError._FATAL))
            given.append(dict(headers)["reason"])
            reports.append(on_delivery)

        def flush(seconds: float) -> int:
            for report in reports:
                report(self.error, None)
            reports.clear()
            return self.left

        return SimpleNamespace(produce=produce, flush=flush, poll=lambda seconds: 0)


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Producers]:
    made = Producers()
    monkeypatch.setattr(rejecting, "Producer", made)
    rejecting._producer.cache_clear()
    yield made
    rejecting._producer.cache_clear()


def task(*reasons: str | None) -> list[int]:
    """A task with a record for each; the numbers of those that are good."""
    rows = [{"number": number, "__reason": reason, **_COLUMNS} for number, reason in enumerate(reasons)]
    counter: Any = SimpleNamespace(add=lambda number: None)
    kept = rejecting.set_aside("kafka:9092", "readings.dead-letter", counter, counter, _batches(rows))
    return [number for batch in kept for number in batch.column("number").to_pylist()]


def _batches(rows: list[dict[str, Any]]) -> list[pa.RecordBatch]:
    kinds = {"number": pa.int64(), "__reason": pa.string(), "__key": pa.binary(), "__value": pa.binary()}
    schema = pa.schema({**kinds, "__topic": pa.string(), "__partition": pa.int32(), "__offset": pa.int64()})
    return [pa.RecordBatch.from_pylist(rows[:2], schema), pa.RecordBatch.from_pylist(rows[2:], schema)]


def test_all_tasks_of_a_worker_have_one_producer_and_none_where_nothing_is_wrong(producers: Producers) -> None:
    assert task(None, None, None) == [0, 1, 2]
    assert producers.made == []
    assert task("a", None, "b") == [1]
    assert task(None, "c", None) == [0, 2]
    assert producers.made == [["a", "b", "c"]]


def test_one_that_has_not_sent_all_is_not_used_again(producers: Producers) -> None:
    producers.left = 1
    with pytest.raises(KafkaUnreachable):
        task("a")
    producers.left, producers.error = 0, KafkaError(KafkaError._ALL_BROKERS_DOWN)
    with pytest.raises(KafkaUnreachable):
        task("b")
    producers.error = None
    assert task(None, "c") == [0]
    assert producers.made == [["a"], ["b"], ["c"]]


def test_one_that_takes_nothing_any_more_is_not_used_again(producers: Producers) -> None:
    assert task("a") == []
    producers.refuses = True
    with pytest.raises(KafkaException):
        task("b")
    producers.refuses = False
    assert task("c") == []
    assert producers.made == [["a"], ["c"]]


def test_one_of_a_task_that_was_cut_off_is_not_used_again(producers: Producers) -> None:
    counter: Any = SimpleNamespace(add=lambda number: None)
    rows = [{"number": number, "__reason": "cut", **_COLUMNS} for number in range(4)]
    kept: Any = rejecting.set_aside("kafka:9092", "readings.dead-letter", counter, counter, _batches(rows))
    next(kept)
    kept.close()
    assert task("whole") == []
    assert producers.made == [["cut", "cut"], ["whole"]]
