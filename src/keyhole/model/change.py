"""A change of a state, as a watch gives it. Frozen values, pure."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Any, NamedTuple


class ChangeKind(enum.StrEnum):
    """PUT: the key has this value from then on. DELETE: it has none, as it was deleted or has expired."""

    PUT = "put"
    DELETE = "delete"


class StateChange(NamedTuple):
    """One change of one key, or one row that was there when a watch began.

    Attributes:
        kind: What has happened.
        key: One value, or a tuple where the key has several columns.
        map_key: As Entry has it; None where the state has one value per key.
        value: An immutable row; None where the key has no value any more.
        before: What it had before; None: nothing, or that is not known.
        before_known: Whether that is known: it was asked for, and the change came from memory.
        epoch: Whose change it is; of a row that was there, as of which epoch it was.
        commit_time: When that epoch's commit was decided, UTC.
        snapshot: It was there when the watch began, or came to it.
    """

    kind: ChangeKind
    key: Any
    map_key: Any
    value: Any
    before: Any
    before_known: bool
    epoch: int
    commit_time: datetime | None
    snapshot: bool
