"""SIGKILL of a driver and of a state server, each at the step where most is at stake: all servers have committed and
nobody has been told; the transaction is committed and the store not written.

One pipeline goes through both. Each epoch brings the same number of events of every key, so that an answer's epoch
tells what it must be.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Producer

from keyhole import Client
from keyhole.cli.main import main
from keyhole.errors import KeyholeError
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_client_proxy, start_state_server
from keyhole.protocol.failpoints import Step
from keyhole.testing.kill_points import KillPoints
from tests.support.counting_job import STATE
from tests.support.pipeline import PATIENCE_SECONDS, Pipeline
from tests.support.waiting import LONG_SECONDS, until

KEYS = [f"key-{number}" for number in range(40)]
KEY_GROUPS = 8
# Of each key, in each epoch.
EVENTS = 2
PER_EPOCH = EVENTS * len(KEYS)

DRIVER_KILLED_AT, SERVER_KILLED_AT, WITHOUT_THE_SERVER, EPOCHS = 2, 3, 4, 5

Sum = tuple[int, int, int]
"""Events, highest value, total."""


class Events:
    """What is sent, and what the sums are of it. `epochs`: how many have been sent."""

    def __init__(self, pipeline: Pipeline) -> None:
        draw = random.Random(7)
        self._values = [[draw.randrange(1_000_000) for _ in range(EVENTS * EPOCHS)] for _ in KEYS]
        self._pipeline = pipeline
        self.epochs = 0

    def send(self, upto: int) -> None:
        """All up to an epoch."""
        producer = Producer({"bootstrap.servers": self._pipeline.bootstrap_servers, "enable.idempotence": True})
        for number in range(EVENTS * self.epochs, EVENTS * upto):
            for key, values in zip(KEYS, self._values, strict=True):
                # One partition, so that Spark takes them in this order.
                producer.produce(self._pipeline.topic, json.dumps({"k": key, "v": values[number]}), partition=0)
        assert producer.flush(PATIENCE_SECONDS) == 0
        self.epochs = upto

    def sums(self, epoch: int) -> dict[str, Sum]:
        """By key, once an epoch is complete."""
        counted = {key: values[: EVENTS * epoch] for key, values in zip(KEYS, self._values, strict=True)}
        return {key: (len(values), max(values), sum(values)) for key, values in counted.items() if values}


def ask(client: Client, application: str) -> list[tuple[int, str, Sum | None]]:
    """Of each key, its epoch and its sum; None: it is not there."""
    answers = client.get_many(application, STATE, KEYS)
    return [
        (of.epoch, key, (of.value.events, of.value.highest, of.value.total) if of.found else None)
        for key, of in zip(KEYS, answers, strict=True)
    ]


class Reader:
    """Asks for all keys, again and again, from `__init__` to `close`. `seen`: all that it was answered; `epoch`: the
    highest of these; `answers`: how many times all of them were.
    """

    def __init__(self, proxy: str, application: str) -> None:
        self.seen: set[tuple[int, str, Sum | None]] = set()
        self.epoch = self.answers = 0
        self._proxy, self._application = proxy, application
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    def await_more(self) -> None:
        """Returns once all keys were asked for, and answered, since this was called."""
        before = self.answers
        until(lambda: self.answers > before + 1, PATIENCE_SECONDS, 0.1)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        with Client(self._proxy, timeout=10) as client:
            while not self._closed.wait(0.05):
                with contextlib.suppress(KeyholeError):  # where nobody can answer, that is no wrong answer
                    found = ask(client, self._application)
                    self.seen.update(found)
                    self.epoch = max(self.epoch, *(epoch for epoch, *_ in found))
                    self.answers += 1


@dataclass
class Run:
    """Two servers, each the other's standby, a proxy before them, a reader, and the driver, which a pipeline has.

    Attributes:
        while_dead: What every key was while one server was dead, and all that had been sent was complete.
    """

    pipeline: Pipeline
    ports: Sequence[int]
    proxy: str
    events: Events
    servers: dict[str, Child] = field(default_factory=dict)
    while_dead: list[tuple[int, str, Sum | None]] = field(default_factory=list)
    seen: set[tuple[int, str, Sum | None]] = field(default_factory=set)

    def start_server(self, number: int, environ: dict[str, str]) -> None:
        name = f"server-{number}"
        self.servers[name] = start_state_server(
            name,
            self.ports[number],
            bootstrap_servers=self.pipeline.bootstrap_servers,
            directory=self.pipeline.directory,
            environ={**os.environ, **environ},
            module="tests.support.killable_state_server",
        )

    def start_driver(self, environ: dict[str, str]) -> Child:
        return self.pipeline.start_driver({"KEYHOLE_JOB_SERVERS": ",".join(self.addresses), **environ}, PER_EPOCH)

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports]

    def killing(self, step: Step, epoch: int) -> dict[str, str]:
        return KillPoints.environ(step, epoch, self._marker(step))

    def assert_killed(self, step: Step, epoch: int, child: Child) -> None:
        assert self._marker(step).exists(), child.output()[-3000:]
        assert self._marker(step).read_text() == f"{step} {epoch}"

    def _marker(self, step: Step) -> Path:
        return self.pipeline.directory / f"killed-{step}"

    def await_epoch(self, epoch: int) -> list[tuple[int, str, Sum | None]]:
        """Until every key is answered as of this epoch; the answers."""
        found: list[tuple[int, str, Sum | None]] = []

        def there() -> bool:
            with Client(self.proxy, timeout=LONG_SECONDS) as client:
                found[:] = ask(client, self.pipeline.application)
            return all(of == epoch for of, *_ in found)

        self.pipeline.await_(there, f"epoch {epoch}")
        return found

    def has_all(self, number: int, epoch: int) -> bool:
        """Whether a server has a whole copy of every key group, its own and those that it follows."""
        with Client(self.addresses[number], timeout=LONG_SECONDS) as client:
            (status,) = client.status()
        whole = [holding for holding in status.holdings if holding.ready and holding.source.epoch == epoch]
        return sum(len(holding.key_groups) for holding in whole) == KEY_GROUPS

    def go(self, reader: Reader) -> None:
        """Through both deaths; on from each of them once the reader has had an answer meanwhile."""
        at = self.killing(Step.DRIVER_COMMITTED, DRIVER_KILLED_AT)
        driver = self.start_driver(at)
        assert driver.wait(PATIENCE_SECONDS) is not None
        self.assert_killed(Step.DRIVER_COMMITTED, DRIVER_KILLED_AT, driver)
        # It is committed everywhere, and not complete: whichever of the two epochs servers show.
        reader.await_more()

        self.start_driver({})
        dying = self.servers["server-0"]
        self.pipeline.await_(lambda: dying.exit_code is not None, "death of the server")
        self.assert_killed(Step.SERVER_TRANSACTION_COMMITTED, SERVER_KILLED_AT, dying)
        self.while_dead = self.await_epoch(WITHOUT_THE_SERVER)
        reader.await_more()

        self.start_server(0, {})
        self.events.send(EPOCHS)
        self.await_epoch(EPOCHS)
        self.pipeline.await_(lambda: all(self.has_all(number, EPOCHS) for number in (0, 1)), "two whole copies")


@pytest.fixture(scope="module")
def run(kafka: str, spark_jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """All of it has happened; the processes still run."""
    directory = tmp_path_factory.mktemp("kills")
    with ExitStack() as stack:
        pipeline = Pipeline(directory, kafka, spark_jars, mode="reducing", standbys=1)
        stack.callback(pipeline.close)
        *ports, proxy = free_ports(3)
        made = Run(pipeline, ports, f"127.0.0.1:{proxy}", Events(pipeline))
        stack.callback(lambda: [server.kill() for server in made.servers.values()])
        made.start_server(0, made.killing(Step.SERVER_TRANSACTION_COMMITTED, SERVER_KILLED_AT))
        made.start_server(1, {})
        child = start_client_proxy("proxy", proxy, servers=made.addresses, directory=directory, environ=os.environ)
        stack.callback(child.kill)
        reader = Reader(made.proxy, pipeline.application)
        with contextlib.closing(reader):
            made.events.send(WITHOUT_THE_SERVER)
            made.go(reader)
            pipeline.await_(lambda: reader.epoch == EPOCHS, "an answer to the reader as of the last epoch")
        made.seen = reader.seen
        yield made


def test_sums_are_exact_after_a_driver_and_a_server_were_killed(run: Run) -> None:
    expected = run.events.sums(EPOCHS)
    assert run.await_epoch(EPOCHS) == [(EPOCHS, key, expected[key]) for key in KEYS]


def test_readers_saw_whole_epochs_only(run: Run) -> None:
    epochs = {epoch for epoch, *_ in run.seen}
    assert epochs >= {WITHOUT_THE_SERVER, EPOCHS}
    sums = {epoch: run.events.sums(epoch) for epoch in epochs}
    assert [of for of in run.seen if of[2] != sums[of[0]].get(of[1])] == []
    assert max(epochs) == EPOCHS


def test_the_query_goes_on_and_every_key_is_answered_while_a_server_is_dead(run: Run) -> None:
    expected = run.events.sums(WITHOUT_THE_SERVER)
    assert run.while_dead == [(WITHOUT_THE_SERVER, key, expected[key]) for key in KEYS]
    assert run.pipeline.driver is not None
    assert run.pipeline.driver.exit_code is None


def test_what_a_batch_writes_elsewhere_by_on_commit_is_there_once(run: Run) -> None:
    folder = run.pipeline.directory / "published"

    def published() -> dict[int, int]:
        return {int(path.name): int(path.read_text()) for path in folder.iterdir()}

    # A moment after readers see the epoch.
    run.pipeline.await_(lambda: EPOCHS in published(), "what the last epoch writes")
    assert published() == dict.fromkeys(range(1, EPOCHS + 1), PER_EPOCH)


def test_the_server_that_came_back_and_the_other_one_have_the_changelog_record_by_record(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    path, kafka = f"{run.pipeline.application}/{STATE}", run.pipeline.bootstrap_servers
    assert main(["verify", path, "--bootstrap-servers", kafka, "--servers", ",".join(run.addresses), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert {copy["server"] for copy in verdict["copies"]} == {"server-0", "server-1"}
    assert sum(copy["key_groups"] for copy in verdict["copies"]) == 2 * KEY_GROUPS
