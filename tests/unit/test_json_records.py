"""What a record is to the recounts. What it is to Spark is compared with it in each job's integration tests."""

from __future__ import annotations

import pytest

from jobs.json_records import fields_of

TYPES = {"name": str, "number": int, "size": float}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"name": "a", "number": 1, "size": 2}', ("a", 1, 2.0)),
        (b' {"size": -1.5e3, "other": [{"name": 7}]}\r\n', (None, None, -1500.0)),
        ('{"name": "Zürich ☃", "number": null}', ("Zürich ☃", None, None)),
        (rb'{"name": "\ud83d\ude00", "number": -9223372036854775808}', ("\U0001f600", -(1 << 63), None)),
        (b'{"name": "a", "name": "b", "number": 1, "number": 2}', ("b", 2, None)),
        (b"{}", (None, None, None)),
    ],
)
def test_a_record_has_its_fields_and_none_for_those_that_it_lacks(
    value: bytes | str, expected: tuple[str | None, int | None, float | None]
) -> None:
    found = fields_of(value, TYPES)
    assert found is not None
    assert tuple(found) == tuple(TYPES)
    assert tuple(found.values()) == expected
    assert found["size"] is None or type(found["size"]) is float


@pytest.mark.parametrize(
    "value",
    [
        *(None, b"", "", b"null", b"7", b'"a"', b"[]", b"[{}]", b"{'name': 'a'}", b"{}xyz", b"{}{}", b"{}}", b"{},{}"),
        *(b'{"name": 42}', b'{"name": true}', b'{"name": {"a": 1}}', b'{"name": ["a"]}', b'{"name": "a", "name": 42}'),
        *(rb'{"name": "\ud800"}', rb'{"name": "\ud800", "name": "a"}', b'{"name": "\xff"}', b'{"other": "\xff"}'),
        *(b'{"number": 1.0}', b'{"number": true}', b'{"number": "1"}', b'{"number": 9223372036854775808}'),
        *(b'{"number": "1", "number": 1}', b'{"number": ' + b"9" * 5000 + b"}", b'{"other": NaN}'),
        *(b'{"size": "1"}', b'{"size": false}', b'{"size": NaN}', b'{"size": ' + b"9" * 400 + b"}"),
        *("{}".encode("utf-16"), b"\xef\xbb\xbf{}", b'{"other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    ],
)
def test_what_is_not_one_object_with_fields_of_their_types_is_no_record(value: bytes | str | None) -> None:
    assert fields_of(value, TYPES) is None
