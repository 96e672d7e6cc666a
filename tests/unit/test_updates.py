"""What stands in an updates topic: any language may write it, and what is no such record is refused by its element."""

from __future__ import annotations

import pytest

from keyhole.errors import ValueMismatch
from keyhole.protocol.updates import (
    DELETE,
    PUT,
    BoundaryRecord,
    EndRecord,
    FeedRules,
    Record,
    RulesRecord,
    SourceRow,
    UpdateRecord,
    decode,
    encode,
)


@pytest.mark.parametrize(
    ("value", "record"),
    [
        (
            b'[1, "a1b2", 0, 991823, 0, 0, 1, ["c1"], null, [12.5, null]]',
            UpdateRecord("a1b2", 0, 991823, 0, PUT, 1, ["c1"], None, [12.5, None]),
        ),
        (
            b'[1,"a",3,9223372036854775807,1048575,1,2,[7,"x"]]',
            UpdateRecord("a", 3, 2**63 - 1, 2**20 - 1, DELETE, 2, [7, "x"]),
        ),
        (b'[1,"a",0,0,0,0,1,["k"],["m"],[1],"later",{"x":1}]', UpdateRecord("a", 0, 0, 0, PUT, 1, ["k"], ["m"], [1])),
        (b'[0, "a1b2", 17, {"0": 991900, "1": 5}]', BoundaryRecord("a1b2", 17, {0: 991900, 1: 5})),
        (b'[2, "a1b2", "later"]', EndRecord("a1b2")),
        (b'[3, 7, {"ttl_ms": 60000, "later": 1}]', RulesRecord(7, FeedRules(ttl_ms=60_000))),
    ],
    ids=["update", "deletion_at_the_limits", "of_a_later_version", "boundary", "end", "rules"],
)
def test_a_record_is_a_json_array(value: bytes, record: Record) -> None:
    assert decode(value) == record
    assert decode(encode(record)) == record


def test_an_update_names_its_row() -> None:
    assert UpdateRecord("a", 3, 9, 1, PUT, 1, ["k"]).row == SourceRow("a", 3, 9, 1)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "truncated"),
        (b"", "truncated"),
        (b"\xff", "malformed"),
        (b"{}", "Expected `array`"),
        (b"[]", ""),
        (b'[4,"a"]', r"Invalid value 4 - at `\$\[0\]`"),
        (b'[2,""]', r"length >= 1 - at `\$\[1\]`"),
        (b"[3,0,{}]", r"`int` >= 1 - at `\$\[1\]`"),
        (b'[3,1,{"ttl_ms":-1}]', r"`int` >= 0 - at `\$\[2\].ttl_ms`"),
        (b'[3,1,{"most_blocks":0}]', r"`int` >= 1 - at `\$\[2\].most_blocks`"),
        (b'[1,"a",0,-1,0,0,1,["k"]]', r"`int` >= 0 - at `\$\[3\]`"),
        (b'[1,"a",0,9223372036854775808,0,0,1,["k"]]', r"at `\$\[3\]`"),
        (b'[1,"a",0,1.5,0,0,1,["k"]]', r"Expected `int`.* at `\$\[3\]`"),
        (b'[1,"a",0,1,1048576,0,1,["k"]]', r"`int` <= 1048575 - at `\$\[4\]`"),
        (b'[1,"a",0,1,0,2,1,["k"]]', r"`int` <= 1 - at `\$\[5\]`"),
        (b'[1,"a",0,1,0,0,0,["k"]]', r"`int` >= 1 - at `\$\[6\]`"),
        (b'[1,"",0,1,0,0,1,["k"]]', r"length >= 1 - at `\$\[1\]`"),
        (b'[1,"a",0,1,0,0,1]', "at least"),
        (b'[0,"a",1,{"x":1}]', r"at `key` in `\$\[3\]`"),
        (b'[0,"a",1,{"0":-1}]', r"at `\$\[3\]\[...\]`"),
        (b'[1,"a",0,1,0,0,1,' + b"[" * 100_000, ""),
    ],
)
def test_what_is_no_record_is_refused_by_its_element(value: bytes | None, why: str) -> None:
    with pytest.raises(ValueMismatch, match=f"not a record of an updates topic.*{why}"):
        decode(value)
