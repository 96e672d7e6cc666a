"""Lookups that wait for a state's descriptor."""

from __future__ import annotations

import asyncio

import pytest

from keyhole.client.coalescing import Lane, Segment
from keyhole.client.lookups import Batch
from keyhole.client.state_reads import StateReads
from keyhole.errors import DeadlineExceeded
from keyhole.types import ReadBounds, StateDescriptor
from tests.support.states import descriptor


class Stream:
    """Notes what is sent."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[Segment] = asyncio.Queue()

    def submit(self, lane: Lane, segment: Segment) -> None:
        self.sent.put_nowait(segment)


def lookup(timeout: float) -> Batch:
    """Of one key."""
    loop = asyncio.get_running_loop()
    batch = Batch(ReadBounds(), loop.time() + timeout)
    batch.keys.append("k")
    batch.waiters.append(loop.create_future())
    return batch


async def test_a_patient_lookup_does_not_fail_with_the_question_of_an_impatient_one() -> None:
    asked: list[float] = []

    async def describe(application: str, state: str, seconds: float) -> StateDescriptor:
        asked.append(seconds)
        if len(asked) == 1:
            await asyncio.sleep(seconds)
            raise DeadlineExceeded("no answer")
        return descriptor()

    stream = Stream()
    reads = StateReads(stream, "app", "counts", describe, lambda: None)  # type: ignore[arg-type]  # a part of one
    impatient, patient = lookup(0.1), lookup(30.0)
    reads.submit(impatient)
    await asyncio.sleep(0.01)
    reads.submit(patient)
    with pytest.raises(DeadlineExceeded):
        await impatient.waiters[0]
    await stream.sent.get()
    assert asked[0] <= 0.1 < asked[1]
