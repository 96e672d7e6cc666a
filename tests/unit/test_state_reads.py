"""Lookups that wait for a state's descriptor."""

from __future__ import annotations

import asyncio

import pytest

from keyhole.client.wire import state_reads
from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.lookups import LookupBatch
from keyhole.client.wire.segments import Answers, Segment
from keyhole.client.wire.state_reads import StateReads
from keyhole.encoding.row_codec import encode_row
from keyhole.errors import DeadlineExceeded, Overloaded, StaleDescriptor
from keyhole.model.read import ReadBounds
from keyhole.model.state import StateDescriptor, ValueField, ValueSchema
from keyhole.v1 import state_pb2
from tests.support.states import descriptor
from tests.support.waiting import LONG_SECONDS, eventually


class Stream:
    """Notes what is sent."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[Segment] = asyncio.Queue()

    def submit(self, lane: Lane, segment: Segment) -> None:
        self.sent.put_nowait(segment)


class OneLink:
    """To what notes all."""

    cause = None

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def next(self) -> OneLink:
        return self


class Describer:
    """Tells one descriptor after the other, the last one again and again."""

    def __init__(self, *descriptors: StateDescriptor) -> None:
        self.descriptors = list(descriptors)
        self.asked = 0

    async def __call__(self, application: str, state: str, seconds: float) -> StateDescriptor:
        self.asked += 1
        return self.descriptors.pop(0) if len(self.descriptors) > 1 else self.descriptors[0]


OLDER = descriptor()
NEWER = descriptor(value=ValueSchema(2, (*OLDER.value.fields, ValueField("unit", "string"))), earlier=(OLDER.value,))
ROW = Answers([encode_row(2, [1.5, "C"])], [state_pb2.Source(server="a")])


@pytest.mark.parametrize("behind", [1, 3])
async def test_a_row_of_a_newer_schema_is_asked_for_again_until_the_state_is_described_by_it(behind: int) -> None:
    """Who describes it may hear of the schema a moment after its first row."""
    stream, describe = Stream(), Describer(*[OLDER] * behind, NEWER)
    reads = StateReads(OneLink(stream), "app", "counts", describe, lambda: None)  # type: ignore[arg-type]  # a part of one
    batch = lookup(30.0)
    reads.submit(batch)
    for _ in range(behind):
        segment = await stream.sent.get()
        segment.sink.answered(0, ROW)
        assert not batch.waiters[0].done()
    segment = await stream.sent.get()
    segment.sink.answered(0, ROW)
    answer = await batch.waiters[0]  # type: ignore[misc]  # a future
    assert answer.value.asdict() == {"n": 1.5, "unit": "C"}
    assert describe.asked == behind + 1


async def test_a_row_of_a_schema_that_nobody_describes_fails_at_the_deadline_by_saying_so() -> None:
    stream, describe = Stream(), Describer(OLDER)
    reads = StateReads(OneLink(stream), "app", "counts", describe, lambda: None)  # type: ignore[arg-type]  # a part of one
    batch = lookup(0.3)
    reads.submit(batch)
    while not batch.waiters[0].done():
        (await stream.sent.get()).sink.answered(0, ROW)
    with pytest.raises(StaleDescriptor, match="schema version 2"):
        await batch.waiters[0]  # type: ignore[misc]  # a future


def lookup(timeout: float, keys: int = 1) -> LookupBatch:
    loop = asyncio.get_running_loop()
    batch = LookupBatch(ReadBounds(), loop.time() + timeout)
    batch.keys += ["k"] * keys
    batch.waiters += [loop.create_future() for _ in range(keys)]
    return batch


def cancel(batch: LookupBatch, *places: int) -> None:
    for place in places:
        waiter = batch.waiters[place]
        assert isinstance(waiter, asyncio.Future)
        waiter.cancel()


def refusal(seconds: float) -> Overloaded:
    return Overloaded("the server has enough", retry_after_seconds=seconds)


async def test_what_nobody_waits_for_any_more_is_not_sent_again_once_it_was_refused() -> None:
    stream = Stream()
    reads = StateReads(OneLink(stream), "app", "counts", Describer(OLDER), lambda: None)  # type: ignore[arg-type]  # a part of one
    before, behind = lookup(LONG_SECONDS, 3), lookup(LONG_SECONDS, 3)
    for batch in (before, behind):
        reads.submit(batch)
    of_before, of_behind = await stream.sent.get(), await stream.sent.get()
    cancel(before, 0, 1, 2)
    of_before.sink.failed(0, 3, refusal(0.05))
    assert reads._refused_keys == 0
    of_behind.sink.failed(0, 3, refusal(0.05))
    assert reads._refused_keys == 3
    cancel(behind, 0, 2)
    again = await stream.sent.get()
    assert len(again.keys) == 1
    again.sink.failed(0, 1, refusal(0.05))
    assert reads._refused_keys == 1
    cancel(behind, 1)
    await eventually(lambda: not reads._refused_keys)
    assert stream.sent.empty()


async def test_what_nobody_waits_for_any_more_leaves_its_room_to_those_who_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_reads, "_MOST_REFUSED_KEYS", 10)
    stream = Stream()
    reads = StateReads(OneLink(stream), "app", "counts", Describer(OLDER), lambda: None)  # type: ignore[arg-type]  # a part of one
    given_up, other = lookup(3 * LONG_SECONDS, 10), lookup(3 * LONG_SECONDS, 10)
    for batch in (given_up, other):
        reads.submit(batch)
        (await stream.sent.get()).sink.failed(0, 10, refusal(LONG_SECONDS))
        cancel(given_up, *range(10))
    assert reads._refused_keys == 10
    assert not any(waiter.done() for waiter in other.waiters)
    reads.close(refusal(0))
    assert all(waiter.done() for waiter in other.waiters)


async def test_a_patient_lookup_does_not_fail_with_the_question_of_an_impatient_one() -> None:
    asked: list[float] = []

    async def describe(application: str, state: str, seconds: float) -> StateDescriptor:
        asked.append(seconds)
        if len(asked) == 1:
            await asyncio.sleep(seconds)
            raise DeadlineExceeded("no answer")
        return descriptor()

    stream = Stream()
    reads = StateReads(OneLink(stream), "app", "counts", describe, lambda: None)  # type: ignore[arg-type]  # a part of one
    impatient, patient = lookup(0.1), lookup(30.0)
    reads.submit(impatient)
    await asyncio.sleep(0.01)
    reads.submit(patient)
    with pytest.raises(DeadlineExceeded):
        await impatient.waiters[0]
    await stream.sent.get()
    assert asked[0] <= 0.1 < asked[1]
