"""Begins lookups of storage keys, of all callers; bounds how many are under way, and counts what becomes of them."""

from __future__ import annotations

from collections.abc import Callable

from keyhole.client.routing.frame import Forwarding
from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.segments import Answers
from keyhole.errors import Overloaded
from keyhole.rpc.frames import FRAME_BYTES
from keyhole.rpc.read_requests import KeyLookup
from services.client_proxy.counts import ProxyCounts
from services.client_proxy.directory import Directory


class StorageReads:
    """See the module's text. Event loop's thread only.

    Args:
        max_keys: Beyond so many keys under way, reads are refused as overloaded.

    Attributes:
        keys: How many are under way.
    """

    def __init__(self, directory: Directory, counts: ProxyCounts, max_keys: int) -> None:
        self.keys = 0
        self._directory = directory
        self._counts = counts
        self._max_keys = max_keys

    def forward(
        self,
        lookup: KeyLookup,
        deadline: float,
        done: Callable[[Answers], None],
        *,
        in_parts: bool = False,
        room: int = FRAME_BYTES,
        way: Callable[..., Forwarding] = Forwarding,
    ) -> None:
        """Looks storage keys up; `deadline`, `done`, `in_parts` and `room` are as of Forwarding. `way` makes that.

        Raises:
            Overloaded: Too many keys are under way already.
        """
        count = len(lookup.storage_keys)
        if not count:
            done(Answers((), ()))
            return
        if self.keys + count > self._max_keys:
            raise Overloaded(
                f"{self.keys:,} lookups are under way in this proxy, and at most {self._max_keys:,} may be; try "
                "again, or run another proxy"
            )
        self.keys += count
        counts = self._counts.of(lookup.state, self._directory.tables)
        began = self._counts.begun(counts, count)

        def ended(answers: Answers) -> None:
            self._counts.ended(counts, began, answers, forwarding.missed)
            self.keys -= count
            done(answers)

        lane = Lane(*lookup.state, lookup.topic_id, lookup.bounds)
        forwarding = way(self._directory, lane, lookup.storage_keys, deadline, ended, in_parts=in_parts, room=room)
        forwarding.start()
