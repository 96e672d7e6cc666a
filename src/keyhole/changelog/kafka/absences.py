"""Which topics are gone, of those that looks at Kafka don't find."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from keyhole.changelog.kafka.clients import unreachable
from keyhole.errors import KafkaUnreachable

APART_SECONDS = 2.0
"""A broker that has just started may not have heard of every topic yet: two looks so far apart count."""

_FORGOTTEN_SECONDS = 60.0
"""But not where nobody looked for so long between them."""


class Absences:
    """What the last looks didn't find. Not thread-safe. Times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        # When the first and the last look did not find it.
        self._looks: dict[str, tuple[float, float]] = {}

    def found(self, topic: str) -> None:
        """It is there, or nobody asks for it any more."""
        self._looks.pop(topic, None)

    def is_gone(self, topic: str, now_monotonic: float) -> bool:
        """Whether a topic is gone that the look of now has not found."""
        first, last = self._looks.get(topic, (now_monotonic, now_monotonic))
        if now_monotonic - last > _FORGOTTEN_SECONDS:
            first = now_monotonic
        self._looks[topic] = first, now_monotonic
        return now_monotonic - first >= APART_SECONDS


IsGone: TypeAlias = Callable[[str], bool]
"""Whether a topic is gone that a look has not found just now, as Absences.is_gone."""


def gone_at_once(topic: str) -> bool:
    """An IsGone for who looks once: what is not found is not there."""
    return True


def unheard_of(bootstrap_servers: str, *topics: str) -> KafkaUnreachable:
    """The error for topics that a look has not found, and that may be there."""
    return unreachable(bootstrap_servers, f"describe topic {', '.join(topics)}", "the broker has not heard of it")
