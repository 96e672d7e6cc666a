"""Values as a reader wants them: from rows to a dataclass, or another type, of the reader's own. Pure.

    @dataclass
    class Reading:
        last: float
        mean: float

    Row(last=21.5, mean=20.0, readings=7)  ->  Reading(last=21.5, mean=20.0)

A field that the type does not have is left out. So a state may get fields while its readers stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from keyhole.client.scanned_entries import ScannedEntries
from keyhole.encoding.row import Row
from keyhole.errors import ValueMismatch
from keyhole.hints import ready
from keyhole.model.aggregate_answer import AggregateAnswer
from keyhole.model.read import Answer, Entries, Entry

T = TypeVar("T")

_WANTED = (
    "give a dataclass, a TypedDict or a msgspec.Struct whose fields are named as those of the state's value; or a "
    "pydantic model, or dict"
)
_KINDS = (
    msgspec.inspect.DataclassType,
    msgspec.inspect.TypedDictType,
    msgspec.inspect.StructType,
    msgspec.inspect.DictType,
)


class TypedAnswer(Answer, Generic[T], frozen=True):
    """As Answer, with the value as the type that the reader asked for; None where the key is absent."""

    value: T | None

    def value_or(self, default: T) -> T:
        """The value; where the key is absent, this one."""
        return default if self.value is None else self.value


class TypedEntries(ScannedEntries, Generic[T], frozen=True):
    """As ScannedEntries, with the values as the type that the reader asked for.

    Attributes:
        stored: With the values as they are stored, of which tables are made.
    """

    stored: tuple[Entry, ...] = ()

    def _rows(self) -> tuple[Entry, ...]:
        return self.stored

    @property
    def values(self) -> tuple[T, ...]:
        """The values without the map keys, in order: the elements of a list."""
        return tuple(entry.value for entry in self.entries)


class TypedValues(Generic[T]):
    """Makes answers of a state typed ones.

    Args:
        name: The state's, for messages: application/state.
        to: A dataclass, a TypedDict, a msgspec.Struct, a pydantic model, or dict. None: rows.

    Raises:
        TypeError: It is none of these.
    """

    def __init__(self, name: str, to: type[T] | None) -> None:
        self._name = name
        self.type_name = "Row" if to is None else getattr(to, "__name__", str(to))
        self._convert = None if to is None else _converter(to)

    def answer(self, of: Answer) -> TypedAnswer[T]:
        """Raises ValueMismatch: the value does not fit the type."""
        return TypedAnswer(of.found, self.value(of.value) if of.found else None, of.source)

    def entries(self, of: Entries) -> TypedEntries[T]:
        """Raises ValueMismatch: a value does not fit the type."""
        typed = tuple(Entry(map_key, self.value(value)) for map_key, value in of.entries)
        if not isinstance(of, ScannedEntries):
            return TypedEntries(typed, of.source)
        return TypedEntries(typed, of.source, of.key, of.descriptor, of.select, of.entries)

    def aggregates(self, of: AggregateAnswer) -> AggregateAnswer:
        """Raises ValueMismatch: an entry of a top does not fit the type."""
        values = {
            name: [entry._replace(value=self.value(entry.value)) for entry in value]
            if isinstance(value, list)
            else value
            for name, value in of.values.items()
        }
        return AggregateAnswer(values, of.sources)

    def value(self, row: Any) -> Any:
        """Raises ValueMismatch: the value does not fit the type."""
        if self._convert is None or not isinstance(row, Row):
            return row
        try:
            return self._convert(row.asdict())
        except (ValueError, TypeError) as error:
            # Not as the cause: it may hold the value.
            raise ValueMismatch(
                f"a value of state {self._name} does not fit {self.type_name}: {_without_the_value(error)}. Its fields "
                f"are {', '.join(row)}; a field that may be null is declared as `... | None`",
                state=self._name,
            ) from None


def _converter(to: Any) -> Callable[[dict[str, Any]], Any]:
    validate = getattr(to, "model_validate", None)
    if callable(validate):
        return lambda found: validate(found)
    try:
        fits = isinstance(msgspec.inspect.type_info(to), _KINDS)
    except TypeError as error:
        raise TypeError(f"value is {to!r}, to which no row can be turned ({error}); {_WANTED}") from error
    if not fits:
        raise TypeError(f"value is {to!r}; {_WANTED}")
    ready(to)
    return lambda found: msgspec.convert(found, to)


def _without_the_value(error: Exception) -> str:
    """What does not fit, without the value: of a text that is no member of an Enum the message quotes it."""
    if not isinstance(error, msgspec.ValidationError):
        return f"it is refused by a {type(error).__name__}"
    text = str(error)
    if text.startswith("Invalid enum value"):
        return "Invalid enum value" + (" - at " + text.rpartition(" - at ")[2] if " - at " in text else "")
    return text
