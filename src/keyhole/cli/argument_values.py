"""What the command line takes for numbers and pairs, and the actions that it has beside argparse's."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from keyhole.addresses import is_host_port
from keyhole.encoding.key_text import spelled_number, spelled_whole
from keyhole.errors import InvalidConfiguration
from keyhole.model.names import TOPIC_NAME, checked_name
from keyhole.model.state_path import state_path

_OLDEST_SECONDS = 1e9
_MOST_DAYS = 365_000
_AS_LISTED = "write it as `keyhole states` lists it"


def seconds(text: str) -> float:
    """Above 0, and finite. Raises ArgumentTypeError."""
    try:
        given = float(spelled_number(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not 0 < given < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no time that can pass; give seconds above 0")
    return given


def count(text: str) -> int:
    """1 or more. Raises ArgumentTypeError."""
    return _at_least(1, text)


def count_or_none(text: str) -> int:
    """0 or more. Raises ArgumentTypeError."""
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    try:
        given = spelled_whole(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if given < least:
        raise argparse.ArgumentTypeError(f"{text} is too few; give {least} or more")
    return given


def seconds_or_none(text: str) -> float:
    """0 or more, and finite. Raises ArgumentTypeError."""
    return 0.0 if text.strip() == "0" else seconds(text)


def whole(text: str) -> int:
    """A whole number of 0 or more. Raises ArgumentTypeError."""
    return count_or_none(text)


def age(text: str) -> float:
    """Seconds that an answer may be old. More than any can be is as much as that. Raises ArgumentTypeError."""
    return min(seconds(text), _OLDEST_SECONDS)


def days(text: str) -> int:
    """1 or more, and so many as a date can be away. Raises ArgumentTypeError."""
    given = count(text)
    if given > _MOST_DAYS:
        raise argparse.ArgumentTypeError(f"{text} is too many; give at most {_MOST_DAYS}, or leave it out: never")
    return given


def kafka(text: str) -> str:
    """Where Kafka is, and perhaps `?settings=FILE` behind it. Raises ArgumentTypeError."""
    if not all(part.strip() for part in text.partition("?")[0].split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty address; write HOST:PORT, several with commas between")
    return text


def name(text: str) -> str:
    """Of an application, a query or a state. Raises ArgumentTypeError."""
    return _taken(lambda: checked_name("the name", text, _AS_LISTED))


def state(text: str) -> str:
    """A state by its whole name, APP/STATE. Raises ArgumentTypeError."""

    def checked() -> str:
        application, of = state_path(text)
        checked_name("the application's name", application, _AS_LISTED)
        checked_name("the state's name", of, _AS_LISTED)
        return text

    return _taken(checked)


def addresses(text: str) -> list[str]:
    """HOST:PORT, separated by commas. Raises ArgumentTypeError."""
    found = [part.strip() for part in text.split(",")]
    for one in found:
        if not is_host_port(one):
            raise argparse.ArgumentTypeError(f"{one!r} is not HOST:PORT; write several with commas between")
    return found


def topic(text: str) -> str:
    """A name that a topic of Kafka's can have. Raises ArgumentTypeError."""
    if not TOPIC_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} can't be a topic's name: letters, digits, '.', '_' and '-', at most 249"
        )
    return text


def _taken(check: Callable[[], str]) -> str:
    try:
        return check()
    except InvalidConfiguration as error:
        raise argparse.ArgumentTypeError(error.message) from error


class Version(argparse.Action):
    """Looked up only where it is asked for."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        from keyhole.metrics.families import version

        print(f"keyhole {version()}")
        parser.exit()


class Pairs(argparse.Action):
    """NAME=VALUE, any number of them, as a dict; each name once."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        pairs = dict(getattr(namespace, self.dest))
        name, of = value
        if name in pairs:
            parser.error(f"{option} names {name} twice")
        setattr(namespace, self.dest, pairs | {name: of})


def add_pairs(
    command: argparse.ArgumentParser, option: str, metavar: str, text: str, parse: Callable[[str], Any] = str
) -> None:
    """An option that is given as NAME=VALUE, any number of times; `parse` takes the value's text."""

    def pair(given: str) -> tuple[str, Any]:
        name, equals, value = given.partition("=")
        if not (name and equals and value):
            raise argparse.ArgumentTypeError(f"{given!r} is not {metavar}")
        return name, parse(value)

    command.add_argument(option, type=pair, action=Pairs, default={}, metavar=metavar, help=f"{text}; may be repeated")
