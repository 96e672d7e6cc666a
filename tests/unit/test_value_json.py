"""Values as the commands print them: the form that a server gives with VALUE_FORMAT_JSON, and always JSON."""

from __future__ import annotations

import json
import math

import pytest

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.row_codec import encode_row
from keyhole.encoding.value_json import to_json
from keyhole.model.state import ValueField, ValueSchema
from tests.support.states import descriptor


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        ("boolean", True),
        ("bigint", -(2**63)),
        ("double", 1.5),
        ("double", math.nan),
        ("double", math.inf),
        ("double", -math.inf),
        ("decimal(20,2)", "-12345678901234567.50"),
        ("decimal(38,18)", "0.000000000000000001"),
        ("string", 'a "quoted" ö'),
        ("binary", b"\x00\xff\xfe"),
        ("date", -1),
        ("timestamp", 1_700_000_000_123_456),
        ("timestamp_ntz", 1_700_000_000_000_000),
        ("array<double>", [1.0, math.nan, None]),
        ("map<date,binary>", [[19_000, b"\x01"], [19_001, None]]),
        ("struct<at:timestamp,n:int>", [0, 7]),
        ("array<struct<a:int,b:array<string>>>", [[1, ["x"]], [None, []]]),
        ("map<struct<a:int>,string>", [[[1], "x"]]),
        ("string", None),
    ],
)
def test_a_value_is_printed_as_a_server_gives_it_in_json(kind: str, stored: object) -> None:
    codec = StateCodec(descriptor(value=ValueSchema(1, (ValueField("v", kind),))))
    row = encode_row(1, [stored])
    printed = json.dumps(to_json(codec.decode_row(row)), allow_nan=False)
    assert json.loads(printed) == json.loads(codec.rows.to_json(row))
