"""The names that a job, or a feeder, gives: of its application, its query and its states. Pure."""

from __future__ import annotations

import re

from keyhole.errors import InvalidConfiguration

_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""What a topic of Kafka's can be called."""


def checked_name(what: str, name: str, remedy: str) -> str:
    """The name, if it can be part of a Kafka topic's and a transactional id.

    Raises:
        InvalidConfiguration: It can't.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidConfiguration(
            f"{what} is {name!r}, but must be 1 to 100 letters, digits, '_' or '-'; {remedy}", name=name
        )
    return name
