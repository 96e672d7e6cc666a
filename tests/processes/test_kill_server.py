"""One query goes through all of it: kill -9 of its Kafka, and of its state server at every step of an epoch; each comes
back, the query goes on, and the recount agrees. Then stores are changed behind the server's back, and `keyhole verify`
tells.

The state is a sum: what an epoch that is committed again adds twice shows.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keyhole import Client
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.cli.main import main
from keyhole.errors import Unconfirmed
from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka
from keyhole.local.ports import free_ports
from keyhole.local.services import start_client_proxy
from keyhole.model.read import Answer
from keyhole.protocol.failpoints import Step
from keyhole.stores.base import Advance, Batch, StoreLimits
from keyhole.stores.engines import make_engine
from keyhole.verify.verify import describe
from tests.support.counting_job import STATE
from tests.support.pipeline import PATIENCE_SECONDS, Pipeline, counted
from tests.support.proxies import unused_address
from tests.support.waiting import LONG_SECONDS

STEPS = [step for step in Step if step.value.startswith("server-")]
ROCKSDB = {"KEYHOLE_STATE_SERVER_STORE": "rocksdb"}


# Kafka may be away for as long as a busy machine takes to start it again.
PATIENT = {
    "KEYHOLE_JOB_KAFKA_DEADLINE_SECONDS": str(PATIENCE_SECONDS),
    "KEYHOLE_JOB_EPOCH_DEADLINE_SECONDS": str(PATIENCE_SECONDS),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, jars: list[Path], java: Java) -> Iterator[LocalKafka]:
    """Of this query alone: a test may kill it."""
    broker = LocalKafka(tmp_path_factory.mktemp("kafka"), jars, java)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


@pytest.fixture(scope="module")
def pipeline(
    broker: LocalKafka, spark_jars: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    """With all events counted; a test may do what it likes to the server."""
    running = Pipeline(tmp_path_factory.mktemp("pipeline"), broker.bootstrap_servers, spark_jars)
    try:
        running.produce(300)
        running.start_server()
        running.start_driver(PATIENT)
        running.await_recount()
        yield running
    finally:
        running.close()


def assert_recount(pipeline: Pipeline) -> None:
    pipeline.await_recount()
    assert pipeline.driver is not None
    assert pipeline.driver.exit_code is None, "the same query: it never ended"


def ask(pipeline: Pipeline, stale: str) -> list[Answer]:
    """For all keys."""
    with Client(pipeline.address, timeout=LONG_SECONDS) as client:
        return client.get_many(pipeline.application, STATE, sorted(pipeline.expected), stale=stale)


def confirmed(pipeline: Pipeline) -> bool:
    """Whether the owner answers as one that its driver has confirmed."""
    try:
        return not any(answer.source.unconfirmed for answer in ask(pipeline, "never"))
    except Unconfirmed:
        return False


def test_while_kafka_is_away_owners_answer_unconfirmed_and_the_job_goes_on_when_it_is_back(
    pipeline: Pipeline, broker: LocalKafka
) -> None:
    """The driver can't know whether it was replaced: who asks for a confirmed owner is told so; others get answers."""
    counted_before, _ = pipeline.answers()
    pipeline.produce(1000)
    pipeline.await_(lambda: pipeline.answers()[0] != counted_before, "first answers")
    broker.kill()
    before, _ = pipeline.answers()
    during, _ = pipeline.answers()
    assert all(during[key] >= value for key, value in before.items())
    broker.start()
    assert_recount(pipeline)

    # After its servers' commits an epoch goes on until it is recorded, and keeps the leases meanwhile.
    pipeline.await_idle()
    pipeline.await_(lambda: confirmed(pipeline), "a confirmed owner")
    broker.kill()
    pipeline.await_(lambda: not confirmed(pipeline), "end of the lease")
    for _ in range(3):
        answers = ask(pipeline, "when_needed")
        assert counted(sorted(pipeline.expected), answers) == pipeline.expected
        assert all(answer.source.unconfirmed for answer in answers)
        with pytest.raises(Unconfirmed):
            ask(pipeline, "never")
    broker.start()
    pipeline.await_(lambda: confirmed(pipeline), "an owner that is confirmed again")
    pipeline.produce(200, seed=8)
    assert_recount(pipeline)


def test_a_server_killed_at_every_step_loses_nothing_and_adds_nothing_twice(pipeline: Pipeline) -> None:
    pipeline.kill_server_at(STEPS)
    assert_recount(pipeline)


def test_a_server_with_its_states_in_rocksdb_that_is_killed_around_a_write_adds_nothing_twice(
    pipeline: Pipeline,
) -> None:
    pipeline.lose_store()
    pipeline.kill_server_at([Step.SERVER_TRANSACTION_COMMITTED, Step.SERVER_STORE_WRITTEN], ROCKSDB)
    assert_recount(pipeline)
    assert (pipeline.directory / "server-0" / "FORMAT").read_text() == "keyhole rocksdb 1\n"


def test_a_server_whose_store_is_lost_rebuilds_it_from_the_changelog(pipeline: Pipeline) -> None:
    pipeline.produce(300)
    pipeline.await_recount()
    pipeline.lose_store()
    pipeline.start_server()
    assert_recount(pipeline)
    with Client(pipeline.address, timeout=LONG_SECONDS) as client:
        (status,) = client.status()
    (holding,) = status.holdings
    assert holding.descriptor.state == STATE
    assert holding.ready
    assert holding.restored_records == holding.records_to_restore > 0


def change_a_row(pipeline: Pipeline, in_store: str) -> tuple[int, bytes]:
    """Behind the back of the server, which is not running; its key group, and its storage key."""
    changelog = KafkaChangelog(pipeline.bootstrap_servers, pipeline.application)
    descriptor = describe(pipeline.application, STATE, changelog, LONG_SECONDS)
    engine = make_engine(in_store, StoreLimits(pipeline.directory / "server-0"), {})
    store = engine.open(pipeline.application, STATE, descriptor.topic_id)
    snapshot = store.snapshot()
    group, key, row = next((group, *item) for group in range(descriptor.key_groups) for item in snapshot.items(group))
    position = snapshot.positions()[group]
    snapshot.close()
    store.apply(Batch(puts=[(key, row + b"\0")], advances={group: Advance(position, position)}))
    engine.close()
    return group, key


@pytest.mark.parametrize("store", ["lmdb", "rocksdb"])
def test_a_row_that_was_changed_in_a_stopped_servers_store_is_found(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str], store: str
) -> None:
    environ = {"KEYHOLE_STATE_SERVER_STORE": store}

    def verify() -> tuple[int, dict[str, Any]]:
        path, kafka = f"{pipeline.application}/{STATE}", pipeline.bootstrap_servers
        code = main(["verify", path, "--bootstrap-servers", kafka, "--servers", pipeline.address, "--show=5", "--json"])
        return code, json.loads(capsys.readouterr().out)

    def ready() -> bool:
        with Client(pipeline.address, timeout=LONG_SECONDS) as client:
            holdings = [holding for server in client.status() for holding in server.holdings]
            return bool(holdings) and all(holding.ready for holding in holdings)

    pipeline.lose_store()
    server = pipeline.start_server(environ)
    pipeline.await_recount()
    code, verdict = verify()
    assert (code, verdict["differences"], verdict["unreachable"], verdict["not_compared"]) == (0, [], {}, [])
    assert [
        (copy["server"], copy["key_groups"], copy["all_key_groups"], copy["differing"]) for copy in verdict["copies"]
    ] == [("server-0", 8, 8, 0)]

    server.kill()
    group, key = change_a_row(pipeline, store)
    pipeline.start_server(environ)
    pipeline.await_(ready, "the server's key groups")
    code, verdict = verify()
    assert code == 1
    (found,) = verdict["differences"]
    assert (found["server"], found["key_group"]) == ("server-0", group)
    assert (found["missing"], found["extra"], found["different"], found["at_least"]) == (0, 0, 1, False)
    assert found["keys"] == {"different": [key.hex()]}


def test_what_could_not_be_compared_is_not_all_well(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    path = f"{pipeline.application}/{STATE}"
    pipeline.lose_store()
    pipeline.start_server()
    pipeline.await_recount()
    with unused_address() as gone, contextlib.ExitStack() as stack:
        (port,) = free_ports(1)
        proxy = start_client_proxy(
            "proxy", port, servers=[pipeline.address, gone], directory=pipeline.directory, environ=os.environ
        )
        stack.callback(proxy.kill)
        kafka = ["--bootstrap-servers", pipeline.bootstrap_servers]
        assert main(["verify", path, *kafka, "--proxy", f"127.0.0.1:{port}", "--json"]) == 1
        verdict = json.loads(capsys.readouterr().out)
        assert (verdict["differences"], verdict["not_compared"], list(verdict["unreachable"])) == ([], [], [gone])
        assert [(copy["key_groups"], copy["all_key_groups"]) for copy in verdict["copies"]] == [(8, 8)]
        assert main(["verify", path, *kafka, "--proxy", f"127.0.0.1:{port}"]) == 1
        shown = capsys.readouterr().out
        assert "8 of 8" in shown
        assert f"not compared: {gone}" in shown
    assert main(["verify", path, *kafka, "--servers", pipeline.address]) == 0
