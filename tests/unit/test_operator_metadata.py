"""Spark's notes on an operator's schemas, of a checkpoint that lies elsewhere from now on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keyhole.savepoint.operator_metadata import moving, url_in_spark

FILE = "0_e0914f0b-b9c6-45d0-aa8b-96ff998352bf"
NOTES = {
    "operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateInPySparkExec"},
    "stateStoreInfo": [{"storeName": "default", "numPartitions": 2, "stateSchemaFilePaths": []}],
    "operatorPropertiesJson": '{"timeMode":"ü"}',
}


def notes(*paths: str, operator: int = 0) -> tuple[str, bytes]:
    """The name of such a file, and its bytes."""
    (store,) = NOTES["stateStoreInfo"]
    operators = NOTES | {"stateStoreInfo": [{**store, "stateSchemaFilePaths": paths}]}  # type: ignore[dict-item]  # JSON
    text = json.dumps(operators, separators=(",", ":"), ensure_ascii=False)
    return f"state/{operator}/_metadata/v2/7", f"v2\n{text}".encode()


def moved(name: str, data: bytes, checkpoint: str) -> bytes:
    of = moving(name)
    assert of is not None
    return of(data, checkpoint)


@pytest.mark.parametrize(
    ("checkpoint", "url"),
    [
        ("/data/new", "file:/data/new"),
        ("/data/new/", "file:/data/new"),
        ("/data/a b/ü", "file:/data/a b/ü"),
        ("relative/new", f"file:{Path.cwd()}/relative/new"),
        ("file:///data/new", "file:/data/new"),
        ("file:/data/new", "file:/data/new"),
        ("s3://bucket/new/", "s3a://bucket/new"),
        ("s3a://bucket/new", "s3a://bucket/new"),
        ("hdfs://namenode:8020/new", "hdfs://namenode:8020/new"),
    ],
)
def test_schemas_are_where_the_checkpoint_lies_as_spark_calls_it(checkpoint: str, url: str) -> None:
    assert url_in_spark(checkpoint) == url
    for old in ("file:/data/old", "file:/data/state/0/_stateSchema/old", "s3a://other/old", "/data/old"):
        name, data = notes(f"{old}/state/0/_stateSchema/default/{FILE}")
        _, expected = notes(f"{url}/state/0/_stateSchema/default/{FILE}")
        assert moved(name, data, checkpoint) == expected


def test_each_operator_has_its_own_and_all_of_its_schemas_are_moved() -> None:
    files = [f"state/12/_stateSchema/{store}/{FILE}" for store in ("default", "left-keyToNumValues")]
    name, data = notes(*(f"file:/old/{file}" for file in files), operator=12)
    assert moved(name, data, "/new") == notes(*(f"file:/new/{file}" for file in files))[1]


def test_what_is_not_known_stays_as_it_is() -> None:
    for other in (
        "metadata",
        "offsets/0",
        "state/0/_metadata/metadata",
        "state/0/_stateSchema/default/0",
        "state/0/0/1.zip",
    ):
        assert moving(other) is None
    name, data = notes("file:/elsewhere/schema")
    assert moved(name, data, "/new") == data
    assert moved(name, b"v3\n\xc3\xbc", "/new") == b"v3\n\xc3\xbc"
