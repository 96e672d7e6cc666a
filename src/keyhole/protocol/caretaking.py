"""Which query may be taken over without a batch of it: one that goes on where it was, and that no run holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from keyhole.errors import SavepointMismatch
from keyhole.protocol.control import QueryControl
from keyhole.protocol.start import Start

QUIET_SECONDS = 5.0
"""For how long nothing of a run may be seen before nobody has the query.

An idle run that knows no server that answers repeats its record at least every four: the second between two heartbeats,
two for servers that have just fallen silent, and one to look for others.
"""


def start_without_batch(
    query: str, control: QueryControl, spark_query_id: str, standbys: Mapping[str, int]
) -> Start | None:
    """What a run would go on with that has no batch yet: all as it is on record; None: it may not begin.

    Only a query goes on whose next batch is expected of this checkpoint, and that has something to give to its servers.
    What a first batch has to decide, is left to it.

    Args:
        spark_query_id: Of the streaming query that was started.
        standbys: The states that the job declares, and how many standbys each is to have.

    Raises:
        SavepointMismatch: Not yet: the application is being restored.
    """
    known, states = control.query, control.states
    if known is None or control.complete is None or not spark_query_id or known.spark_query_id != spark_query_id:
        return None
    if not standbys or any(name not in states or states[name].query != query for name in standbys):
        return None
    if control.restoring:
        raise SavepointMismatch(
            f"the application is being restored from savepoint {control.restoring}, or that was broken off",
            savepoint=control.restoring,
        )
    # Of a savepoint's states the first batch drops those that the job doesn't declare, or refuses the start.
    if control.savepoint is not None and not set(control.savepoint.states) <= standbys.keys():
        return None
    return Start(known, {states[name]: count for name, count in standbys.items()}, {})


class LastSeen(NamedTuple):
    """What the control topic had of a query, and since when. No server had heard of a run."""

    control: QueryControl
    since_monotonic: float

    def again(self, control: QueryControl, now_monotonic: float) -> LastSeen:
        """As `control` has it now. Where a run has written since, the time begins anew."""
        return self if _of_query(control) == _of_query(self.control) else LastSeen(control, now_monotonic)

    def quiet(self, now_monotonic: float) -> bool:
        """For so long no run has recorded anything, and none has renewed the leases of servers that could be asked.

        A run may be alive all the same, which is suspended, or cut off from Kafka. So may one of another driver on this
        checkpoint, while it fences or opens servers, or has an epoch under way on servers that this driver doesn't see.
        It is fenced, as the first batch would do.
        """
        return now_monotonic - self.since_monotonic >= QUIET_SECONDS


def _of_query(control: QueryControl) -> QueryControl:
    """Without what other queries write."""
    return msgspec.structs.replace(control, states={}, restoring="")
