"""One frame through the proxy: who is asked, what is asked again, and what the client is told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from keyhole.client.coalescing import Answers, Lane, Segment
from keyhole.errors import DeadlineExceeded, KeyholeError, MalformedRequest, NotOwner, Overloaded, UnknownState
from keyhole.routing import Holding, RouteTable, View, build
from keyhole.types import Role
from keyhole.v1 import state_pb2
from services.client_proxy.forwarding import Forwarding
from tests.support.readings import APPLICATION, KEY_GROUPS, STATE, descriptor

NAME = (APPLICATION, STATE)
KEYS = [group.to_bytes(2, "big") + b"key" for group in (0, 9, 1, 8)]


class _Link:
    """Keeps what it is given."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.stream = self
        self.segments: list[Segment] = []
        self.full = False

    def submit(self, lane: Lane, segment: Segment) -> None:
        if self.full:
            raise Overloaded(f"{self.address} is full")
        self.segments.append(segment)

    def answer(self) -> None:
        segment = self.segments.pop(0)
        source = state_pb2.Source(server=self.address)
        segment.sink.answered(0, Answers([self.address.encode() + key for key in segment.keys], [source]))

    def fail(self, error: KeyholeError) -> None:
        segment = self.segments.pop(0)
        segment.sink.failed(0, len(segment.keys), error)


class _Directory:
    """Routes that the test changes at will."""

    def __init__(self, **owned: range) -> None:
        self.links = {address: _Link(address) for address in ("a", "b")}
        self.settled = asyncio.Event()
        self.settled.set()
        self.tables: dict[tuple[str, str], RouteTable] = {}
        self.route(owned)

    def route(self, owned: Mapping[str, range]) -> None:
        views = [
            View(address, holdings=(Holding(descriptor(), frozenset(groups), Role.OWNER, 1, 1, ready=True),))
            for address, groups in owned.items()
        ]
        self.tables = build(views)

    def table(self, name: tuple[str, str]) -> RouteTable:
        if name not in self.tables:
            raise UnknownState("no such state")
        return self.tables[name]

    def link(self, address: str) -> _Link:
        return self.links[address]


def _forward(
    directory: Any, keys: list[bytes] = KEYS, *, seconds: float = 5.0, in_parts: bool = False
) -> asyncio.Future[Answers]:
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[Answers] = loop.create_future()
    deadline = loop.time() + seconds
    Forwarding(directory, NAME, "topic-1", keys, 0, deadline, answered.set_result, in_parts=in_parts).start()
    return answered


async def test_a_frame_of_one_server_goes_there_whole_and_comes_back_untouched() -> None:
    directory = _Directory(a=range(KEY_GROUPS))
    answered = _forward(directory)
    assert directory.links["a"].segments[0].keys is KEYS
    directory.links["a"].answer()
    answers = await answered
    assert answers.values == [b"a" + key for key in KEYS]
    assert not answers.source_of


async def test_a_frame_of_two_servers_is_split_and_put_together_in_order() -> None:
    directory = _Directory(a=range(8), b=range(8, KEY_GROUPS))
    answered = _forward(directory)
    directory.links["b"].answer()
    assert not answered.done()
    directory.links["a"].answer()
    answers = await answered
    owners = ["a", "b", "a", "b"]
    assert answers.values == [owner.encode() + key for owner, key in zip(owners, KEYS, strict=True)]
    assert [answers.sources[index].server for index in answers.source_of] == owners


async def test_only_keys_that_moved_are_asked_again_and_of_the_new_owner() -> None:
    directory = _Directory(a=range(8), b=range(8, KEY_GROUPS))
    answered = _forward(directory)
    directory.links["a"].answer()
    directory.route({"a": range(KEY_GROUPS)})
    directory.links["b"].fail(NotOwner("moved"))
    async with asyncio.timeout(2):
        while not directory.links["a"].segments:  # noqa: ASYNC110 - until the retry, some milliseconds later
            await asyncio.sleep(0.001)
    assert directory.links["a"].segments[0].keys == [KEYS[1], KEYS[3]]
    directory.links["a"].answer()
    assert (await answered).values == [b"a" + key for key in KEYS]


async def test_at_the_deadline_the_error_names_the_last_cause_and_the_attempts() -> None:
    directory = _Directory(a=range(8))
    answered = _forward(directory, seconds=0.1)
    directory.links["a"].answer()
    answers = await answered
    assert set(answers.failures) == {1, 3}
    error = answers.failures[1]
    assert isinstance(error, DeadlineExceeded)
    assert "the last failed because no server answers for a key group" in error.message
    assert error.facts["cause"] == "NO_SERVER"
    assert int(error.facts["attempts"]) >= 2
    assert answers.values[0] == b"a" + KEYS[0]


async def test_a_server_that_does_not_answer_does_not_hold_up_the_other_keys_of_a_frame() -> None:
    directory = _Directory(a=range(8), b=range(8, KEY_GROUPS))
    answered = _forward(directory, in_parts=True)
    directory.links["a"].answer()
    async with asyncio.timeout(2):
        answers = await answered
    assert answers.values[0] == b"a" + KEYS[0]
    assert set(answers.failures) == {1, 3}
    assert all(error.facts["ask_again"] == "true" for error in answers.failures.values())
    directory.links["b"].answer()  # late: nobody is told twice


async def test_a_full_queue_is_told_at_once_and_not_tried_again() -> None:
    directory = _Directory(a=range(8), b=range(8, KEY_GROUPS))
    directory.links["b"].full = True
    answered = _forward(directory)
    directory.links["a"].answer()
    failures = (await answered).failures
    assert {index: type(error) for index, error in failures.items()} == {1: Overloaded, 3: Overloaded}


async def test_bad_keys_are_refused_here_and_travel_with_nobody_else() -> None:
    directory = _Directory(a=range(KEY_GROUPS))
    for keys in ([b"\x00"], [KEY_GROUPS.to_bytes(2, "big") + b"key"], [KEYS[0], b""]):
        failures = (await _forward(directory, keys)).failures
        assert {type(error) for error in failures.values()} == {MalformedRequest}
        assert len(failures) == len(keys)
    assert not directory.links["a"].segments


async def test_before_every_server_was_tried_an_unknown_state_is_waited_for() -> None:
    directory = _Directory()
    directory.settled.clear()
    answered = _forward(directory)
    assert not answered.done()
    directory.route({"a": range(KEY_GROUPS)})
    async with asyncio.timeout(2):
        while not directory.links["a"].segments:  # noqa: ASYNC110 - until the retry, some milliseconds later
            await asyncio.sleep(0.001)
    directory.links["a"].answer()
    assert not (await answered).failures


async def test_an_unknown_state_is_refused_at_once_when_all_were_tried() -> None:
    failures = (await _forward(_Directory())).failures
    assert {type(error) for error in failures.values()} == {UnknownState}
