"""What of a state's entries a scan gives: those of which a predicate is true, and of each what is wanted. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from keyhole.errors import MalformedRequest
from keyhole.model.given import flag_of
from keyhole.model.predicates import Predicate, checked


@dataclass(frozen=True, slots=True)
class Selection:
    """By default everything.

    Attributes:
        where: None: all entries.
        fields: Of the value, by name, in the order in which they are wanted; None: all.
        keys_only: Keys without values.
    """

    where: Predicate | None = None
    fields: tuple[str, ...] | None = None
    keys_only: bool = False

    @property
    def is_all(self) -> bool:
        """Nothing of any entry is left out."""
        return self == EVERYTHING


EVERYTHING = Selection()


def named_fields(text: str) -> list[str]:
    """The names in `max,city`; or in a JSON array, where one holds a comma: `["a,b", "city"]`."""
    if text.startswith("["):
        try:
            names = json.loads(text)
        except (ValueError, RecursionError):
            names = None
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return names
    return text.split(",")


def selection(where: Predicate | None, fields: Iterable[str] | None, *, keys_only: bool) -> Selection:
    """What a caller asks for.

    Raises:
        MalformedRequest: `where` is no predicate, or too large. `fields` is no list of names, is empty, names one
            twice, or is given together with `keys_only`.
    """
    if where is not None:
        checked(where)
    keys_only = flag_of("keys_only", keys_only)
    if fields is None:
        return Selection(where, None, keys_only)
    names = () if isinstance(fields, str) or not isinstance(fields, Iterable) else tuple(fields)
    if not names or not all(isinstance(name, str) for name in names):
        raise MalformedRequest(
            "fields is a list of names of fields of the value, of one at least; for no value at all ask by keys_only"
        )
    if len(set(names)) < len(names):
        raise MalformedRequest(f"fields names {max(names, key=names.count)!r} twice")
    if keys_only:
        raise MalformedRequest("fields and keys_only contradict each other; leave one of them out")
    return Selection(where, names)
