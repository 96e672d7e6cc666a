"""What a reader asks for beside the key, from Python's words to those of the wire. Pure."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from numbers import Real
from typing import Literal, TypeAlias

from keyhole.errors import MalformedRequest
from keyhole.model.given import whole_of
from keyhole.model.read import ReadBounds, Stale

StalePolicy: TypeAlias = Stale | Literal["never", "when_needed", "always"]
"""Whether a copy other than the owner's may answer; see keyhole.model.read.Stale."""

Duration: TypeAlias = float | timedelta
"""Seconds, or a timedelta."""

_KEY_GROUPS = 1 << 16
_MOST_EPOCH = (1 << 64) - 1
# What the wire has room for, in milliseconds: 49 days.
_MOST_MS = (1 << 32) - 1


def seconds_of(name: str, duration: Duration) -> float:
    """The duration as a number of seconds, 49 days at most.

    Args:
        name: The argument's, for the message.

    Raises:
        MalformedRequest: It is neither a number nor a timedelta, or is not finite.
    """
    found = duration.total_seconds() if isinstance(duration, timedelta) else _number(duration)
    if found is None:
        raise MalformedRequest(f"{name} is a {type(duration).__name__}; give a number of seconds, or a timedelta")
    if not math.isfinite(found):
        raise MalformedRequest(f"{name} is {found}; give a finite number of seconds")
    return min(found, _MOST_MS / 1000)


def _number(given: object) -> float | None:
    if not isinstance(given, Real) or isinstance(given, bool):
        return None
    try:
        return float(given)
    except TypeError:  # a duration of numpy's says that it is a number
        return None


def bounds_of(
    stale: StalePolicy,
    max_staleness: Duration | None,
    min_epoch: int | tuple[tuple[int, int], ...],
    as_of: int = 0,
    *,
    latest: bool = False,
) -> ReadBounds:
    """What an answer must meet, from the arguments of a read. Staleness counts in whole milliseconds, rounded up.

    Args:
        min_epoch: One, or pairs of key group and epoch.
        latest: Also what is staged and not committed.

    Raises:
        MalformedRequest: An unknown policy, a staleness of nothing or less, an epoch below 0; a bound beside `as_of`;
            the latest, as of an epoch or of any copy.
    """
    try:
        policy = Stale(stale)
    except ValueError:
        raise MalformedRequest(f"stale is {stale!r}; it must be one of {', '.join(Stale)}") from None
    by_group = min_epoch if isinstance(min_epoch, tuple) else ()
    least = 0 if isinstance(min_epoch, tuple) else min_epoch
    for group, epoch in ((0, least), *by_group):
        if (whole := whole_of(epoch)) is None or not 0 <= whole <= _MOST_EPOCH:
            raise MalformedRequest(f"min_epoch is {epoch!r}; epochs are whole numbers from 1 on, and 0 means any")
        if (whole := whole_of(group)) is None or not 0 <= whole < _KEY_GROUPS:
            raise MalformedRequest(f"min_epoch names key group {group!r}; they go from 0 to {_KEY_GROUPS - 1}")
    if isinstance(as_of, datetime):
        raise MalformedRequest(
            f"as_of is the time {as_of.isoformat()}; of a time make a snapshot, client.snapshot(PATH, as_of=...), and "
            "read that"
        )
    if (whole := whole_of(as_of)) is None or not 0 <= whole <= _MOST_EPOCH:
        raise MalformedRequest(f"as_of is {as_of!r}; epochs are whole numbers from 1 on")
    if as_of and (min_epoch or max_staleness is not None):
        raise MalformedRequest("as_of says of which epoch the answer is: leave min_epoch and max_staleness out")
    staleness_ms = 0
    if max_staleness is not None:
        staleness_ms = math.ceil(round(seconds_of("max_staleness", max_staleness) * 1000, 3))
        if staleness_ms <= 0:
            raise MalformedRequest(
                f"max_staleness is {max_staleness}; no answer can be that fresh, and None means any age"
            )
    bounds = ReadBounds(least, policy, staleness_ms, by_group, as_of, latest)
    if latest:
        bounds.check_latest()
    return bounds
