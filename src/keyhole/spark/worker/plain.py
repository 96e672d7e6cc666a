"""Whether MessagePack gives data back as what it was. Pure.

It takes a set, a Decimal or a Counter, and gives back a list, a text or a dict. The user's code would only meet them in
the next batch, when what is stored can't be taken back.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from keyhole.errors import ValueMismatch

_LOWEST, _HIGHEST = -(1 << 63), (1 << 64) - 1


def not_plain(value: Any) -> str | None:
    """What in it comes back as something else, or not at all: the name of its type; None: nothing does.

    A tuple comes back as a list, which is documented and goes unsaid.
    """
    left = [value]
    while left:
        one = left.pop()
        kind = type(one)
        if kind is list or kind is tuple:
            left += one
        elif kind is dict:
            if any(type(key) is tuple for key in one):
                return "dict with tuples as keys"
            left += [*one, *one.values()]
        elif kind is int:
            if not _LOWEST <= one <= _HIGHEST:
                return "int of more than 64 bits"
        elif kind is datetime:
            if one.tzinfo is None:
                return "datetime without a time zone"
        elif kind not in (str, float, bool, bytes, type(None)):
            return kind.__name__
    return None


def check_plain(state: str, what: str, data: Any, remedy: str) -> None:
    """Raises ValueMismatch where MessagePack would not give the data back as what it is."""
    if (kind := not_plain(data)) is not None:
        raise ValueMismatch(
            f"{what} of state {state!r} holds a {kind}, which MessagePack doesn't give back as what it was; {remedy}, "
            "or hold numbers, text, bytes, lists and dicts",
            state=state,
        )
