"""What a deletion counts in a state with `order_by`: from what a user says to what its descriptor has."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from datetime import timedelta
from typing import Literal

from keyhole.errors import InvalidConfiguration
from keyhole.model.state import DEFAULT_KEEP_DELETED_MS

Deletes = Literal["by_order", "always"]

_MILLISECOND = timedelta(milliseconds=1)


def keep_deleted_ms(state: str, order_by: object, deletes: object, keep_deleted: object) -> int:
    """From the arguments of a user, of which nothing is known; 0: deletions have no order.

    Args:
        keep_deleted: A timedelta of 1 ms or more; what is less than a millisecond of it doesn't count. None: the
            default.

    Raises:
        InvalidConfiguration: One of them is wrong; the message names the state.
    """
    for problem in _problems(order_by, deletes, keep_deleted):
        raise InvalidConfiguration(f"state {state!r}: {problem}", state=state)
    if order_by is None or deletes == "always":
        return 0
    return keep_deleted // _MILLISECOND if isinstance(keep_deleted, timedelta) else DEFAULT_KEEP_DELETED_MS


def _problems(order_by: object, deletes: object, keep_deleted: object) -> Iterator[str]:
    if deletes not in (choices := typing.get_args(Deletes)):
        yield f"deletes is {deletes!r}; it must be one of {', '.join(choices)}"
    if keep_deleted is None:
        return
    if not (isinstance(keep_deleted, timedelta) and keep_deleted >= _MILLISECOND):
        yield f"keep_deleted is {keep_deleted!r}; it must be a timedelta of 1 ms or more"
    if order_by is None:
        yield "keep_deleted is given and order_by is not; name with order_by= the column that says what is older"
    if deletes == "always":
        yield "keep_deleted is given, and deletes is 'always', by which nothing is remembered; leave one of the two out"
