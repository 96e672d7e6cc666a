"""`keyhole feed` in a process of its own, with a state server and a proxy, and a source whose sums are known."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

from confluent_kafka import Producer

from keyhole import Client, feed
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.errors import KeyholeError
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_client_proxy, start_state_server
from tests.support.waiting import LONG_SECONDS, until

KEYS = 7
_LOOK_SECONDS = 0.1


class FeedStack:
    """A source that rows are sent to all the time, and the processes that make them readable.

    Args:
        relayed: The bootstrap servers of the state server, where it comes to Kafka by another way.
        settings: Further ones of the state server.
    """

    def __init__(
        self,
        kafka: str,
        application: str,
        directory: Path,
        ending: ExitStack,
        *,
        relayed: str = "",
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._kafka_of_servers = relayed or kafka
        self._settings = settings
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
            "server-0",
            self._port,
            bootstrap_servers=self._kafka_of_servers,
            directory=self._directory,
            environ={**os.environ, **self._settings},
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
        until(condition, 5 * LONG_SECONDS, _LOOK_SECONDS, self._said)

    def _said(self) -> list[str]:
        """What there is to read, and the end of what each process has said."""
        said = [f"{child.name}: {child.output()[-2000:]}" for child in (self.server, *self._started_ones)]
        return [f"{self.readable()} of {self.total} rows are readable", *said]

    def send(self, count: int, note: str | None = None) -> None:
        """Rows, each with an amount of its own, and with a note, if any."""
        for _ in range(count):
            number, self.total = self.total, self.total + 1
            customer = f"c{number % KEYS}"
            row = {"customer": customer, "amount": number, "order": f"o{number}"} | ({"note": note} if note else {})
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

    def is_confirmed(self) -> bool:
        """Whether owners of all keys answer, and somebody holds the state."""
        try:
            answers = self.client.get_many(*self.state.split("/"), [f"c{number}" for number in range(KEYS)])
        except KeyholeError:
            return False
        return not any(answer.source.unconfirmed for answer in answers)

    def grows(self) -> None:
        """Returns once a row is readable that was not there when this was called."""
        before = self.total
        self.comes_true(lambda: self.readable() > before)

    def all_agree(self) -> None:
        self.comes_true(lambda: self.readable() == self.total)
        assert self.found() == (self.sent, self.rows)
