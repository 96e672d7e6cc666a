"""Lookups under way: from the user's keys to frames, and from frames to the user's futures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, Self

from keyhole.backoff import retry_after_seconds
from keyhole.client.wire.cut_off import error_for_caller, is_cut_off
from keyhole.client.wire.segments import Answers
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.key_values import KeyValue
from keyhole.errors import EpochNotReached, KeyholeError, MalformedRequest, StaleDescriptor, ValueMismatch
from keyhole.model.given import LEFT_OUT, refuse_left_out
from keyhole.model.read import Answer, ReadBounds, Source
from keyhole.rpc import convert
from keyhole.rpc.frames import AskAgain, of_key
from keyhole.v1 import state_pb2


def keys_of(keys: Iterable[Any], name: tuple[str, str] = ("", "")) -> list[Any]:
    """The keys of a `get_many`, of a state of that name.

    Raises:
        MalformedRequest: There are none; or they are one text, whose characters nobody means, a data frame or mapping,
            which gives its names, or nothing that has several.
    """
    if keys is LEFT_OUT:
        refuse_left_out("get_many", "keys", *name)
    if isinstance(keys, (str, bytes, bytearray)):
        raise MalformedRequest(
            f"keys is a {type(keys).__name__}, whose characters would each be a key; give a list of keys, also of one, "
            "or use get"
        )
    if any(of.__name__ == "DataFrame" for of in type(keys).__mro__):
        raise MalformedRequest(
            "keys is a DataFrame, whose columns' names would each be a key; give a list of keys, as one column of it"
        )
    if isinstance(keys, Mapping):
        raise MalformedRequest(
            f"keys is a {type(keys).__name__}, whose names would each be a key; give a list of keys, each with its "
            "columns' values in their order"
        )
    try:
        given = iter(keys)
    except TypeError:
        raise MalformedRequest(
            f"keys is a {type(keys).__name__}; give a list of keys, also of one, or use get"
        ) from None
    return list(given)


class Waiter(Protocol):
    """What waits for one answer: a future, or a slot of a `get_many`."""

    def done(self) -> bool:
        """Whether nobody waits any more."""

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
        whole = self._whole
        whole.future.set_exception(of_key(exception, whole.first + self._index, whole.of))


class Whole:
    """All slots of `count` keys, at least one, that are answered together.

    Args:
        first, of: Which of the keys of a `get_many` the first one is, and how many it has; for messages.
    """

    def __init__(self, future: asyncio.Future[list[Answer]], count: int, first: int = 0, of: int = 0) -> None:
        self.future = future
        self.answers: list[Answer | None] = [None] * count
        self.left = count
        self.first, self.of = first, of or count

    def slots(self) -> list[Slot]:
        """One per key, in order."""
        return [Slot(self, index) for index in range(len(self.answers))]


class LookupBatch:
    """Lookups of one state that were asked for in one turn of the event loop, and share options and deadline.

    Attributes:
        keys: As the user gave them, so that they can be encoded again for a newer descriptor.
        deadline: On the event loop's clock.
        again: Whether these were tried before, with a descriptor that was, or may be, stale.
        patient: Whether a proxy said that their server keeps them waiting.
        attempts: How often they were sent.
        cut_off: What cut them off the last time; None: nothing has.
        by_proxy: Whether servers were asked for them directly, and have not answered: a proxy has the last word.
    """

    __slots__ = ("again", "attempts", "bounds", "by_proxy", "cut_off", "deadline", "keys", "patient", "waiters")

    def __init__(self, bounds: ReadBounds, deadline: float, *, again: bool = False, patient: bool = False) -> None:
        self.keys: list[KeyValue | Sequence[KeyValue]] = []
        self.waiters: list[Waiter] = []
        self.bounds = bounds
        self.deadline = deadline
        self.again = again
        self.patient = patient
        self.attempts = 0
        self.cut_off: KeyholeError | None = None
        self.by_proxy = False

    def part(self, start: int, count: int) -> Self:
        """Some of them, as a batch of their own."""
        part = self._empty()
        part.keys = self.keys[start : start + count]
        part.waiters = self.waiters[start : start + count]
        return part

    def picked(self, places: Sequence[int]) -> Self:
        """Those at these places, as a batch of their own."""
        part = self._empty()
        part.keys = [self.keys[place] for place in places]
        part.waiters = [self.waiters[place] for place in places]
        return part

    def unanswered(self) -> Self:
        """Those that somebody still waits for."""
        places = [place for place, waiter in enumerate(self.waiters) if not waiter.done()]
        return self if len(places) == len(self.waiters) else self.picked(places)

    def _empty(self) -> Self:
        part = type(self)(self.bounds, self.deadline, again=self.again, patient=self.patient)
        part.attempts, part.cut_off, part.by_proxy = self.attempts, self.cut_off, self.by_proxy
        return part

    def encode(self, codec: StateCodec) -> tuple[list[bytes], LookupBatch | None]:
        """The storage keys, and a batch of those lookups whose keys don't fit the state, which this one then lacks."""
        try:
            return [codec.storage_key(key) for key in self.keys], None
        except KeyholeError:
            return self._encode_one_by_one(codec)

    def _encode_one_by_one(self, codec: StateCodec) -> tuple[list[bytes], LookupBatch]:
        keys, waiters = self.keys, self.waiters
        self.keys, self.waiters = [], []
        encoded: list[bytes] = []
        refused = LookupBatch(self.bounds, self.deadline, again=True)
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
        on_newer: Called with those that were answered together where a row is of a newer schema than the codec knows,
            and with what the codec says.
        on_pending: Called with those that the proxy has no answer for yet, while it has for others of their frame.
        on_cut_off: Called with those that may be sent again, and with what cut them off.
        on_later: Called with those that were refused together for a while, why, and for how many seconds.
        least: The epoch that each must have, where it differs by key group; else empty. A proxy, or a server, of an
            older version does not know these bounds.
    """

    __slots__ = ("_batch", "_codec", "_least", "_on_cut_off", "_on_later", "_on_newer", "_on_pending", "_on_stale")

    def __init__(
        self,
        batch: LookupBatch,
        codec: StateCodec,
        on_stale: Callable[[LookupBatch], None],
        on_newer: Callable[[LookupBatch, StaleDescriptor], None],
        on_pending: Callable[[LookupBatch], None],
        on_cut_off: Callable[[LookupBatch, KeyholeError], None],
        on_later: Callable[[LookupBatch, KeyholeError, float], None],
        least: Sequence[int] = (),
    ) -> None:
        self._batch = batch
        self._least = least
        self._codec = codec
        self._on_stale = on_stale
        self._on_newer = on_newer
        self._on_pending = on_pending
        self._on_cut_off = on_cut_off
        self._on_later = on_later

    def answered(self, start: int, answers: Answers) -> None:
        waiters = self._batch.waiters[start : start + len(answers.values)]
        try:
            if self._least or answers.failures or answers.source_of or not self._answer_alike(waiters, answers):
                self._answer_each(start, waiters, answers)
        except StaleDescriptor as error:
            # Nobody has an answer yet: what was asked for together is to be of one schema.
            self._on_newer(self._batch.part(start, len(waiters)), error)

    def _answer_alike(self, waiters: Sequence[Waiter], answers: Answers) -> bool:
        """From one source. False: a row can't be read, and nobody has got an answer. Raises StaleDescriptor."""
        decode = self._codec.decode_row
        try:
            rows = [decode(value) if value else None for value in answers.values]
        except ValueMismatch:
            return False
        source = convert.source_from_proto(answers.sources[0] if answers.sources else state_pb2.Source())
        absent = Answer(False, None, source)
        for waiter, row in zip(waiters, rows, strict=True):
            if not waiter.done():
                waiter.set_result(absent if row is None else Answer(True, row, source))
        return True

    def _row_or_why(self, value: bytes) -> Any:
        """None for an absent key; where a row can't be read, why. Raises StaleDescriptor."""
        try:
            return self._codec.decode_row(value) if value else None
        except ValueMismatch as error:
            return error

    def _answer_each(self, start: int, waiters: Sequence[Waiter], answers: Answers) -> None:
        rows = [self._row_or_why(value) for value in answers.values]
        sources = [convert.source_from_proto(source) for source in answers.sources or (state_pb2.Source(),)]
        pending = self._batch.part(0, 0)
        pending.patient = True
        # Those that one server has refused together come again together.
        later: dict[int, tuple[KeyholeError, LookupBatch]] = {}
        for index, (waiter, row) in enumerate(zip(waiters, rows, strict=True)):
            if waiter.done():
                continue
            failure = answers.failures.get(index)
            if isinstance(failure, AskAgain):
                pending.keys.append(self._batch.keys[start + index])
                pending.waiters.append(waiter)
                continue
            if failure is not None and retry_after_seconds(failure) is not None:
                _, refused = later.setdefault(id(failure), (failure, self._batch.part(0, 0)))
                refused.keys.append(self._batch.keys[start + index])
                refused.waiters.append(waiter)
            elif failure is not None:
                self.failed(start + index, 1, failure)
            elif isinstance(row, KeyholeError):
                waiter.set_exception(row)
            else:
                source = sources[answers.source_of[index] if answers.source_of else 0]
                if self._least and source.epoch < self._least[start + index]:
                    waiter.set_exception(before_min_epoch(source, self._least[start + index]))
                else:
                    waiter.set_result(Answer(row is not None, row, source))
        if pending.keys:
            self._on_pending(pending)
        for error, refused in later.values():
            self._on_later(refused, error, retry_after_seconds(error) or 0.0)

    def failed(self, start: int, count: int, error: KeyholeError) -> None:
        batch = self._batch
        if is_cut_off(error):
            self._on_cut_off(batch.part(start, count), error)
            return
        if (seconds := retry_after_seconds(error)) is not None:
            self._on_later(batch.part(start, count), error, seconds)
            return
        if batch.again or not isinstance(error, StaleDescriptor):
            batch.fail_part(start, count, error_for_caller(error, batch.attempts, batch.cut_off))
            return
        stale = batch.part(start, count)
        stale.again = True
        self._on_stale(stale)


def before_min_epoch(source: Source, least: int) -> EpochNotReached:
    """Why an answer that does not meet what was asked for is none."""
    return EpochNotReached(
        f"server {source.server} answered at epoch {source.epoch}, and min_epoch asks for {least}: it, or the proxy, "
        "is of an older version, which does not know epochs by key group",
        epoch=source.epoch,
    )


def own_copy(error: KeyholeError) -> KeyholeError:
    """One error object per waiter: raising it adds to its traceback."""
    copy = type(error)(error.message)
    copy.facts = error.facts
    copy.__cause__ = error.__cause__
    return copy
