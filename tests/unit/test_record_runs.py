"""What a consumer has brought, by partition."""

from __future__ import annotations

from confluent_kafka import KafkaError, Message

from keyhole.changelog.kafka.consumer import as_records, runs


def record(topic: str, partition: int, offset: int) -> Message:
    return Message(topic=topic, partition=partition, offset=offset, key=b"%d" % offset, value=None)


def event(topic: str, partition: int, offset: int, code: int) -> Message:
    return Message(topic=topic, partition=partition, offset=offset, error=KafkaError(code))


def found(*messages: Message) -> list[tuple[tuple[str, int], list[int | None], int | None, int | None]]:
    return [
        (run.part, [of.offset() for of in run.records], run.end, None if run.error is None else run.error.code())
        for run in runs(messages)
    ]


def test_records_of_one_partition_are_one_run() -> None:
    assert found(record("a", 1, 5), record("a", 1, 6)) == [(("a", 1), [5, 6], None, None)]
    assert found() == []


def test_records_of_several_come_apart_also_where_only_the_topic_differs() -> None:
    assert found(record("a", 1, 5), record("a", 2, 5), record("a", 1, 6)) == [
        (("a", 1), [5, 6], None, None),
        (("a", 2), [5], None, None),
    ]
    assert found(record("a", 1, 5), record("b", 1, 5)) == [(("a", 1), [5], None, None), (("b", 1), [5], None, None)]


def test_an_end_and_an_error_end_a_run_also_where_all_is_of_one_partition() -> None:
    end, gone = KafkaError._PARTITION_EOF, KafkaError.UNKNOWN_TOPIC_OR_PART
    assert found(record("a", 1, 5), event("a", 1, 6, end)) == [(("a", 1), [5], 6, None)]
    assert found(record("a", 1, 5), event("a", 1, 0, gone), record("a", 1, 6)) == [
        (("a", 1), [5], None, gone),
        (("a", 1), [6], None, None),
    ]


def test_the_records_of_a_run_are_columns() -> None:
    ((_, records, _, _),) = runs([record("a", 1, 5), record("a", 1, 7)])
    columns = as_records(records)
    assert (columns.keys, columns.values) == ([b"5", b"7"], [None, None])
    assert columns.offset_at(1) == 7
