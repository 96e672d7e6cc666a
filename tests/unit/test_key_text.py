"""Keys as people type them."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.encoding.key_text import key_of, parse_bound, parse_key, text_of
from keyhole.errors import KeyMismatch
from keyhole.model.state import KeyColumn, KeyType


def parse(text: str, *types: KeyType) -> object:
    columns = tuple(KeyColumn(f"c{number}", kind) for number, kind in enumerate(types))
    return parse_key(columns, text)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("a,b", KeyType.STRING, "a,b"),
        ("00ff", KeyType.BINARY, b"\x00\xff"),
        ("True", KeyType.BOOLEAN, True),
        ("-5", KeyType.BIGINT, -5),
        ("2026-11-21", KeyType.DATE, dt.date(2026, 11, 21)),
        ("2026-11-21T10:00:00", KeyType.TIMESTAMP, dt.datetime(2026, 11, 21, 10, tzinfo=dt.UTC)),
        ("2026-11-21T10:00:00+00:00", KeyType.TIMESTAMP, dt.datetime(2026, 11, 21, 10, tzinfo=dt.UTC)),
    ],
)
def test_one_column_is_the_text_itself(text: str, kind: KeyType, value: object) -> None:
    assert parse(text, kind) == value


@pytest.mark.parametrize("text", ["a,7", '["a", 7]', '["a", "7"]'])
def test_several_columns_are_separated_by_commas_or_a_json_array(text: str) -> None:
    assert parse(text, KeyType.STRING, KeyType.INT) == ("a", 7)


@pytest.mark.parametrize(
    ("text", "types", "says"),
    [
        ("x", (KeyType.INT,), "a whole number"),
        ("maybe", (KeyType.BOOLEAN,), "true or false"),
        ("a", (KeyType.STRING, KeyType.INT), "has 1 column, the state's key has 2"),
        ('["a"', (KeyType.STRING, KeyType.INT), "JSON array"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(text: str, types: tuple[KeyType, ...], says: str) -> None:
    with pytest.raises(KeyMismatch, match=says):
        parse(text, *types)


@pytest.mark.parametrize("kind", [KeyType.SMALLINT, KeyType.INT, KeyType.BIGINT])
@pytest.mark.parametrize(
    "text",
    ["1_000", " 42", "42 ", "\u0664\u0662", "042", "+5", "-", "--1", "-01", "", "1.0", "1e3", "0x1", "42\n", "\uff14"],
)
def test_a_whole_number_is_one_of_jsons(kind: KeyType, text: str) -> None:
    with pytest.raises(KeyMismatch, match="a whole number like 42 or -7"):
        parse(text, kind)
    with pytest.raises(KeyMismatch, match="a whole number like 42 or -7"):
        key_of((KeyColumn("c", kind),), text)


@pytest.mark.parametrize("text", ["0a 0b", "0a\n", "0", "0x0a", "\u0660\u0661"])
def test_binary_is_pairs_of_hexadecimal_digits(text: str) -> None:
    with pytest.raises(KeyMismatch, match="hexadecimal digits, two for each byte"):
        parse(text, KeyType.BINARY)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_every_whole_number_is_taken_as_it_is_told(number: int) -> None:
    assert parse(text_of(number), KeyType.BIGINT) == number


@pytest.mark.parametrize(
    ("key", "types", "text"),
    [
        (("Zürich", 7), (KeyType.STRING, KeyType.INT), '["Zürich", "7"]'),
        (("東京", "🌡"), (KeyType.STRING, KeyType.STRING), '["東京", "🌡"]'),
        (('a "b"', "c,d"), (KeyType.STRING, KeyType.STRING), r'["a \"b\"", "c,d"]'),
    ],
)
def test_a_key_of_several_columns_is_told_with_its_letters_as_they_are(
    key: tuple[object, ...], types: tuple[KeyType, ...], text: str
) -> None:
    assert text_of(key) == text
    assert parse(text, *types) == key


@pytest.mark.parametrize(
    ("text", "types", "bound"),
    [
        ("7", (KeyType.INT,), 7),
        ('["a"]', (KeyType.STRING,), '["a"]'),
        ("a,b", (KeyType.STRING,), "a,b"),
        ("a", (KeyType.STRING, KeyType.INT), "a"),
        ('["a,b"]', (KeyType.STRING, KeyType.INT), "a,b"),
        ("a,7", (KeyType.STRING, KeyType.INT, KeyType.INT), ("a", 7)),
        ("[]", (KeyType.STRING, KeyType.INT), ()),
    ],
)
def test_a_bound_may_leave_out_the_last_columns(text: str, types: tuple[KeyType, ...], bound: object) -> None:
    columns = tuple(KeyColumn(f"c{number}", kind) for number, kind in enumerate(types))
    assert parse_bound(columns, text) == bound


def test_a_bound_of_more_columns_than_there_are_is_refused() -> None:
    with pytest.raises(KeyMismatch, match="has 3 columns"):
        parse_bound((KeyColumn("a", KeyType.STRING), KeyColumn("b", KeyType.INT)), "a,7,8")


def test_an_array_that_is_too_deep_is_none() -> None:
    with pytest.raises(KeyMismatch, match="begins like a JSON array and is none"):
        parse_key((KeyColumn("a", KeyType.STRING), KeyColumn("b", KeyType.INT)), "[" * 100_000)
