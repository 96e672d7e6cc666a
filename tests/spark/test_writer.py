"""keyhole.testing.Writer: epochs without Spark, as real ones."""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from keyhole import Client
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.clock import SystemClock
from keyhole.config import JobConfig
from keyhole.coordinator.coordinator import Coordinator
from keyhole.errors import (
    CheckpointMismatch,
    DuplicateKey,
    Fenced,
    InvalidConfiguration,
    KeyMismatch,
    StateChanged,
)
from keyhole.protocol.epochs import EpochBatch, StatePlan
from keyhole.testing.writer import Writer
from tests.support.waiting import LONG_SECONDS

if TYPE_CHECKING:
    from tests.support.streams import Service


AT = datetime(2026, 11, 21, 10, tzinfo=UTC)
NOBODY = JobConfig("app", ("127.0.0.1:1",), "127.0.0.1:1")


def test_what_it_writes_is_read_with_its_types(service: Service, application: str) -> None:
    row = {"k": 1, "text": "x", "number": 1.5, "at": AT, "parts": [{"a": 1}], "flag": True}
    with (
        Writer(service.config(application), "things", key="k") as writer,
        Client(service.proxy, timeout=LONG_SECONDS) as client,
    ):
        epoch = writer.write([row])
        answer = client.get(application, "things", 1)
        assert (answer.found, answer.epoch) == (True, epoch)
        value = answer.value.asdict()
        assert value == {"text": "x", "number": 1.5, "at": AT, "parts": [{"a": 1}], "flag": True}
        assert writer.write([], delete=[{"k": 1}]) == epoch + 1
        assert not client.get(application, "things", 1).found


def test_a_wrong_epoch_changes_nothing_and_the_next_one_is_written(service: Service, application: str) -> None:
    with (
        Writer(service.config(application), "things", key="k") as writer,
        Client(service.proxy, timeout=LONG_SECONDS) as client,
    ):
        writer.write([{"k": "a", "v": 1}])
        with pytest.raises(DuplicateKey):
            writer.write([{"k": "a", "v": 2}, {"k": "a", "v": 3}])
        assert client.get(application, "things", "a").value.v == 1
        writer.write([{"k": "a", "v": 4}])
        assert client.get(application, "things", "a").value.v == 4


def test_a_state_that_is_there_with_other_keys_is_refused(service: Service, application: str) -> None:
    with Writer(service.config(application), "things", key="k") as writer:
        writer.write([{"k": "a", "v": 1}])
    with Writer(service.config(application), "things", key="k") as other, pytest.raises(StateChanged):
        other.write([{"k": 1, "v": 1}])


def test_a_start_with_another_checkpoint_is_refused_and_whoever_writes_goes_on_until_it_is_taken_over(
    service: Service, application: str
) -> None:
    config = service.config(application)
    changelog = KafkaChangelog(config.bootstrap_servers, application)
    with Writer(config, "things", key="k") as writer, Client(service.proxy, timeout=LONG_SECONDS) as client:
        writer.write([{"k": "a", "v": 1}])
        before = changelog.control("reader").read(30.0)
        schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
        plan = StatePlan(writer._descriptor(schema))
        batch = EpochBatch("another checkpoint", 0, 0, 0, (plan,), 1, stage=lambda order: ())
        second = Coordinator(config, "things", changelog, SystemClock())
        with contextlib.closing(second), pytest.raises(CheckpointMismatch, match="another Spark checkpoint"):
            second.run_epoch(batch)
        writer.write([{"k": "a", "v": 2}])
        assert client.get(application, "things", "a", stale="never").value.v == 2
        after = changelog.control("reader").read(30.0)
        assert {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)} == {"complete/things"}
        with Writer(config, "things", key="k") as third:
            third.write([{"k": "a", "v": 3}])
            says = rf"taken over from its run 1, which must stop: by .* \(run id .*, process {os.getpid()} on "
            with pytest.raises(Fenced, match=says):
                writer.write([{"k": "a", "v": 4}])


@pytest.mark.core
@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"kind": "reducing"}, "a Writer's kinds are value, map, list, broadcast; 'reducing' needs a job"),
        ({"kind": "map"}, "a map has a map key"),
        ({"kind": "list", "map_key": "m"}, "no other kind has"),
    ],
)
def test_a_kind_that_it_cannot_write_is_named(declared: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidConfiguration, match=says):
        Writer(NOBODY, "things", key="k", **declared)


@pytest.mark.core
def test_keys_are_checked_before_anything_is_sent() -> None:
    with Writer(NOBODY, "things", key="k") as writer:
        with pytest.raises(InvalidConfiguration, match="write some, or give a schema"):
            writer.write([], delete=[{"k": 1}])
        with pytest.raises(KeyMismatch, match="there is no key column k; the columns are v"):
            writer.write([{"v": 1}])
        with pytest.raises(KeyMismatch, match="key column k is a double"):
            writer.write([{"k": 1.5}])
