"""What a reader asks for beside the key, from Python's words to those of the wire. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, TypeAlias

from keyhole.errors import MalformedRequest
from keyhole.types import ReadBounds, Stale

StalePolicy: TypeAlias = Stale | Literal["never", "when_needed", "always"]
"""Whether a copy other than the owner's may answer; see keyhole.types.Stale."""

_MILLISECOND = timedelta(milliseconds=1)
# What the wire has room for: 49 days.
_MOST = ((1 << 32) - 1) * _MILLISECOND


def bounds_of(stale: StalePolicy, max_staleness: timedelta | None, min_epoch: int) -> ReadBounds:
    """Staleness counts in whole milliseconds, rounded up.

    Raises:
        MalformedRequest: No such policy, a staleness of nothing or less, an epoch below 0.
    """
    try:
        policy = Stale(stale)
    except ValueError:
        raise MalformedRequest(f"stale is {stale!r}; it must be one of {', '.join(Stale)}") from None
    if min_epoch < 0:
        raise MalformedRequest(f"min_epoch is {min_epoch}; epochs begin with 1, and 0 means any")
    if max_staleness is None:
        return ReadBounds(min_epoch, policy)
    if max_staleness <= timedelta(0):
        raise MalformedRequest(f"max_staleness is {max_staleness}; no answer can be that fresh, and None means any age")
    return ReadBounds(min_epoch, policy, -(-min(max_staleness, _MOST) // _MILLISECOND))
