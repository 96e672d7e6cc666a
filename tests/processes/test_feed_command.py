"""`keyhole feed` with a real Kafka, state server and proxy: feeder and server are killed, and each row counts once."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.cli.main import main
from keyhole.coordinator import feed_run
from keyhole.errors import KeyholeError
from keyhole.feed.column_text import quoted
from keyhole.model.read import Entry
from tests.support.avro_records import framed, record_schema
from tests.support.feed_stack import FeedStack
from tests.support.hostile_names import OF_FIELDS, OF_KEYS
from tests.support.http_values import plain
from tests.support.protobuf_records import Writer
from tests.support.protobuf_records import framed as of_protobuf
from tests.support.schema_registry import StandInRegistry
from tests.support.waiting import LONG_SECONDS


@pytest.fixture
def stack(kafka: str, application: str, tmp_path: Path) -> Iterator[FeedStack]:
    with ExitStack() as ending:
        yield FeedStack(kafka, application, tmp_path, ending)


@pytest.fixture
def stream(stack: FeedStack) -> Iterator[Callable[[], None]]:
    """Rows come all the time; called, it ends them."""
    stop = threading.Event()

    def send() -> None:
        while not stop.wait(0.02):
            stack.send(10)

    sending = threading.Thread(target=send)
    sending.start()

    def end() -> None:
        stop.set()
        sending.join()

    yield end
    end()


def test_each_row_counts_once_whoever_is_killed_or_told_to_end(
    stack: FeedStack,
    stream: Callable[[], None],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stack.comes_true(lambda: stack.total > 20)
    assert main(stack.words("--value", "amount")) == 2
    assert "give one of the two" in capfd.readouterr().err
    assert main(stack.words("--reduce", "ordr=count")) == 1
    assert "has a field ordr (is it order?)" in capfd.readouterr().err
    assert stack.client.list_states() == []

    feeder = stack.start_feeder()
    stack.grows()
    feeder.kill()
    feeder = stack.start_feeder()
    stack.grows()
    stack.server.kill()
    stack.start_server()
    stack.grows()

    # Another one for the same state is refused, and says who feeds it: it listens until it has heard of that one, which
    # a busy machine does not let beat each second.
    monkeypatch.setattr(feed_run, "_SILENT_SECONDS", LONG_SECONDS)
    assert main(stack.words("--reduce", "order=count")) == 1
    assert f"process {feeder.pid}" in capfd.readouterr().err
    stack.grows()
    # Told to take over it does: the first one ends, and says who that is.
    second = stack.start_feeder("--take-over")
    stack.comes_true(lambda: feeder.exit_code == 1)
    assert "was taken over" in feeder.output()
    assert f"process {second.pid}" in feeder.output()
    stack.grows()
    stream()
    stack.all_agree()
    epochs = stack.write("c1", 1000)
    answer = stack.client.get(*stack.state.split("/"), "c1", min_epoch=epochs)
    assert answer.value.amount == stack.sent["c1"], "who has written it sees it, without waiting for more"

    assert second.terminate(LONG_SECONDS) == 0
    assert "stopped: " in second.output()
    assert stack.found() == (stack.sent, stack.rows)
    stack.send_unreadable()
    stack.send(50)
    last = stack.start_feeder()
    stack.all_agree()
    assert last.terminate(LONG_SECONDS) == 0
    assert f"1 refused to {stack.topic}.dead-letter" in last.output()


ORDER = record_schema(customer="string", amount="long")
WIDER = record_schema(note=["null", "string"], customer="string", amount="int")


def test_a_topic_of_avro_is_fed_through_an_outage_of_what_stands_in_for_its_registry(stack: FeedStack) -> None:
    topic = f"{stack.application}-avro"
    with closing(StandInRegistry()) as registry:
        registry.add(7, ORDER)
        registry.status = 503
        feeder = stack.start_feeder_of("avro", topic, registry.url)
        rows = [framed(7, ORDER, {"customer": "c1", "amount": amount}) for amount in range(10)]
        stack.send_records(topic, *rows, b"{}")
        stack.comes_true(lambda: "refuses, with HTTP status 503" in feeder.output())
        registry.add(8, WIDER)
        registry.status = None
        stack.send_records(topic, framed(8, WIDER, {"note": "new", "customer": "c1", "amount": 100}))
        stack.comes_true(lambda: stack.total_of("avro", "c1") == sum(range(10)) + 100)
        assert feeder.terminate(LONG_SECONDS) == 0
        assert f"1 refused to {topic}.dead-letter" in feeder.output()


PAID = """
syntax = "proto3";
package shop;
import "shop/currency.proto";
message Header { string id = 1; }
message Paid { string customer = 1; int64 amount = 2; Currency currency = 3; }
"""
CURRENCY = 'syntax = "proto3"; package shop; enum Currency { UNKNOWN = 0; CHF = 1; }'


def test_a_topic_of_protobuf_is_fed_by_schemas_that_refer_to_others(stack: FeedStack) -> None:
    topic, writer = f"{stack.application}-protobuf", Writer(PAID, {"shop/currency.proto": CURRENCY})

    def paid(amount: int) -> bytes:
        row = {"customer": "c1", "amount": amount, "currency": "CHF"}
        return of_protobuf(7, writer.message("shop.Paid", row), 1)

    with closing(StandInRegistry()) as registry:
        reference = {"name": "shop/currency.proto", "subject": "currency", "version": 1}
        registry.add_text(7, PAID, schemaType="PROTOBUF", references=[reference])
        registry.add_text(9, "message", schemaType="PROTOBUF")
        registry.subjects["currency", "1"] = {**reference, "id": 8, "schema": CURRENCY, "schemaType": "PROTOBUF"}
        feeder = stack.start_feeder_of("protobuf", topic, registry.url)
        stack.send_records(topic, *map(paid, range(10)), paid(1)[:-1], of_protobuf(9, b""), paid(100))
        stack.comes_true(lambda: stack.total_of("protobuf", "c1") == sum(range(10)) + 100)
        assert feeder.terminate(LONG_SECONDS) == 0
        assert f"2 refused to {topic}.dead-letter" in feeder.output()


KEY, MAP_KEY, VALUE = ([*OF_KEYS][start::3] for start in range(3))
NUMBERS = {name: number for number, name in enumerate(OF_KEYS)}
FIELDS = {name: number for number, name in enumerate(OF_FIELDS)}


def test_fields_of_any_name_are_fed_as_keys_map_keys_values_and_in_structs(stack: FeedStack) -> None:
    topic, state = f"{stack.application}-names", "__class__"
    make_topics(stack.kafka, {topic: 1}, LONG_SECONDS)
    stack.send_records(topic, json.dumps(NUMBERS | {"nested": FIELDS}).encode())
    columns = {"--key": KEY, "--map-key": MAP_KEY, "--value": VALUE}
    words = [word for option, names in columns.items() for name in names for word in (option, f"{quoted(name)}:int")]
    struct = f"nested:struct<{','.join(f'{name}:int' for name in FIELDS)}>"
    feeder = stack.start_feeder_into(state, topic, *words, "--value", struct)
    key, map_key = (tuple(NUMBERS[name] for name in names) for names in (KEY, MAP_KEY))

    def found() -> list[Entry]:
        with contextlib.suppress(KeyholeError):
            return list(stack.client.scan(stack.application, state, key))
        return []

    stack.comes_true(found)
    (entry,) = found()
    assert (entry.map_key, plain(entry.value)) == (map_key, {of: NUMBERS[of] for of in VALUE} | {"nested": FIELDS})
    assert [entry.value[name] for name in VALUE] == [NUMBERS[name] for name in VALUE]
    assert feeder.terminate(LONG_SECONDS) == 0
