"""Rows as the types that a reader asks for."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest

from keyhole.client.typed_values import TypedValues
from keyhole.encoding.row import FrozenMap, Row, row_class
from keyhole.errors import ValueMismatch
from keyhole.model.read import Answer, Entries, Entry, Role, Source

_SOURCE = Source("server-0", Role.OWNER, 7, None, None, 1, 1, unconfirmed=False)


class Level(enum.StrEnum):
    LOW = "low"


@dataclass(frozen=True)
class Place:
    city: str


@dataclass(frozen=True)
class Reading:
    last: float
    places: list[Place]
    at: datetime
    day: date
    price: Decimal
    raw: bytes
    level: Level | None = None
    counts: dict[str, int] | None = None


class ReadingDict(TypedDict):
    last: float


class ReadingStruct(msgspec.Struct):
    highest: float = msgspec.field(name="max(t)")


class ReadingModel:
    """What a pydantic model has."""

    def __init__(self, found: Any) -> None:
        self.found = found

    @classmethod
    def model_validate(cls, found: Any) -> ReadingModel:
        if found["last"] < 0:
            raise ValueError("secret value below zero")
        return cls(found)


class ReadingTuple(NamedTuple):
    last: float


def _row(**fields: Any) -> Row:
    return row_class((name, Any) for name in fields)(*fields.values())


def _answer(value: Any) -> Answer:
    return Answer(value is not None, value, _SOURCE)


_AT = datetime(2026, 11, 27, 12, tzinfo=UTC)
_WHOLE: dict[str, Any] = {
    "last": 21.5,
    "places": (_row(city="Basel"),),
    "at": _AT,
    "day": date(2026, 11, 27),
    "price": Decimal("1.50"),
    "raw": b"\0a",
    "level": "low",
    "counts": FrozenMap({"a": 1}),
    "more": "which no reader asked for",
}


def test_a_row_with_all_there_is_becomes_a_dataclass_and_what_it_has_no_field_for_is_left_out() -> None:
    answer = TypedValues("app/state", Reading).answer(_answer(_row(**_WHOLE)))
    assert answer.value == Reading(
        21.5, [Place("Basel")], _AT, date(2026, 11, 27), Decimal("1.50"), b"\0a", Level.LOW, {"a": 1}
    )
    assert (answer.found, answer.source, bool(answer)) == (True, _SOURCE, True)


def test_other_types_of_a_readers_own_are_made_likewise() -> None:
    row = _row(**{"last": 1.5, "max(t)": 2.5})
    assert TypedValues("app/state", ReadingDict).answer(_answer(row)).value == {"last": 1.5}
    struct = TypedValues("app/state", ReadingStruct).answer(_answer(row)).value
    assert struct is not None
    assert struct.highest == 2.5
    model = TypedValues("app/state", ReadingModel).answer(_answer(row)).value
    assert model is not None
    assert model.found == {"last": 1.5, "max(t)": 2.5}
    assert TypedValues("app/state", dict).answer(_answer(row)).value == {"last": 1.5, "max(t)": 2.5}


def test_without_a_type_values_are_rows() -> None:
    row = _row(last=1.5)
    assert TypedValues[Any]("app/state", None).answer(_answer(row)).value is row


def test_an_absent_key_has_no_value_and_any_default() -> None:
    absent = TypedValues("app/state", ReadingDict).answer(_answer(None))
    assert (absent.value, absent.value_or(ReadingDict(last=0.0)), bool(absent)) == (None, {"last": 0.0}, False)
    assert _answer(None).value_or(7) == 7
    assert _answer(_row(last=1.5)).value_or(7) == _row(last=1.5)


def test_each_entry_of_a_scan_is_of_the_type() -> None:
    entries = Entries((Entry(1, _row(last=1.5)), Entry(2, _row(last=2.5))), _SOURCE)
    typed = TypedValues("app/state", ReadingDict).entries(entries)
    assert typed.values == ({"last": 1.5}, {"last": 2.5})
    assert [entry.map_key for entry in typed] == [1, 2]
    assert (len(typed), typed.epoch) == (2, 7)


@pytest.mark.parametrize(
    ("to", "changes", "says"),
    [
        (Reading, {"last": None}, r"Expected `float`, got `null` - at `\$.last`. Its fields are last, places"),
        (Reading, {"day": 5}, r"Expected `date`, got `int`"),
        (Reading, {"level": "secret"}, r"Invalid enum value - at `\$.level`"),
        (ReadingStruct, {}, r"required field `max\(t\)`"),
        (ReadingModel, {"last": -1.0}, r"it is refused by a ValueError"),
    ],
)
def test_a_value_that_does_not_fit_is_told_by_the_field_without_the_value(
    to: type[Any], changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueMismatch, match=says) as refused:
        TypedValues("app/state", to).answer(_answer(_row(**_WHOLE | changes)))
    assert "app/state" in refused.value.message
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("to", [int, ReadingTuple, list, "Reading", 5])
def test_a_type_to_which_no_row_can_be_turned_is_refused_at_once(to: Any) -> None:
    with pytest.raises(TypeError, match="give a dataclass"):
        TypedValues("app/state", to)
