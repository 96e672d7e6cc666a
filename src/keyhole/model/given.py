"""What callers give as arguments: taken, or refused by the argument's name with what to give. Pure."""

from __future__ import annotations

import operator
from typing import Any

from keyhole.errors import MalformedRequest


def whole_of(given: Any) -> int | None:
    """A whole number as Python's own, numpy's too; None: it is none. A bool is none."""
    if isinstance(given, bool):
        return None
    try:
        return operator.index(given)
    except TypeError:
        return None


def flag_of(name: str, given: Any) -> bool:
    """True or False, numpy's too. Raises MalformedRequest: something else, which may not mean what Python takes it
    for.
    """
    if isinstance(given, bool) or (type(given).__module__ == "numpy" and type(given).__name__ in ("bool", "bool_")):
        return bool(given)
    raise MalformedRequest(f"{name} is {given!r}; give True or False")


def token_of(name: str, given: Any) -> str | None:
    """A token, or none. Raises MalformedRequest: it is no text."""
    if given is None or isinstance(given, str):
        return given
    raise MalformedRequest(f"{name} is a {type(given).__name__}; give the `token` of an earlier one, or None")


def check_names(application: Any, state: Any) -> None:
    """Raises MalformedRequest: no state can be called so."""
    check_name("application", application)
    check_name("state", state)


def check_name(name: str, given: Any) -> None:
    """Raises MalformedRequest: it is no text, so that nothing can be called so."""
    if not isinstance(given, str):
        raise MalformedRequest(f"{name} is a {type(given).__name__}; give its name as a str")
    try:
        given.encode()
    except UnicodeError:
        raise MalformedRequest(f"{name} is no text: it has a half of a character") from None
