"""keyhole.testing.Writer: epochs without Spark, as real ones."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from keyhole import Client
from keyhole.config import JobConfig
from keyhole.errors import DuplicateKey, InvalidConfiguration, KeyMismatch, StateChanged
from keyhole.testing.writer import Writer

if TYPE_CHECKING:
    from tests.support.streams import Service


AT = datetime(2026, 11, 21, 10, tzinfo=UTC)
NOBODY = JobConfig("app", ("127.0.0.1:1",), "127.0.0.1:1")


def test_what_it_writes_is_read_with_its_types(service: Service, application: str) -> None:
    row = {"k": 1, "text": "x", "number": 1.5, "at": AT, "parts": [{"a": 1}], "flag": True}
    with Writer(service.config(application), "things", key="k") as writer, Client(service.proxy) as client:
        epoch = writer.write([row])
        answer = client.get(application, "things", 1)
        assert (answer.found, answer.epoch) == (True, epoch)
        value = answer.value.asdict()
        assert value == {"text": "x", "number": 1.5, "at": AT, "parts": [{"a": 1}], "flag": True}
        assert writer.write([], delete=[{"k": 1}]) == epoch + 1
        assert not client.get(application, "things", 1).found


def test_a_wrong_epoch_changes_nothing_and_the_next_one_is_written(service: Service, application: str) -> None:
    with Writer(service.config(application), "things", key="k") as writer, Client(service.proxy) as client:
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
