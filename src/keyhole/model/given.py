"""What callers give as arguments: taken, or refused by the argument's name with what to give. Pure."""

from __future__ import annotations

import operator
from types import FunctionType
from typing import Any, Final, NoReturn, TypeVar

from keyhole.errors import MalformedRequest

_C = TypeVar("_C", bound=type)


class _LeftOut:
    """In place of an argument that a call has left out, so that the refusal says what to write."""

    def __repr__(self) -> str:
        return "..."  # in help(), which shows defaults


LEFT_OUT: Final[Any] = _LeftOut()
_MAY_BE_REFUSED = (
    "get", "get_async", "get_many", "get_many_async", "scan_all", "watch", "count", "describe_state"
)  # fmt: skip


def names_apart(client: _C) -> _C:
    """The class; `client.get("shop/totals", "c1")` comes as far as a refusal that says what to write.

    By the default of what a call then lacks, which costs a call nothing. Type checkers still ask for it.
    """
    for name in _MAY_BE_REFUSED:
        method = vars(client).get(name)
        if isinstance(method, FunctionType):
            method.__defaults__ = (LEFT_OUT,)
    return client


def refuse_left_out(method: str, what: str, application: Any, state: Any) -> NoReturn:
    """Of a call by the two names of a state that lacks its last argument. Raises MalformedRequest: what to write."""
    check_names(application, state)
    raise MalformedRequest(
        f"{method} is called without {what}: give application, state and {what}, or call state(PATH).{method}({what})"
    )


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
    if state is LEFT_OUT:
        raise MalformedRequest(f"application is {application!r}, and no state is named: give its name as the second")
    check_name("state", state)


def check_name(name: str, given: Any) -> None:
    """Raises MalformedRequest: it is no text, so that nothing can be called so."""
    if not isinstance(given, str):
        raise MalformedRequest(f"{name} is a {type(given).__name__}; give its name as a str")
    try:
        given.encode()
    except UnicodeError:
        raise MalformedRequest(f"{name} is no text: it has a half of a character") from None
    if name == "application" and "/" in given:
        first, _, second = given.partition("/")
        raise MalformedRequest(
            f"{given!r} is the path of a state, and no application: application is {first!r}, state is {second!r}; or "
            f"read through client.state({given!r})"
        )
