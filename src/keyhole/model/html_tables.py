"""What notebooks show of an answer, of entries and of a state: small tables in HTML, each value escaped. Pure."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from keyhole.model.state import StateDescriptor

MOST_ENTRIES = 50
"""More are counted, and not shown."""

_MOST_CHARACTERS = 200


def answer_table(found: bool, value: Any, caption: str) -> str:
    """The value by field; the caption says who gave it."""
    fields = _fields(value) if found else {"": "the key is absent"}
    return _table([], [[name, of] for name, of in fields.items()], caption)


def entries_table(entries: Sequence[tuple[Any, Any]], caption: str) -> str:
    """A line for each entry, a map key and a value, up to MOST_ENTRIES; the caption says who gave them."""
    shown = [(map_key, _fields(value)) for map_key, value in entries[:MOST_ENTRIES]]
    names = list(dict.fromkeys(name for _, fields in shown for name in fields))
    lines = [[map_key, *(fields.get(name, "") for name in names)] for map_key, fields in shown]
    more = len(entries) - len(shown)
    return _table(["map key", *names], lines, caption + (f"; {more} more entries" if more else ""))


def state_table(path: str, descriptor: StateDescriptor | None) -> str:
    """The columns of its keys and the fields of its value; `None`: nothing is known of it yet."""
    if descriptor is None:
        return _table([], [], f"state {path}; it has not been read yet")
    lines = [["key", column.name, column.type] for column in descriptor.key]
    lines += [["map key", column.name, column.type] for column in descriptor.map_key]
    lines += [["value", field.name, field.type] for field in descriptor.value.fields]
    return _table(["", "name", "type"], lines, f"{descriptor.kind} state {path}, {descriptor.key_groups} key groups")


def _fields(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return {str(name): of for name, of in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if callable(getattr(value, "asdict", None)):  # a Row, which may have a field of any name
        return dict(value.asdict())
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    return {"value": value}


def _table(head: Sequence[str], lines: Iterable[Sequence[Any]], caption: str) -> str:
    parts = ["<table>", f"<caption>{_cell(caption)}</caption>"]
    if head:
        parts.append(f"<tr>{''.join(f'<th>{_cell(name)}</th>' for name in head)}</tr>")
    parts += [f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in line)}</tr>" for line in lines]
    return "".join([*parts, "</table>"])


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return html.escape(text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…")
