"""`keyhole verify` against real servers, real Kafka and a running job."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keyhole import Client
from keyhole.changelog.kafka import KafkaChangelog
from keyhole.cli.main import main
from keyhole.local.ports import free_ports
from keyhole.local.services import start_client_proxy
from keyhole.stores.base import Advance, Batch, StoreLimits
from keyhole.stores.engines import make_engine
from keyhole.verify.verify import describe
from tests.support.counting_job import STATE
from tests.support.pipeline import Pipeline
from tests.support.proxies import unused_address


@pytest.fixture(scope="module")
def pipeline(kafka: str, spark_jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """One query for all of it, with all events counted; a test may do what it likes to the server."""
    running = Pipeline(tmp_path_factory.mktemp("pipeline"), kafka, spark_jars)
    running.produce(300)
    running.start_server()
    running.start_driver()
    running.await_recount()
    yield running
    running.close()


def change_a_row(pipeline: Pipeline, in_store: str) -> tuple[int, bytes]:
    """Behind the back of the server, which is not running; its key group, and its storage key."""
    changelog = KafkaChangelog(pipeline.bootstrap_servers, pipeline.application)
    descriptor = describe(pipeline.application, STATE, changelog, 30)
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
        with Client(pipeline.address, timeout=5) as client:
            holdings = [holding for server in client.status() for holding in server.holdings]
            return bool(holdings) and all(holding.ready for holding in holdings)

    pipeline.lose_store()
    server = pipeline.start_server(environ)
    pipeline.await_recount()
    code, told = verify()
    assert (code, told["differences"], told["unreachable"], told["not_compared"]) == (0, [], {}, [])
    assert [
        (copy["server"], copy["key_groups"], copy["all_key_groups"], copy["differing"]) for copy in told["copies"]
    ] == [("server-0", 8, 8, 0)]

    server.kill()
    group, key = change_a_row(pipeline, store)
    pipeline.start_server(environ)
    pipeline.await_(ready, "the server's key groups")
    code, told = verify()
    assert code == 1
    (found,) = told["differences"]
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
        told = json.loads(capsys.readouterr().out)
        assert (told["differences"], told["not_compared"], list(told["unreachable"])) == ([], [], [gone])
        assert [(copy["key_groups"], copy["all_key_groups"]) for copy in told["copies"]] == [(8, 8)]
        assert main(["verify", path, *kafka, "--proxy", f"127.0.0.1:{port}"]) == 1
        shown = capsys.readouterr().out
        assert "8 of 8" in shown
        assert f"not compared: {gone}" in shown
    assert main(["verify", path, *kafka, "--servers", pipeline.address]) == 0
