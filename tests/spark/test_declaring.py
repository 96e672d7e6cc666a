"""Two queries of one application declare the same state at once, on a real Kafka: one has it, the other is told."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812

import keyhole
from keyhole.changelog.control_topic import ControlLog
from keyhole.changelog.kafka import control_log as control
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.changelog.settings import CONTROL, topic_name
from keyhole.clock import SystemClock
from keyhole.config import JobConfig
from keyhole.coordinator import new_states
from keyhole.coordinator.fleet import Fleet
from keyhole.coordinator.new_states import DECLARING
from keyhole.coordinator.run import QueryRun
from keyhole.errors import Fenced, KafkaUnreachable, StateConflict
from keyhole.protocol.control import GenerationRecord, QueryControl, QueryRecord, read_control, record
from keyhole.spark import queryable
from tests.support.refusals import longer_and_longer
from tests.support.states import descriptor
from tests.support.streams import Service, Stream
from tests.support.waiting import LONG_SECONDS

DEADLINE = LONG_SECONDS


@contextlib.contextmanager
def open_transaction(bootstrap_servers: str, topic: str) -> Iterator[None]:
    """With a record on the topic, which nobody sees; nor what comes after it, until this ends."""
    # Kafka does not end it by itself meanwhile, however slow the machine is.
    settings: dict[str, str | int] = {"bootstrap.servers": bootstrap_servers, "transaction.timeout.ms": 600_000}
    producer = Producer({**settings, "transactional.id": topic})
    producer.init_transactions(DEADLINE)
    producer.begin_transaction()
    producer.produce(topic, b"hides what follows", b"{}")
    producer.flush(DEADLINE)
    yield
    producer.abort_transaction(DEADLINE)


def test_a_declaration_that_a_third_querys_transaction_hides_is_not_overlooked(kafka: str, application: str) -> None:
    changelog = KafkaChangelog(kafka, application)
    one, two = (descriptor(application=application, query=query) for query in ("one", "two"))
    log = changelog.control("two")
    fleet = Fleet(tuple)
    run = QueryRun(
        JobConfig(application, ("a:1",), kafka),  # its deadline is the job's: what is refused at it waits for it
        "two",
        changelog,
        log,
        fleet,
        SystemClock(),
        open_seconds=0,  # it does not wait until Kafka ends what others have left open
    )
    with contextlib.closing(log), contextlib.closing(fleet):
        control = run.take()
        assert control.states == {}
        with open_transaction(kafka, topic_name(application, CONTROL)):
            with contextlib.closing(changelog.control(DECLARING)) as shared:
                shared.open(DEADLINE)
                shared.append(record("state", one.state, one), DEADLINE)
            with pytest.raises(KafkaUnreachable):
                run.declare(control, {two: 0}, "refuse", QueryRecord("spark-1", base=1))
        with pytest.raises(StateConflict, match="fed by query 'one'; query 'two' can't feed it too"):
            run.declare(control, {two: 0}, "refuse", QueryRecord("spark-1", base=1))


def test_a_run_takes_what_earlier_ones_recorded_though_another_querys_driver_died_in_a_transaction(
    kafka: str, application: str
) -> None:
    changelog, fleet, wanted = KafkaChangelog(kafka, application), Fleet(tuple), descriptor(application=application)

    @contextlib.contextmanager
    def started(seconds: float = DEADLINE) -> Iterator[tuple[QueryRun, ControlLog]]:
        config = JobConfig(application, ("a:1",), kafka, kafka_deadline_seconds=seconds)
        with contextlib.closing(changelog.control("main")) as log:
            yield QueryRun(config, "main", changelog, log, fleet, SystemClock(), open_seconds=0), log

    with contextlib.closing(fleet):
        with started() as (first, _):
            first.declare(first.take(), {wanted: 0}, "refuse", QueryRecord("spark-1", base=1))
        with open_transaction(kafka, topic_name(application, CONTROL)):
            for seconds in longer_and_longer(5.0):
                with started(seconds) as (second, log):
                    with pytest.raises(KafkaUnreachable) as refused:
                        second.take()
                    if "a transaction, begun before it, is still open" in refused.value.message:
                        # What it can't see yet was written all the same, by a run whose start was not kept from it.
                        log.append(record("generation", "main", GenerationRecord(7, "earlier")), DEADLINE)
                        break
            else:  # on a slow machine Kafka may not have told the end within the first
                pytest.fail(refused.value.message)
            with started(5.0) as (third, _), pytest.raises(KafkaUnreachable):
                third.take()
        with started() as (fourth, _):
            assert fourth.take().generation == 7
            assert fourth.run.generation == 8


def test_who_only_looks_on_reads_all_that_was_recorded_once_no_transaction_hides_it(
    kafka: str, application: str
) -> None:
    changelog = KafkaChangelog(kafka, application)
    with (
        contextlib.closing(changelog.control("main")) as log,
        contextlib.closing(changelog.control("reader")) as reader,
    ):
        log.open(DEADLINE)
        log.append({"a": b"1"}, DEADLINE)
        with open_transaction(kafka, topic_name(application, CONTROL)):
            log.append({"a": b"2"}, DEADLINE)
            # At once, however much is hidden; or not at all.
            assert reader.read(DEADLINE) == {"a": b"1"}
            # On a busy machine 2 s don't suffice to ask Kafka for the end.
            said = []
            for seconds in longer_and_longer(3.0):
                with pytest.raises(KafkaUnreachable) as refused:
                    reader.read_decided(seconds)
                said.append(str(refused.value))
                if "a transaction, begun before it, is still open" in said[-1]:
                    break
            else:
                pytest.fail("\n".join(said))
        assert reader.read_decided(DEADLINE) == {"a": b"2"}
        log.append({"a": b"3"}, DEADLINE)  # it was not fenced


def test_what_a_dead_driver_left_open_is_ended_by_kafka_though_its_query_never_starts_again(
    kafka: str, application: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changelog = KafkaChangelog(kafka, application)
    monkeypatch.setattr(control, "CONTROL_TRANSACTION_TIMEOUT_MS", 1_000)
    with contextlib.closing(changelog.control("dead")) as dead:
        dead.open(DEADLINE)
        producer = dead._transactions._producer
        assert producer is not None
        producer.begin_transaction()
        producer.produce(topic_name(application, CONTROL), b"hides what follows", b"{}")
        producer.flush(DEADLINE)
        config = JobConfig(application, ("a:1",), kafka)
        with contextlib.closing(changelog.control("main")) as log, contextlib.closing(Fleet(tuple)) as fleet:
            run = QueryRun(config, "main", changelog, log, fleet, SystemClock())
            run.take()
        # Had it only been suspended, it would be fenced from now on, and could start again.
        with pytest.raises(Fenced):
            dead.append({"a": b"{}"}, DEADLINE)


def test_queries_of_one_process_with_new_states_start_together_in_one_attempt_each(
    kafka: str, application: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"query-{number}" for number in range(8)]
    together, attempts = threading.Barrier(len(names), timeout=LONG_SECONDS), list[object]()
    attempt = new_states._attempt

    def counted(*arguments: Any) -> Any:
        attempts.append(attempt(*arguments))
        return attempts[-1]

    monkeypatch.setattr(new_states, "_attempt", counted)

    def start(name: str) -> None:
        changelog = KafkaChangelog(kafka, application)
        wanted = descriptor(application=application, state=name, query=name)
        config = JobConfig(application, ("a:1",), kafka)
        with contextlib.closing(changelog.control(name)) as log, contextlib.closing(Fleet(tuple)) as fleet:
            run = QueryRun(config, name, changelog, log, fleet, SystemClock())
            control = run.take()
            together.wait()
            run.declare(control, {wanted: 0}, "refuse", QueryRecord("spark-1", base=1))

    with ThreadPoolExecutor(len(names)) as pool:
        for started in [pool.submit(start, name) for name in names]:
            started.result(LONG_SECONDS)
    # None: it was fenced.
    assert [type(of) for of in attempts] == [dict] * len(names)
    log = KafkaChangelog(kafka, application).control("reader")
    assert {of.query for of in read_control(log.read(DEADLINE), "reader").states.values()} == set(names)


def test_of_two_queries_that_start_together_one_has_the_state_and_the_other_is_refused_by_both_names(
    stream: Stream, service: Service, application: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2, timeout=LONG_SECONDS)
    take = QueryRun.take

    def taken(run: QueryRun, spark_query_id: str) -> QueryControl:
        """None of them knows of the other's state."""
        control = take(run, spark_query_id)
        both.wait()
        return control

    monkeypatch.setattr(QueryRun, "take", taken)
    rows = stream("k string", [[{"k": "a"}]])
    sinks = {
        query: queryable.value("last", key="k", query=query, config=service.config(application))
        for query in ("one", "two")
    }
    queries = [
        rows.withColumn("by", F.lit(query))
        .writeStream.option("checkpointLocation", str(tmp_path / query))
        .foreachBatch(sink)
        .start()
        for query, sink in sinks.items()
    ]
    for running in queries:
        with contextlib.suppress(StreamingQueryException):
            running.processAllAvailable()
    ((loser, error),) = [(query, sink.failure) for query, sink in sinks.items() if sink.failure is not None]
    (winner,) = sinks.keys() - {loser}
    assert isinstance(error, StateConflict)
    assert f"fed by query {winner!r}; query {loser!r} can't feed it too" in error.message
    log = KafkaChangelog(service.bootstrap_servers, application).control("reader")
    assert read_control(log.read(DEADLINE), winner).states["last"].query == winner
    with keyhole.Client(service.proxy, timeout=LONG_SECONDS) as client:
        assert client.get(application, "last", "a").value.by == winner
    for running in queries:
        running.stop()
