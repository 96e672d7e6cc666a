"""From the user's keys to frames and back, without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from keyhole.client.wire.lookups import BatchSink, LookupBatch, Whole
from keyhole.client.wire.segments import Answers
from keyhole.errors import (
    DeadlineExceeded,
    Draining,
    KeyholeError,
    KeyMismatch,
    NoServer,
    NotReady,
    ServerLost,
    StaleDescriptor,
    ValueMismatch,
)
from keyhole.model.read import Answer, ReadBounds
from keyhole.rpc.frames import AskAgain, Failure
from keyhole.v1 import state_pb2

SOURCES = [state_pb2.Source(server="a", epoch=1), state_pb2.Source(server="b", epoch=2)]


class _Codec:
    """Keys are strings; a row is its own value, unless it is torn, or newer than what this knows."""

    def storage_key(self, key: Any) -> bytes:
        if not isinstance(key, str):
            raise KeyMismatch("key column sensor is a string")
        return b"\x00\x00" + key.encode()

    def decode_row(self, row: bytes) -> Any:
        if row == b"torn":
            raise ValueMismatch("the row can't be read")
        if row == b"newer":
            raise StaleDescriptor("describe it again")
        return row


CODEC: Any = _Codec()


def _batch(*keys: Any, again: bool = False) -> tuple[LookupBatch, list[asyncio.Future[Answer]]]:
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[Answer]] = [loop.create_future() for _ in keys]
    batch = LookupBatch(ReadBounds(), 10.0, again=again)
    batch.keys += keys
    batch.waiters += futures
    return batch, futures


def _never(*_: object) -> None:
    raise AssertionError("nothing here is stale")


def _sink(
    batch: LookupBatch,
    on_stale: Callable[[LookupBatch], None] = _never,
    on_newer: Callable[[LookupBatch, StaleDescriptor], None] = _never,
    on_pending: Callable[[LookupBatch], None] = _never,
    on_cut_off: Callable[[LookupBatch, KeyholeError], None] = _never,
    on_later: Callable[[LookupBatch, KeyholeError, float], None] = _never,
) -> BatchSink:
    return BatchSink(batch, CODEC, on_stale, on_newer, on_pending, on_cut_off, on_later)


async def test_every_future_gets_its_own_answer_and_absent_keys_are_not_errors() -> None:
    batch, futures = _batch("x", "y", "z")
    _sink(batch).answered(0, Answers([b"1", b"", b"3"], SOURCES[:1]))
    answers = [await future for future in futures]
    assert [(answer.found, answer.value) for answer in answers] == [(True, b"1"), (False, None), (True, b"3")]
    assert {answer.server for answer in answers} == {"a"}


async def test_a_part_of_the_answers_goes_to_its_place() -> None:
    batch, futures = _batch("x", "y", "z")
    sink = _sink(batch)
    sink.answered(1, Answers([b"2", b"3"], SOURCES[:1]))
    assert [future.done() for future in futures] == [False, True, True]
    sink.failed(0, 1, NoServer("gone"))
    assert isinstance(futures[0].exception(), NoServer)


async def test_answers_of_several_sources_name_theirs() -> None:
    batch, futures = _batch("x", "y")
    _sink(batch).answered(0, Answers([b"1", b""], SOURCES, (1, 0)))
    assert [((await future).server, (await future).epoch) for future in futures] == [("b", 2), ("a", 1)]


async def test_a_failed_key_and_a_torn_row_fail_alone() -> None:
    batch, futures = _batch("x", "y", "z")
    answers = Answers([b"1", b"", b"torn"], SOURCES[:1], (), {1: NotReady("restoring")})
    _sink(batch).answered(0, answers)
    assert (await futures[0]).value == b"1"
    assert isinstance(futures[1].exception(), NotReady)
    assert isinstance(futures[2].exception(), ValueMismatch)
    batch, futures = _batch("x", "y")
    _sink(batch).answered(0, Answers([b"torn", b"2"], SOURCES[:1]))
    assert isinstance(futures[0].exception(), ValueMismatch)
    assert (await futures[1]).value == b"2"


async def test_each_waiter_gets_an_error_object_of_its_own() -> None:
    batch, futures = _batch("x", "y")
    batch.fail(NoServer("gone", address="a:1"))
    errors = [future.exception() for future in futures]
    assert errors[0] is not errors[1]
    assert all(isinstance(error, NoServer) and error.facts == {"address": "a:1"} for error in errors)


async def test_cancelled_waiters_are_passed_over() -> None:
    batch, futures = _batch("x", "y")
    futures[0].cancel()
    sink = _sink(batch)
    sink.answered(0, Answers([b"1", b"2"], SOURCES[:1]))
    sink.failed(0, 2, NoServer("too late"))
    assert (await futures[1]).value == b"2"


async def test_stale_lookups_are_handed_back_with_their_keys_once() -> None:
    batch, futures = _batch("x", "y", "z")
    handed: list[LookupBatch] = []
    sink = _sink(batch, on_stale=handed.append)
    sink.failed(1, 2, StaleDescriptor("made anew"))
    (stale,) = handed
    assert (stale.keys, stale.again, stale.deadline) == (["y", "z"], True, batch.deadline)
    assert not any(future.done() for future in futures)
    _sink(stale).failed(0, 2, StaleDescriptor("made anew again"))
    assert [future.done() for future in futures] == [False, True, True]
    assert isinstance(futures[1].exception(), StaleDescriptor)
    assert isinstance(futures[2].exception(), StaleDescriptor)


async def test_a_row_of_a_newer_schema_sends_all_that_were_answered_with_it_back() -> None:
    """What one call returns is of one schema."""
    batch, futures = _batch("x", "y", "z", "w")
    handed: list[tuple[LookupBatch, StaleDescriptor]] = []
    sink = _sink(batch, on_newer=lambda newer, why: handed.append((newer, why)))
    sink.answered(0, Answers([b"0"], SOURCES[:1]))
    sink.answered(1, Answers([b"torn", b"newer", b""], SOURCES[:1]))
    ((newer, why),) = handed
    assert (newer.keys, newer.waiters, newer.again, str(why)) == (
        ["y", "z", "w"],
        futures[1:],
        False,
        "describe it again",
    )
    assert [future.done() for future in futures] == [True, False, False, False]


async def test_keys_that_keep_their_frame_waiting_are_sent_again_apart_from_the_others() -> None:
    batch, futures = _batch("x", "y", "z")
    pending: list[LookupBatch] = []
    failures: dict[int, Failure] = {1: AskAgain("not answered yet")}
    answers = Answers([b"1", b"", b"3"], SOURCES[:1], (), failures)
    _sink(batch, on_pending=pending.append).answered(0, answers)
    assert [future.done() for future in futures] == [True, False, True]
    assert (pending[0].keys, pending[0].patient, pending[0].deadline) == (["y"], True, batch.deadline)


@pytest.mark.parametrize("error", [ServerLost("gone"), Draining("goes")])
async def test_what_was_cut_off_is_handed_back_with_its_keys_however_often(error: KeyholeError) -> None:
    cut: list[tuple[LookupBatch, KeyholeError]] = []
    batch, futures = _batch("x", "y", "z", again=True)
    batch.patient, batch.attempts = True, 3
    sink = _sink(batch, on_cut_off=lambda part, why: cut.append((part, why)))
    sink.failed(1, 2, error)
    ((part, why),) = cut
    assert (part.keys, part.waiters, why) == (["y", "z"], futures[1:], error)
    assert (part.bounds, part.deadline, part.again, part.patient) == (batch.bounds, batch.deadline, True, True)
    assert part.attempts == 3
    assert not any(future.done() for future in futures)


async def test_a_deadline_after_something_was_cut_off_says_so() -> None:
    batch, futures = _batch("x")
    batch.attempts, batch.cut_off = 2, ServerLost("server a is gone")
    _sink(batch).failed(0, 1, DeadlineExceeded("b did not answer"))
    with pytest.raises(DeadlineExceeded, match=r"b did not answer; sent 2 times, .*because server a is gone"):
        await futures[0]


async def test_keys_that_do_not_fit_are_set_aside_the_first_time_and_refused_the_second() -> None:
    batch, futures = _batch("x", 7, "z")
    encoded, refused = batch.encode(CODEC)
    assert encoded == [b"\x00\x00x", b"\x00\x00z"]
    assert refused is not None
    assert (batch.keys, refused.keys) == (["x", "z"], [7])
    assert not futures[1].done()
    assert refused.encode(CODEC)[0] == []
    assert isinstance(futures[1].exception(), KeyMismatch)


async def test_many_keys_are_one_result_in_their_order() -> None:
    future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
    batch = LookupBatch(ReadBounds(), 10.0)
    batch.keys += ["x", "y", "z"]
    batch.waiters += Whole(future, 3).slots()
    sink = _sink(batch)
    sink.answered(2, Answers([b"3"], SOURCES[:1]))
    assert not future.done()
    sink.answered(0, Answers([b"1", b"2"], SOURCES[:1]))
    assert [answer.value for answer in await future] == [b"1", b"2", b"3"]


async def test_one_key_that_fails_fails_the_many_and_later_answers_are_passed_over() -> None:
    future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
    batch = LookupBatch(ReadBounds(), 10.0)
    batch.keys += ["x", "y"]
    batch.waiters += Whole(future, 2).slots()
    sink = _sink(batch)
    sink.failed(0, 1, NoServer("gone"))
    sink.answered(1, Answers([b"2"], SOURCES[:1]))
    with pytest.raises(KeyholeError, match="gone"):
        await future
