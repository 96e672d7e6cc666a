"""Lookups under way: from the user's keys to frames, and from frames to the user's futures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from keyhole.client.coalescing import ASK_AGAIN, Answers
from keyhole.codec import StateCodec
from keyhole.errors import KeyholeError, StaleDescriptor
from keyhole.rpc import convert
from keyhole.types import Answer, ReadBounds, Source
from keyhole.v1 import state_pb2


class Waiter(Protocol):
    """What waits for one answer: a future, or a slot of a `get_many`."""

    def done(self) -> bool:
        """True: nobody waits any more."""

    def set_result(self, result: Answer, /) -> None: ...

    def set_exception(self, exception: KeyholeError, /) -> None: ...


class Slot:
    """One key of a `get_many`. The last answer completes the whole; the first error fails it."""

    __slots__ = ("_index", "_whole")

    def __init__(self, whole: Whole, index: int) -> None:
        self._whole = whole
        self._index = index

    def done(self) -> bool:
        return self._whole.future.done()

    def set_result(self, result: Answer, /) -> None:
        whole = self._whole
        whole.answers[self._index] = result
        whole.left -= 1
        if whole.left == 0:
            whole.future.set_result([answer for answer in whole.answers if answer is not None])

    def set_exception(self, exception: KeyholeError, /) -> None:
        self._whole.future.set_exception(exception)


class Whole:
    """All slots of a `get_many` of `count` keys, at least one."""

    def __init__(self, future: asyncio.Future[list[Answer]], count: int) -> None:
        self.future = future
        self.answers: list[Answer | None] = [None] * count
        self.left = count

    def slots(self) -> list[Slot]:
        """One per key, in order."""
        return [Slot(self, index) for index in range(len(self.answers))]


class Batch:
    """Lookups of one state that were asked for in one turn of the event loop, and share options and deadline.

    Attributes:
        keys: As the user gave them, so that they can be encoded again for a newer descriptor.
        deadline: On the event loop's clock.
        again: Whether these were tried before, with a descriptor that was, or may be, stale.
        patient: Whether a proxy said that their server keeps them waiting.
    """

    __slots__ = ("again", "bounds", "deadline", "keys", "patient", "waiters")

    def __init__(self, bounds: ReadBounds, deadline: float, *, again: bool = False, patient: bool = False) -> None:
        self.keys: list[convert.KeyValue | Sequence[convert.KeyValue]] = []
        self.waiters: list[Waiter] = []
        self.bounds = bounds
        self.deadline = deadline
        self.again = again
        self.patient = patient

    def encode(self, codec: StateCodec) -> tuple[list[bytes], Batch | None]:
        """The storage keys, and a batch of those lookups whose keys don't fit the state, which this one then lacks."""
        try:
            return [codec.storage_key(key) for key in self.keys], None
        except KeyholeError:
            return self._encode_one_by_one(codec)

    def _encode_one_by_one(self, codec: StateCodec) -> tuple[list[bytes], Batch]:
        keys, waiters = self.keys, self.waiters
        self.keys, self.waiters = [], []
        encoded: list[bytes] = []
        refused = Batch(self.bounds, self.deadline, again=True)
        for key, waiter in zip(keys, waiters, strict=True):
            try:
                encoded.append(codec.storage_key(key))
            except KeyholeError as error:
                if not self.again:
                    refused.keys.append(key)
                    refused.waiters.append(waiter)
                elif not waiter.done():
                    waiter.set_exception(error)
            else:
                self.keys.append(key)
                self.waiters.append(waiter)
        return encoded, refused

    def fail(self, error: KeyholeError) -> None:
        """Fails all that still wait."""
        self.fail_part(0, len(self.waiters), error)

    def fail_part(self, start: int, count: int, error: KeyholeError) -> None:
        for waiter in self.waiters[start : start + count]:
            if not waiter.done():
                waiter.set_exception(own_copy(error))


class BatchSink:
    """Turns the answers of a batch into results.

    Args:
        codec: The one that encoded the batch's keys.
        on_stale: Called with those lookups that the server's newer descriptor refused; unless they were sent again
            already, in which case they fail.
        on_pending: Called with those that the proxy has no answer for yet, while it has for others of their frame.
    """

    __slots__ = ("_batch", "_codec", "_on_pending", "_on_stale")

    def __init__(
        self,
        batch: Batch,
        codec: StateCodec,
        on_stale: Callable[[Batch], None],
        on_pending: Callable[[Batch], None],
    ) -> None:
        self._batch = batch
        self._codec = codec
        self._on_stale = on_stale
        self._on_pending = on_pending

    def answered(self, start: int, answers: Answers) -> None:
        waiters = self._batch.waiters[start : start + len(answers.values)]
        if answers.failures or answers.source_of:
            self._answer_each(start, waiters, answers)
            return
        source = convert.source_from_proto(answers.sources[0] if answers.sources else state_pb2.Source())
        absent = Answer(False, None, source)
        decode = self._codec.decode_row
        for waiter, value in zip(waiters, answers.values, strict=True):
            if waiter.done():
                continue
            try:
                waiter.set_result(Answer(True, decode(value), source) if value else absent)
            except KeyholeError as error:
                waiter.set_exception(error)

    def _answer_each(self, start: int, waiters: Sequence[Waiter], answers: Answers) -> None:
        sources = [convert.source_from_proto(source) for source in answers.sources]
        pending = Batch(self._batch.bounds, self._batch.deadline, again=self._batch.again, patient=True)
        for index, (waiter, value) in enumerate(zip(waiters, answers.values, strict=True)):
            if waiter.done():
                continue
            failure = answers.failures.get(index)
            if failure is not None and ASK_AGAIN in failure.facts:
                pending.keys.append(self._batch.keys[start + index])
                pending.waiters.append(waiter)
                continue
            if failure is not None:
                self.failed(start + index, 1, failure)
                continue
            try:
                waiter.set_result(self._answer(value, sources, answers.source_of[index] if answers.source_of else 0))
            except KeyholeError as error:
                waiter.set_exception(error)
        if pending.keys:
            self._on_pending(pending)

    def _answer(self, value: bytes, sources: Sequence[Source], source: int) -> Answer:
        return (
            Answer(True, self._codec.decode_row(value), sources[source])
            if value
            else Answer(False, None, sources[source])
        )

    def failed(self, start: int, count: int, error: KeyholeError) -> None:
        batch = self._batch
        if batch.again or not isinstance(error, StaleDescriptor):
            batch.fail_part(start, count, error)
            return
        stale = Batch(batch.bounds, batch.deadline, again=True, patient=batch.patient)
        stale.keys = batch.keys[start : start + count]
        stale.waiters = batch.waiters[start : start + count]
        self._on_stale(stale)


def own_copy(error: KeyholeError) -> KeyholeError:
    """One error object per waiter: raising it adds to its traceback."""
    copy = type(error)(error.message)
    copy.facts = error.facts
    copy.__cause__ = error.__cause__
    return copy
