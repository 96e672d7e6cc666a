"""Begins lookups of storage keys, of all callers, and counts what becomes of them. How many may be under way is decided
before (rpc/read_admission.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from keyhole.client.routing.frame import Forwarding
from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.segments import Answers
from keyhole.rpc.frames import FRAME_BYTES
from keyhole.rpc.read_admission import ReadAdmission
from keyhole.rpc.read_requests import KeyLookup
from services.client_proxy.counts import ProxyCounts
from services.client_proxy.directory import Directory


class StorageReads:
    """See the module's text. Event loop's thread only.

    Args:
        admission: Counts what is dropped, since its deadline has passed.
    """

    def __init__(self, directory: Directory, counts: ProxyCounts, admission: ReadAdmission) -> None:
        self._directory = directory
        self._counts = counts
        self._admission = admission
        self._loop = asyncio.get_running_loop()

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
            DeadlineExceeded: The deadline has passed already: no server is asked.
        """
        count = len(lookup.storage_keys)
        if not count:
            done(Answers((), ()))
            return
        if self._loop.time() >= deadline:
            raise self._admission.dropped(count)
        counts = self._counts.of(lookup.state, self._directory.tables)
        began = self._counts.begun(counts, lookup.storage_keys)

        def ended(answers: Answers) -> None:
            self._counts.ended(counts, began, answers, forwarding.missed)
            done(answers)

        lane = Lane(*lookup.state, lookup.topic_id, lookup.bounds)
        forwarding = way(self._directory, lane, lookup.storage_keys, deadline, ended, in_parts=in_parts, room=room)
        forwarding.start()
