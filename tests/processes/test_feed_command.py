"""`keyhole feed` with a real Kafka, state server and proxy: feeder and server are killed, and each row counts once."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from keyhole import Client, feed
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.cli.main import main
from keyhole.coordinator import feed_run
from keyhole.errors import KeyholeError
from keyhole.feed.column_text import quoted
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_client_proxy, start_state_server
from keyhole.model.read import Entry
from tests.support.avro_records import framed, record_schema
from tests.support.hostile_names import OF_FIELDS, OF_KEYS
from tests.support.http_values import plain
from tests.support.protobuf_records import Writer
from tests.support.protobuf_records import framed as of_protobuf
from tests.support.schema_registry import StandInRegistry
from tests.support.waiting import LONG_SECONDS, until

KEYS = 7
LOOK_SECONDS = 0.1


class Stack:
    """A source that rows are sent to all the time, and the processes that make them readable."""

    def __init__(self, kafka: str, application: str, directory: Path, ending: ExitStack) -> None:
        self.kafka = kafka
        self.application = application
        self.state = f"{application}/totals"
        self.topic = f"{application}-orders"
        self.sent: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()
        self.total = 0
        self._directory = directory
        self._ending = ending
        self._started_ones: list[Child] = []
        self._port, proxy_port = free_ports(2)
        make_topics(kafka, {self.topic: 2}, LONG_SECONDS)
        self._producer = Producer({"bootstrap.servers": kafka})
        ending.callback(self._producer.close)
        self.start_server()
        proxy = start_client_proxy(
            "proxy", proxy_port, servers=[self.server_address], directory=directory, environ=dict(os.environ)
        )
        ending.callback(proxy.kill)
        self.proxy = f"127.0.0.1:{proxy_port}"
        # Of one look, of which there are several.
        self.client = ending.enter_context(Client(self.proxy, timeout=LONG_SECONDS / 2))

    @property
    def server_address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start_server(self) -> None:
        self.server = start_state_server(
            "server-0", self._port, bootstrap_servers=self.kafka, directory=self._directory, environ=dict(os.environ)
        )
        self._ending.callback(self.server.kill)

    def words(self, *more: str) -> list[str]:
        return [
            *("feed", self.state, "--topic", self.topic, "--key", "customer", "--reduce", "amount:bigint=sum"),
            *("--key-groups", "4", "--bootstrap-servers", self.kafka, "--servers", self.server_address),
            *more,
        ]

    def start_feeder(self, *more: str) -> Child:
        return self._started(*self.words("--reduce", "order=count", *more))

    def _started(self, *words: str) -> Child:
        name = f"feeder-{len(self._started_ones) + 1}"
        command = [sys.executable, "-m", "keyhole.cli.main", *words]
        child = Child(name, command, self._directory / f"{name}.log", dict(os.environ))
        self._started_ones.append(child)
        self._ending.callback(child.kill)
        return child

    def comes_true(self, condition: Callable[[], object]) -> None:
        """Waits for it: processes have to start, to find out who was lost, and to take over."""
        until(condition, 5 * LONG_SECONDS, LOOK_SECONDS, self._said)

    def _said(self) -> list[str]:
        """The end of what each process has said."""
        return [f"{child.name}: {child.output()[-2000:]}" for child in (self.server, *self._started_ones)]

    def send(self, count: int) -> None:
        for _ in range(count):
            number, self.total = self.total, self.total + 1
            customer = f"c{number % KEYS}"
            row = {"customer": customer, "amount": number, "order": f"o{number}"}
            self._producer.produce(self.topic, json.dumps(row).encode(), partition=number % 2)
            self.sent[customer] += number
            self.rows[customer] += 1
        assert self._producer.flush(LONG_SECONDS) == 0

    def start_feeder_of(self, record_format: str, topic: str, registry: str) -> Child:
        """Feeds the state of the format's name."""
        make_topics(self.kafka, {topic: 1}, LONG_SECONDS)
        words = "--key", "customer", "--reduce", "amount:bigint=sum", "--unchecked"
        return self.start_feeder_into(record_format, topic, "--format", record_format, "--registry", registry, *words)

    def start_feeder_into(self, state: str, topic: str, *more: str) -> Child:
        return self._started(
            *("feed", f"{self.application}/{state}", "--topic", topic, "--key-groups", "4"),
            *("--bootstrap-servers", self.kafka, "--servers", self.server_address, *more),
        )

    def send_records(self, topic: str, *values: bytes) -> None:
        for value in values:
            self._producer.produce(topic, value)
        assert self._producer.flush(LONG_SECONDS) == 0

    def send_unreadable(self) -> None:
        self._producer.produce(self.topic, b"{", partition=0)
        assert self._producer.flush(LONG_SECONDS) == 0

    def write(self, customer: str, amount: int) -> Mapping[int, int]:
        """By a program, beside the topic. Returns what a reader asks for to see it."""
        with feed.Producer(self.kafka, self.state) as producer:
            producer.add(customer, {"amount": amount, "order": 1})
            token = producer.flush(LONG_SECONDS)
            self.total += 1
            self.sent[customer] += amount
            self.rows[customer] += 1
            return token.epochs

    def found(self) -> tuple[Counter[str], Counter[str]]:
        """Sums and counts by key, as a reader sees them; of what can't be read now nothing."""
        names = [f"c{number}" for number in range(KEYS)]
        try:
            answers = self.client.get_many(*self.state.split("/"), names)
        except KeyholeError:
            return Counter(), Counter()
        there = {name: answer.value for name, answer in zip(names, answers, strict=True) if answer.found}
        return (
            Counter({name: value.amount for name, value in there.items()}),
            Counter({name: value.order for name, value in there.items()}),
        )

    def total_of(self, state: str, customer: str) -> int | None:
        """What a state says of a customer; None: nothing (yet)."""
        try:
            answer = self.client.get(self.application, state, customer)
        except KeyholeError:
            return None
        return answer.value.amount if answer.found else None

    def readable(self) -> int:
        return sum(self.found()[1].values())

    def grows(self) -> None:
        """Returns once a row is readable that was not there when this was called."""
        before = self.total
        self.comes_true(lambda: self.readable() > before)

    def all_agree(self) -> None:
        self.comes_true(lambda: self.readable() == self.total)
        assert self.found() == (self.sent, self.rows)


@pytest.fixture
def stack(kafka: str, application: str, tmp_path: Path) -> Iterator[Stack]:
    with ExitStack() as ending:
        yield Stack(kafka, application, tmp_path, ending)


@pytest.fixture
def stream(stack: Stack) -> Iterator[Callable[[], None]]:
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
    stack: Stack,
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


def test_a_topic_of_avro_is_fed_through_an_outage_of_what_stands_in_for_its_registry(stack: Stack) -> None:
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


def test_a_topic_of_protobuf_is_fed_by_schemas_that_refer_to_others(stack: Stack) -> None:
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


def test_fields_of_any_name_are_fed_as_keys_map_keys_values_and_in_structs(stack: Stack) -> None:
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
