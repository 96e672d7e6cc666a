"""What a proxy asks its servers for, by storage keys."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keyhole.errors import DeadlineExceeded
from keyhole.model.read import ReadBounds
from keyhole.rpc.read_admission import NO_LIMITS, ReadAdmission
from keyhole.rpc.read_requests import KeyLookup
from keyhole.testing.clock import ManualClock
from services.client_proxy.forwarding.storage_reads import StorageReads


async def test_what_has_waited_until_its_deadline_is_dropped_and_counted() -> None:
    def never(*_: object, **__: object) -> Any:
        raise AssertionError("no server is to be asked")

    # As a frame that has waited here until its state was known.
    nothing: Any = None
    admission = ReadAdmission(NO_LIMITS, ManualClock(), "this proxy")
    reads = StorageReads(nothing, nothing, admission)
    lookup = KeyLookup(("weather", "readings"), ReadBounds(), as_json=False, storage_keys=[b"a", b"b"])
    with pytest.raises(DeadlineExceeded, match="nothing was looked up"):
        reads.forward(lookup, asyncio.get_running_loop().time(), never, way=never)
    assert admission.expired == 2
