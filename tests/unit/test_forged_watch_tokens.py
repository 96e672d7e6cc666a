"""A token that somebody has made up is refused before anything is read, with an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from keyhole.encoding.storage_key import prefix_of
from keyhole.encoding.watch_token import NOT_BEGUN, WatchMark, WatchPlace, watch_place
from keyhole.errors import KeyholeError, MalformedRequest
from keyhole.v1 import query_pb2 as pb
from services.state_server.registry import Registry
from services.state_server.servicers.watches import Watches
from tests.support.hosts import Hosted
from tests.support.states import KEY_GROUPS, descriptor, key, row

MOST = (1 << 63) - 1


def with_mark(**changes: Any) -> dict[int, WatchMark]:
    mark = WatchMark(**{"offset": 1, "epoch": 1, **changes})
    return dict.fromkeys(range(KEY_GROUPS), NOT_BEGUN) | {1: mark}


FORGED: dict[str, tuple[dict[int, WatchMark], int]] = {
    "an offset that Kafka has not": (with_mark(offset=MOST + 1), 1),
    "an epoch below zero": (with_mark(epoch=-1), 1),
    "more changes than there can be": (with_mark(skip=1 << 63), 1),
    "rows of another key group": (with_mark(below=prefix_of(0) + b"a"), 1),
    "rows up to a key group's beginning": (with_mark(below=prefix_of(1)), 1),
    "a key that no store takes": (with_mark(below=prefix_of(1) + bytes(100_000)), 1),
    "a time that the wire has not": (with_mark(), MOST + 1),
    "a time before all": (with_mark(), -1),
    "a key group that there is not": (with_mark() | {KEY_GROUPS: WatchMark(1, 1)}, 1),
}


def changelog(application: str) -> Any:
    raise AssertionError("something is read back")


async def first_message(hosted: Hosted, token: str) -> pb.WatchResponse:
    registry = Registry("a", "incarnation", lambda: "a:1", 0, 511)
    registry.tables = hosted.tables
    request = pb.WatchRequest(state=pb.StateRef(application="app", state="counts"), token=token)
    async with aclosing(Watches(registry, hosted.clock, changelog).responses(request)) as responses:
        return await anext(responses)


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
async def test_a_token_that_was_made_up_is_refused_at_once(forged: tuple[dict[int, WatchMark], int]) -> None:
    hosted = Hosted()
    await hosted.own()
    await hosted.apply(1, {key("a"): row(1.0)})
    committed = hosted.table.committed
    held: Callable[[], Any] = committed.hold
    positions = committed.positions()
    committed.positions = lambda: positions  # type: ignore[method-assign]
    committed.hold = changelog  # type: ignore[method-assign, assignment]  # nor is anything held
    marks, as_of_ms = forged
    with pytest.raises(MalformedRequest, match=r"without it|begin"):
        await first_message(hosted, WatchPlace(marks, as_of_ms).token(hosted.of, 0))
    committed.hold = held  # type: ignore[method-assign]
    await hosted.host.close()


async def test_a_time_that_is_yet_to_come_is_taken_for_now() -> None:
    hosted = Hosted()
    await hosted.own()
    place = WatchPlace(dict.fromkeys(range(KEY_GROUPS), WatchMark(0, 0)), hosted.clock.now_ms() + 10**9)
    message = await first_message(hosted, place.token(hosted.of, 0))
    assert message.as_of_ms == hosted.clock.now_ms()
    await hosted.host.close()


@pytest.mark.parametrize("text", ["", "!", "a", "AAAA", "kJGoOX", "gICA" * 10_000])
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(KeyholeError):
        watch_place(text, descriptor(), 0)
