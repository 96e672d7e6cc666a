"""One frame through the proxy: who is asked, what is asked again, and what the client is told."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from keyhole.client.routing.asked import Asked
from keyhole.client.routing.frame import Forwarding
from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.segments import Answers
from keyhole.errors import (
    DeadlineExceeded,
    Draining,
    EpochNotReached,
    KeyholeError,
    KeyTooLong,
    MalformedRequest,
    NotOwner,
    NotReady,
    Overloaded,
    ServerLost,
    TooStale,
    Unconfirmed,
    UnknownState,
)
from keyhole.model.read import ReadBounds, Stale
from keyhole.rpc.frames import FRAME_BYTES, AskAgain
from tests.support.frame_servers import ALL, KEYS, NAME, FrameServers, three_copies, values_of
from tests.support.readings import APPLICATION, KEY_GROUPS, STATE
from tests.support.refusals import longer_and_longer
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS


def _forward(
    directory: Any,
    keys: list[bytes] = KEYS,
    *,
    seconds: float = LONG_SECONDS,
    in_parts: bool = False,
    bounds: ReadBounds | None = None,
    room: int = FRAME_BYTES,
) -> asyncio.Future[Answers]:
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[Answers] = loop.create_future()
    deadline = loop.time() + seconds
    lane = Lane(*NAME, "topic-1", bounds or ReadBounds())
    Forwarding(directory, lane, keys, deadline, answered.set_result, in_parts=in_parts, room=room).start()
    return answered


async def test_a_frame_of_one_server_goes_there_whole_and_comes_back_untouched() -> None:
    directory = FrameServers(a=range(KEY_GROUPS))
    answered = _forward(directory)
    assert directory.links["a"].segments[0].keys is KEYS
    directory.links["a"].answer()
    answers = await answered
    assert answers.values == [b"a" + key for key in KEYS]
    assert not answers.source_of


async def test_a_frame_of_two_servers_is_split_and_put_together_in_order() -> None:
    directory = FrameServers(a=range(8), b=range(8, KEY_GROUPS))
    answered = _forward(directory)
    directory.links["b"].answer()
    assert not answered.done()
    directory.links["a"].answer()
    answers = await answered
    owners = ["a", "b", "a", "b"]
    assert answers.values == [owner.encode() + key for owner, key in zip(owners, KEYS, strict=True)]
    assert [answers.sources[index].server for index in answers.source_of] == owners


async def test_only_keys_that_moved_are_asked_again_and_of_the_new_owner() -> None:
    directory = FrameServers(a=range(8), b=range(8, KEY_GROUPS))
    answered = _forward(directory)
    directory.links["a"].answer()
    directory.route({"a": range(KEY_GROUPS)})
    directory.links["b"].fail(NotOwner("moved"))
    await directory.links["a"].asked()
    assert directory.links["a"].segments[0].keys == [KEYS[1], KEYS[3]]
    directory.links["a"].answer()
    assert (await answered).values == [b"a" + key for key in KEYS]


async def test_at_the_deadline_the_error_names_the_last_cause_and_the_attempts() -> None:
    for seconds in longer_and_longer(0.1):
        directory = FrameServers(a=range(8))
        answered = _forward(directory, seconds=seconds)
        directory.links["a"].answer()
        answers = await answered
        assert set(answers.failures) == {1, 3}
        error = answers.failures[1]
        assert isinstance(error, DeadlineExceeded)
        if int(error.facts["attempts"]) >= 2:  # on a slow machine there was no time for another
            break
    assert "the last failed because no server answers for a key group" in error.message
    assert error.facts["cause"] == "NO_SERVER"
    assert int(error.facts["attempts"]) >= 2
    assert answers.values[0] == b"a" + KEYS[0]


async def test_a_server_that_does_not_answer_does_not_hold_up_the_other_keys_of_a_frame() -> None:
    directory = FrameServers(a=range(8), b=range(8, KEY_GROUPS))
    answered = _forward(directory, in_parts=True)
    directory.links["a"].answer()
    async with asyncio.timeout(PATIENCE_SECONDS):
        answers = await answered
    assert answers.values[0] == b"a" + KEYS[0]
    assert set(answers.failures) == {1, 3}
    assert all(isinstance(failure, AskAgain) and not failure.full for failure in answers.failures.values())
    directory.links["b"].answer()  # late: nobody is told twice


async def test_a_full_queue_is_told_at_once_and_not_tried_again() -> None:
    directory = FrameServers(a=range(8), b=range(8, KEY_GROUPS))
    directory.links["b"].full = True
    answered = _forward(directory)
    directory.links["a"].answer()
    failures = (await answered).failures
    assert {index: type(error) for index, error in failures.items()} == {1: Overloaded, 3: Overloaded}


async def test_bad_keys_are_refused_here_and_travel_with_nobody_else() -> None:
    directory = FrameServers(a=range(KEY_GROUPS))
    for keys in ([b"\x00"], [KEY_GROUPS.to_bytes(2, "big") + b"key"], [KEYS[0], b""]):
        failures = (await _forward(directory, keys)).failures
        assert {type(error) for error in failures.values()} == {MalformedRequest}
        assert len(failures) == len(keys)
    assert not directory.links["a"].segments


@pytest.mark.parametrize("owners", [{"a": range(KEY_GROUPS)}, {"a": range(8), "b": range(8, KEY_GROUPS)}])
async def test_a_key_that_is_too_long_fails_alone(owners: dict[str, range]) -> None:
    directory = FrameServers(**owners)
    directory.route(owners, max_key_bytes=511)
    long = KEYS[1].ljust(512, b"k")
    answered = _forward(directory, [KEYS[0], long, KEYS[2], KEYS[3]])
    for address in owners:
        directory.links[address].answer()
    answers = await answered
    assert {place: type(error) for place, error in answers.failures.items()} == {1: KeyTooLong}
    assert answers.values == [b"a" + KEYS[0], b"", b"a" + KEYS[2], list(owners)[-1].encode() + KEYS[3]]
    assert {type(error) for error in (await _forward(directory, [long, long])).failures.values()} == {KeyTooLong}


async def test_what_has_no_room_beside_the_answers_of_other_servers_is_left_for_another_frame() -> None:
    directory = FrameServers(a=range(8), b=range(8, KEY_GROUPS))
    answered = _forward(directory, room=10)
    a, b = directory.links["a"], directory.links["b"]
    segment = b.segments[0]
    b.answer_part(segment, 0, b"1234567")
    assert not answered.done()
    a.answer_part(a.segments[0], 0, b"890", b"!")
    assert answered.done()
    answers = await answered
    assert answers.values == [b"890", b"1234567", b"", b""]
    assert set(answers.failures) == {2, 3}
    assert all(isinstance(failure, AskAgain) and failure.full for failure in answers.failures.values())
    assert segment.dropped
    b.answer_part(segment, 1, b"late")  # nobody is told twice


async def test_the_first_answer_always_has_room_and_absent_keys_too() -> None:
    directory = FrameServers(a=range(8), b=range(8, KEY_GROUPS))
    answered = _forward(directory, room=10)
    a, b = directory.links["a"], directory.links["b"]
    b.answer_part(b.segments[0], 0, bytes(1000))
    a.answer_part(a.segments[0], 0, b"", b"")
    assert not answered.done()
    b.answer_part(b.segments[0], 1, b"")
    answers = await answered
    assert (answers.values, answers.failures) == ([b"", bytes(1000), b"", b""], {})


class _Loop:
    """Only its clock, which the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self._due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, callback: Callable[..., None], *arguments: float) -> Any:
        self._due.append((self.now + seconds, lambda: callback(*arguments)))
        return SimpleNamespace(cancel=self._due.clear)

    def move(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            self.now, callback = self._due.pop(0)
            callback()
        self.now = now


def test_a_server_whose_answers_come_one_by_one_is_not_silent_until_it_is() -> None:
    loop, overdue = _Loop(), []
    forwarding: Any = SimpleNamespace(answered=lambda *_: None, overdue=lambda asked: overdue.append(loop.now))
    asked = Asked(forwarding, "a", None, KEYS, 0.0)
    link = SimpleNamespace(stream=SimpleNamespace(submit=lambda *_: None))
    directory: Any = SimpleNamespace(link=lambda address: link, hop_seconds=1.0)
    assert asked.send(directory, Lane(APPLICATION, STATE, "t", ReadBounds()), loop)  # type: ignore[arg-type]
    for now in (100.9, 101.8, 102.7):
        loop.move(now)
        asked.answered(0, Answers([b"v"], []))
    assert not overdue
    loop.move(110.0)
    assert overdue == [pytest.approx(103.7)]


async def test_before_every_server_was_tried_an_unknown_state_is_waited_for() -> None:
    directory = FrameServers()
    directory.settled.clear()
    answered = _forward(directory)
    assert not answered.done()
    directory.route({"a": range(KEY_GROUPS)})
    await directory.links["a"].asked()
    directory.links["a"].answer()
    assert not (await answered).failures


async def test_an_unknown_state_is_refused_at_once_when_all_were_tried() -> None:
    failures = (await _forward(FrameServers())).failures
    assert {type(error) for error in failures.values()} == {UnknownState}


@pytest.mark.parametrize("error", [ServerLost("gone"), NotReady("restoring"), NotOwner("moved"), Draining("ends")])
async def test_where_the_owner_fails_the_next_copy_is_asked_at_once(error: KeyholeError) -> None:
    directory = three_copies()
    answered = _forward(directory, KEYS[:1])
    directory.links["a"].fail(error)
    directory.links["b"].answer()
    assert answered.result().values == values_of("b", KEYS[:1])
    assert not directory.suspected


async def test_a_reader_that_wants_nothing_stale_waits_for_the_owner() -> None:
    directory = three_copies()
    answered = _forward(directory, bounds=ReadBounds(stale=Stale.NEVER))
    directory.links["a"].fail(NotReady("restoring"))
    await directory.links["a"].asked()
    assert not directory.links["b"].segments
    directory.links["a"].answer()
    assert (await answered).values == values_of("a")


async def test_readers_of_any_copy_are_spread_over_all() -> None:
    directory = three_copies()
    for _ in range(100):
        _forward(directory, bounds=ReadBounds(stale=Stale.ALWAYS))
    assert all(link.segments for link in directory.links.values())


async def test_a_silent_owner_is_hedged_after_the_hop_deadline_and_suspected_and_the_first_answer_counts() -> None:
    directory = three_copies()
    answered = _forward(directory, KEYS[:1])
    await directory.links["b"].asked()
    # On a slow machine the hop deadline of b has passed by now, too.
    assert directory.suspected[0] == "a"
    directory.links["b"].answer()
    assert answered.result().values == values_of("b", KEYS[:1])
    directory.links["a"].answer()  # late: nobody is told twice


async def test_an_owner_that_answers_after_the_hedge_and_before_the_standby_counts_as_well() -> None:
    directory = three_copies()
    answered = _forward(directory)
    await directory.links["b"].asked()
    directory.links["a"].answer()
    assert answered.result().values == values_of("a")
    directory.links["b"].fail(ServerLost("gone"))


async def test_a_silent_server_without_another_copy_is_waited_for_and_not_suspected() -> None:
    directory = FrameServers(a=ALL)
    answered = _forward(directory)
    await asyncio.sleep(0.2)
    assert not directory.suspected
    assert len(directory.links["a"].segments) == 1
    directory.links["a"].answer()
    assert (await answered).values == values_of("a")


async def test_a_key_that_waits_for_a_silent_owner_alone_follows_when_a_copy_appears() -> None:
    for bounds, links in ((ReadBounds(), "b"), (ReadBounds(stale=Stale.NEVER), "c")):
        directory = FrameServers(a=ALL)
        answered = _forward(directory, bounds=bounds)
        await asyncio.sleep(0.15)
        directory.route({"c" if bounds.stale is Stale.NEVER else "a": ALL}, {"b": ALL})
        await directory.links[links].asked()
        directory.links[links].answer()
        assert (await answered).values == values_of(links)


async def test_copies_that_do_not_meet_the_bounds_are_tried_in_turn_and_again_until_one_does() -> None:
    directory = three_copies()
    answered = _forward(directory, KEYS[:1], bounds=ReadBounds(min_epoch=9))
    for address in "abcab":
        await directory.links[address].asked()
        directory.links[address].fail(EpochNotReached("at epoch 8", epoch=8))
    directory.links["c"].answer()
    assert answered.result().values == values_of("c", KEYS[:1])


@pytest.mark.parametrize(
    ("refusals", "said"),
    [
        ([EpochNotReached("at epoch 7", epoch=7), EpochNotReached("at epoch 8", epoch=8)], "at epoch 8"),
        ([TooStale("70 ms old", age_ms=70.0), TooStale("of unknown age", age_ms="inf")], "70 ms old"),
        ([TooStale("70 ms old", age_ms=70.0), ServerLost("c is gone")], "70 ms old.*c is gone"),
        ([Unconfirmed("not heard"), ServerLost("c is gone")], "not heard"),
    ],
)
async def test_a_bound_that_no_copy_meets_is_the_reason_and_names_what_was_reached(
    refusals: list[KeyholeError], said: str
) -> None:
    for seconds in longer_and_longer(0.1):
        directory = FrameServers()
        directory.route({"b": ALL}, {"c": ALL})
        answered = _forward(directory, seconds=seconds)
        refused = set()
        while not answered.done():
            for address, error in zip("bc", refusals, strict=True):
                if directory.links[address].segments:
                    directory.links[address].fail(error)
                    refused.add(address)
            await asyncio.sleep(0.001)
        if refused == {"b", "c"}:  # on a slow machine the deadline has passed before
            break
    (error,) = set(answered.result().failures.values())
    assert type(error) is type(refusals[0])
    assert re.search(said, error.message)
    assert int(error.facts["attempts"]) >= 2


async def test_the_bound_is_the_reason_also_where_the_owner_kept_silent_until_the_deadline() -> None:
    for seconds in longer_and_longer(0.4):
        directory = three_copies()
        answered = _forward(directory, seconds=seconds)
        refused = False
        while not answered.done():
            for address in "bc":
                if directory.links[address].segments:
                    directory.links[address].fail(TooStale("70 ms old", age_ms=70))
                    refused = True
            await asyncio.sleep(0.01)
            of_a = directory.links["a"].segments
            if of_a and asyncio.get_running_loop().time() > of_a[0].deadline:
                directory.links["a"].fail(DeadlineExceeded("a did not answer"))
        if refused:  # on a slow machine the deadline has passed before
            break
    assert {type(error) for error in answered.result().failures.values()} == {TooStale}


async def test_what_a_server_said_before_it_kept_silent_until_the_deadline_is_the_cause() -> None:
    directory = FrameServers(a=ALL)
    answered = _forward(directory)
    directory.links["a"].fail(NotReady("restoring: 3 of 10 records"))
    await directory.links["a"].asked()
    directory.links["a"].fail(DeadlineExceeded("a did not answer"))
    failures = answered.result().failures
    assert failures.keys() == set(range(len(KEYS)))
    for error in failures.values():
        assert type(error) is DeadlineExceeded
        assert error.facts["cause"] == "NOT_READY"
        assert re.search("after 2 attempts; a did not answer. .* because restoring: 3 of 10 records", error.message)


async def test_a_copy_that_can_not_even_be_sent_to_counts_as_an_attempt_when_there_is_no_time_for_another() -> None:
    directory = FrameServers()
    directory.route({"a": ALL}, {"b": ALL})
    answered = _forward(directory, seconds=0.005)
    directory.links["b"] = None  # type: ignore[assignment]  # gone from the discovered ones
    directory.links["a"].fail(NotReady("restoring: 3 of 10 records"))
    assert {error.facts["attempts"] for error in (await answered).failures.values()} == {"2"}


async def test_a_frame_answered_in_part_still_learns_who_is_silent() -> None:
    directory = FrameServers()
    directory.route({"a": range(8), "b": range(8, KEY_GROUPS)}, {"c": ALL})
    answered = _forward(directory, in_parts=True)
    directory.links["a"].answer()
    assert (await answered).failures.keys() == {1, 3}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not directory.suspected:  # noqa: ASYNC110 - the hop deadline
            await asyncio.sleep(0.005)
    assert directory.suspected[0] == "b"


async def test_a_key_that_a_server_has_refused_does_not_count_as_one_that_it_keeps_silent_on() -> None:
    directory = FrameServers()
    directory.route({"a": ALL}, {"b": ALL})
    answered = _forward(directory, KEYS[:2])
    a, b = directory.links["a"], directory.links["b"]
    segment = a.segments.pop()
    segment.sink.answered(0, Answers([b""], [], failures={0: NotReady("restoring")}))
    await b.asked()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not directory.suspected:  # noqa: ASYNC110 - the hop deadline
            await asyncio.sleep(0.005)
    b.fail(NotReady("restoring"))  # the first key: both copies have refused it now
    await a.asked()
    a.fail(NotReady("restoring"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(b.segments) < 2:  # noqa: ASYNC110 - the other key is under way there, too
            await asyncio.sleep(0.001)
    b.answer()
    b.answer()
    assert (await answered).values == values_of("b", KEYS[:2])
