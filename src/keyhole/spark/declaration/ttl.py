"""How long the entries of a state live: from what a user says, in either of two forms, to what its descriptor has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from keyhole.errors import InvalidConfiguration
from keyhole.model.state import TtlClock

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Ttl:
    """As a descriptor has it.

    Attributes:
        ms: Milliseconds; 0: entries live until they are deleted.
        clock: By which they count.
    """

    ms: int = 0
    clock: TtlClock = TtlClock.PROCESSING_TIME

    def __str__(self) -> str:
        return f"{self.ms * _MILLISECOND} by {self.clock}"


def ttl_of(state: str, ttl: object, clock: object) -> Ttl:
    """From the arguments of a user, of which nothing is known.

    Args:
        ttl: A timedelta of 1 ms or more; what is less than a millisecond of it doesn't count. None: none.
        clock: "processing_time" or "event_time".

    Raises:
        InvalidConfiguration: One of them is wrong; the message names the state.
    """
    for problem in _problems(ttl, clock):
        raise InvalidConfiguration(f"state {state!r}: {problem}", state=state)
    return Ttl(ttl // _MILLISECOND if isinstance(ttl, timedelta) else 0, TtlClock(str(clock)))


def ttl_in_spark(ms: int | None) -> Ttl | None:
    """Of a processor's state, which `init` gives one in milliseconds; None: it has none, as Spark takes 0, too."""
    return Ttl(ms) if ms else None


def _problems(ttl: object, clock: object) -> Iterator[str]:
    if ttl is not None and not (isinstance(ttl, timedelta) and ttl >= _MILLISECOND):
        yield f"ttl is {ttl!r}; it must be a timedelta of 1 ms or more"
    if clock not in tuple(TtlClock):
        yield f"ttl_clock is {clock!r}; it must be one of {', '.join(TtlClock)}"
    if ttl is None and clock == TtlClock.EVENT_TIME:
        yield "ttl_clock is 'event_time' and ttl is not given; say with ttl= how long an entry lives"
