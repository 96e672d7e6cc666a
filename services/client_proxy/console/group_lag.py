"""How far the copies of a key group are behind what is complete. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from keyhole.v1 import query_pb2 as pb

FAR_EPOCHS = 5
FAR_UPDATES_MS = 10_000
_BEHIND_EPOCHS = 2  # a copy that follows lacks the last epoch for a moment, each time
_BEHIND_UPDATES_MS = 1_000


class CopiesLag(enum.StrEnum):
    """By the copy that lacks the most.

    CURRENT: each has all epochs but the last, and no update waits for a second. BEHIND: one lacks two epochs at least,
    or an update has waited for a second. FAR: five epochs, or ten seconds, or a copy reads the changelog and does not
    answer yet. NONE: nobody answers.
    """

    CURRENT = "current"
    BEHIND = "behind"
    FAR = "far"
    NONE = "none"


def lag_of(answering: Sequence[pb.StateHolding], *, restoring: bool) -> CopiesLag:
    """Of one key group.

    Args:
        answering: All copies that answer for it, its owner's included.
        restoring: There are others that don't yet.
    """
    if not answering:
        return CopiesLag.NONE
    epochs = max(of.source.lag_epochs for of in answering)
    updates_ms = max(of.updates_lag_ms for of in answering)
    if restoring or epochs >= FAR_EPOCHS or updates_ms >= FAR_UPDATES_MS:
        return CopiesLag.FAR
    if epochs >= _BEHIND_EPOCHS or updates_ms >= _BEHIND_UPDATES_MS:
        return CopiesLag.BEHIND
    return CopiesLag.CURRENT
