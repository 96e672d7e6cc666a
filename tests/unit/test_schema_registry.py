"""How a schema registry is asked, over HTTP, by Confluent's client. What answers stands in for one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from keyhole.errors import InvalidConfiguration
from keyhole.feed.record_encoding import RegistryAway
from keyhole.feed.registry.avro import avro_schema, read_whole
from keyhole.feed.registry.client import ConfluentRegistry
from keyhole.feed.registry.schemas import SchemaUnknown
from tests.support.avro_records import number, record_schema
from tests.support.schema_registry import StandInRegistry

SECRET = "s3cret"


@pytest.fixture
def registry() -> Iterator[StandInRegistry]:
    with closing(StandInRegistry()) as made:
        yield made


def test_a_schema_is_asked_for_by_its_id(registry: StandInRegistry) -> None:
    registry.add(7, "string")
    registry.add(8, "syntax", schemaType="PROTOBUF")
    client = ConfluentRegistry(registry.url + "/")
    assert client.schema(7) == ("AVRO", '"string"', ())
    assert client.schema(8).kind == "PROTOBUF"
    assert registry.asked[0] == ("/schemas/ids/7", None)


def test_what_it_refers_to_stands_before_it(registry: StandInRegistry) -> None:
    def reference(name: str) -> dict[str, object]:
        return {"name": name, "subject": f"{name}/x", "version": 1}

    registry.add(7, record_schema(a="A", b="B"), references=[reference("A"), reference("B")])
    for name, schema, more in (
        ("A", record_schema("A", b="B"), [reference("B")]),
        ("B", record_schema("B", n="int"), []),
    ):
        registry.subjects[f"{name}/x", "1"] = {
            "subject": f"{name}/x",
            "version": 1,
            "id": ord(name),
            "schema": json.dumps(schema),
            "references": more,
        }
    found = ConfluentRegistry(registry.url).schema(7)
    assert [name for name, _ in found.references] == ["B", "A"]
    of = avro_schema(found.text, found.references)
    assert read_whole(of, number(1) + number(2), 0, "it") == {"a": {"b": {"n": 1}}, "b": {"n": 2}}


def test_schemas_that_refer_to_each_other_end(registry: StandInRegistry) -> None:
    itself = {"name": "A", "subject": "A", "version": 1}
    registry.add(7, record_schema(a="A"), references=[itself])
    registry.subjects["A", "1"] = {
        **itself,
        "id": 9,
        "schema": json.dumps(record_schema("A", a=["null", "A"])),
        "references": [itself],
    }
    assert [name for name, _ in ConfluentRegistry(registry.url).schema(7).references] == ["A"]


def test_an_unknown_schema_and_a_registry_that_is_away_are_told_apart(registry: StandInRegistry) -> None:
    client = ConfluentRegistry(registry.url)
    with pytest.raises(SchemaUnknown):
        client.schema(7)
    for status in (401, 403, 404, 500, 503):
        registry.status = status
        with pytest.raises(RegistryAway, match=f"refuses, with HTTP status {status}"):
            client.schema(7)
    registry.status = None
    registry.add(7, "string")
    assert client.schema(7).kind == "AVRO"
    registry.close()
    with pytest.raises(RegistryAway, match=f"at {registry.url} does not answer"):
        client.schema(8)
    assert client.schema(7).kind == "AVRO"


def test_passwords_are_in_a_file(registry: StandInRegistry, tmp_path: Path) -> None:
    registry.add(7, "string")
    file = tmp_path / "registry"
    file.write_text(f"# who asks\nbasic.auth.user.info=me:{SECRET}\n")
    ConfluentRegistry(f"{registry.url}?settings={file}").schema(7)
    assert registry.asked[-1][1] == "Basic bWU6czNjcmV0"
    registry.status = 401
    with pytest.raises(RegistryAway) as caught:
        ConfluentRegistry(f"{registry.url}?settings={file}").schema(8)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("registry:8081", "takes a URL"),
        ("", "takes a URL"),
        (f"http://me:{SECRET}@registry:8081", "has a password in it"),
        ("http://registry:8081?settings=/nowhere", "the schema registry's settings can't be read"),
    ],
)
def test_a_registry_that_can_t_be_one_is_refused(url: str, says: str) -> None:
    with pytest.raises(InvalidConfiguration, match=says) as caught:
        ConfluentRegistry(url)
    assert SECRET not in caught.value.message


@pytest.mark.parametrize(
    "line", ["sasl.password=x", "max.retries=9", "basic.auth.user.info", "basic.auth.user.info=" + SECRET]
)
def test_settings_that_are_none_of_a_registry_s_are_refused_unquoted(line: str, tmp_path: Path) -> None:
    file = tmp_path / "registry"
    file.write_text(line)
    with pytest.raises(InvalidConfiguration) as caught:
        ConfluentRegistry(f"http://registry:8081?settings={file}")
    assert SECRET not in caught.value.message
