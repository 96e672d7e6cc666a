"""Aggregates as a person types them: `count`, `max(celsius)`, `top(10,celsius)`, `bottom(3,place.lat)`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from keyhole.encoding.predicate_text import parsed_field
from keyhole.errors import MalformedRequest
from keyhole.model import aggregates as agg
from keyhole.model.aggregates import AggregateKind, AskedAggregate
from keyhole.model.state import StateDescriptor

_OF_FIELD = {
    "count": AggregateKind.COUNT,
    "sum": AggregateKind.SUM,
    "min": AggregateKind.MIN,
    "max": AggregateKind.MAX,
    "avg": AggregateKind.AVERAGE,
}
_FORM = re.compile(r"(\w+)\((.*)\)", re.DOTALL)
_FIRST = re.compile(r"\s*([0-9]{1,9})\s*,(.*)", re.DOTALL)


def parsed_aggregates(descriptor: StateDescriptor, texts: Iterable[str]) -> dict[str, AskedAggregate]:
    """Each by its text.

    Raises:
        MalformedRequest: One is not of this form.
        ValueMismatch: The state has no such field.
    """
    return {text: _aggregate(descriptor, text.strip()) for text in texts}


def _aggregate(descriptor: StateDescriptor, text: str) -> AskedAggregate:
    if text == "count":
        return agg.count()
    match = _FORM.fullmatch(text)
    name, field = match.groups() if match else ("", "")
    if name in _OF_FIELD:
        return AskedAggregate(_OF_FIELD[name], parsed_field(descriptor, field))
    if name in ("top", "bottom") and (first := _FIRST.fullmatch(field)) is not None:
        path = parsed_field(descriptor, first[2])
        checked = agg.top(int(first[1]), path.name, *path.inner, smallest=name == "bottom")
        return AskedAggregate(checked.kind, path, checked.entries, checked.smallest)
    raise MalformedRequest(
        "an aggregate is count, count(FIELD), sum(FIELD), min(FIELD), max(FIELD), avg(FIELD), top(N,FIELD) or "
        "bottom(N,FIELD)"
    )
