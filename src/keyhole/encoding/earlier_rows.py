"""Makes rows of a state's newest schema of rows of those that it evolved from (keyhole.model.evolution). Pure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from keyhole.encoding.row import Row, row_class
from keyhole.encoding.value_types import ValueType
from keyhole.model.state import ValueSchema

Upgrade = Callable[[Row], Row]

Origin = int | bytes
"""Where a field of the newest schema is in a row of an earlier one: its position; or its default (see ValueField)."""


def upgrades(
    newest: type[Row], schema: ValueSchema, earlier: Sequence[ValueSchema], kinds: Sequence[ValueType]
) -> dict[type[Row], Upgrade]:
    """Returns the function from a row of each earlier schema to one of the newest, by the class that the former has.

    Args:
        newest: What a row of the newest schema is decoded to.
        schema: The newest.
        earlier: Ascending by version, as a descriptor has them.
        kinds: Of the newest schema's fields.
    """
    found: dict[type[Row], Upgrade] = {}
    for before, places in origins(earlier, schema):
        # Of what is dropped later it does not matter what it is.
        kept = {place: kind.stored for place, kind in zip(places, kinds, strict=True) if isinstance(place, int)}
        fields = [(field.name, kept.get(at, Any)) for at, field in enumerate(before.fields)]
        found[row_class(fields, version=before.version)] = _upgrade(newest, len(fields), places, kinds)
    return found


def origins(earlier: Sequence[ValueSchema], newest: ValueSchema) -> list[tuple[ValueSchema, tuple[Origin, ...]]]:
    """Returns each earlier schema, and where each field of the newest one is in its rows."""
    found: list[tuple[ValueSchema, tuple[Origin, ...]]] = []
    after, places = newest, tuple[Origin, ...](range(len(newest.fields)))
    for schema in reversed(earlier):
        position = {field.name: at for at, field in enumerate(schema.fields)}
        fields = after.fields
        places = tuple(
            position.get(fields[place].name, fields[place].default) if isinstance(place, int) else place
            for place in places
        )
        found.append((schema, places))
        after = schema
    return found[::-1]


def _upgrade(newest: type[Row], fields: int, places: Sequence[Origin], kinds: Sequence[ValueType]) -> Upgrade:
    """From a row of an earlier schema, of so many fields."""
    # What a field can be taken from: the old row's fields, and after them the defaults.
    defaults: list[Any] = []
    taken: list[int] = []
    for place, kind in zip(places, kinds, strict=True):
        if isinstance(place, int):
            taken.append(place)
        else:
            taken.append(fields + len(defaults))
            defaults.append(msgspec.msgpack.decode(place, type=kind.stored) if place else None)
    added, astuple = tuple(defaults), msgspec.structs.astuple
    if len(taken) < 2:
        # Of a single one itemgetter makes no tuple.
        return lambda row: newest(*[(astuple(row) + added)[at] for at in taken])
    chosen = operator.itemgetter(*taken)
    return lambda row: newest(*chosen(astuple(row) + added))
