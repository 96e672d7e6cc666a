"""Checkpoints that are deleted, set back or replaced: refused by name, or continued, or reset."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

import keyhole
from keyhole.coordinator.decisions import OnNewCheckpoint
from keyhole.errors import ChangelogRecreated, CheckpointMismatch
from keyhole.spark import queryable
from keyhole.spark.sink import Sink
from tests.support.streams import RunQuery, Service, Stream

SCHEMA = "k string, v bigint"
FIRST = [[{"k": "a", "v": 1}], [{"k": "b", "v": 2}], [{"k": "c", "v": 3}]]


def sink(service: Service, application: str, on_new_checkpoint: OnNewCheckpoint = "refuse") -> Sink:
    return queryable.value("last", key="k", config=service.config(application), on_new_checkpoint=on_new_checkpoint)


def held(service: Service, application: str) -> tuple[dict[str, int], int]:
    with keyhole.Client(service.proxy) as client:
        answers = client.get_many(application, "last", list("abcdef"))
    return {k: a.value.v for k, a in zip("abcdef", answers, strict=True) if a.found}, max(a.epoch for a in answers)


@pytest.fixture
def ran(stream: Stream, run_query: RunQuery, service: Service, application: str) -> None:
    """Three epochs have been committed under the checkpoint `checkpoint`."""
    run_query(stream(SCHEMA, FIRST), "append", sink(service, application))


@pytest.mark.usefixtures("ran")
def test_a_run_from_the_same_checkpoint_goes_on(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    run_query(stream(SCHEMA, [*FIRST, [{"k": "d", "v": 4}]]), "append", sink(service, application))
    assert held(service, application) == ({"a": 1, "b": 2, "c": 3, "d": 4}, 4)


@pytest.mark.usefixtures("ran")
def test_a_deleted_checkpoint_is_refused_with_the_ways_out_and_nothing_changes(
    stream: Stream, run_query: RunQuery, service: Service, application: str
) -> None:
    refused = sink(service, application)
    with pytest.raises(Exception, match="checkpoint"):
        run_query(stream(SCHEMA, FIRST), "append", refused, checkpoint="another")
    assert isinstance(refused.failure, CheckpointMismatch)
    for way_out in ("continue", "reset", "savepoint"):
        assert way_out in refused.failure.message
    assert held(service, application) == ({"a": 1, "b": 2, "c": 3}, 3)


@pytest.mark.usefixtures("ran")
def test_a_checkpoint_that_was_set_back_is_refused(
    stream: Stream, run_query: RunQuery, service: Service, application: str, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    for folder in ("offsets", "commits"):
        for batch in ("1", "2"):
            for file in (checkpoint / folder).glob(f"*{batch}*"):
                if file.name in (batch, f".{batch}.crc"):
                    file.unlink()
    refused = sink(service, application)
    with pytest.raises(Exception, match="set back"):
        run_query(stream(SCHEMA, FIRST), "append", refused)
    assert isinstance(refused.failure, CheckpointMismatch)
    assert held(service, application) == ({"a": 1, "b": 2, "c": 3}, 3)


@pytest.mark.usefixtures("ran")
def test_continue_keeps_the_state_and_adds_to_it(
    stream: Stream, run_query: RunQuery, service: Service, application: str, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "source")
    rows = stream(SCHEMA, [[{"k": "d", "v": 4}], [{"k": "a", "v": 5}]])
    run_query(rows, "append", sink(service, application, "continue"), checkpoint="another")
    assert held(service, application) == ({"a": 5, "b": 2, "c": 3, "d": 4}, 6)


@pytest.mark.usefixtures("ran")
def test_reset_empties_the_state_with_the_first_epoch(
    stream: Stream, run_query: RunQuery, service: Service, application: str, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "source")
    rows = stream(SCHEMA, [[{"k": "d", "v": 4}], [{"k": "e", "v": 5}]])
    run_query(rows, "append", sink(service, application, "reset"), checkpoint="another")
    assert held(service, application) == ({"d": 4, "e": 5}, 6)


@pytest.mark.usefixtures("ran")
def test_a_changelog_that_was_deleted_is_refused_and_reset_begins_anew(
    stream: Stream, run_query: RunQuery, service: Service, application: str, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": service.bootstrap_servers})
    topic = f"keyhole.{application}.last"
    admin.delete_topics([topic])[topic].result(30)
    refused = sink(service, application)
    with pytest.raises(Exception, match=topic):
        run_query(stream(SCHEMA, [*FIRST, [{"k": "d", "v": 4}]]), "append", refused)
    assert isinstance(refused.failure, ChangelogRecreated)
    shutil.rmtree(tmp_path / "source")
    rows = stream(SCHEMA, [[{"k": "e", "v": 5}]])
    run_query(rows, "append", sink(service, application, "reset"), checkpoint="another")
    assert held(service, application)[0] == {"e": 5}
