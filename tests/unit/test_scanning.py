"""One scan through the proxy, of a copy that says what the test lets it say."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of
from keyhole.errors import DeadlineExceeded, KeyholeError, NotReady, TooStale, Unsupported
from keyhole.model.read import Role
from keyhole.model.selection import Selection
from keyhole.model.state import StateKind
from keyhole.protocol.routing import RouteTable, build
from keyhole.protocol.server_view import Holding, ServerView
from keyhole.v1 import query_pb2 as pb
from services.client_proxy.forwarding.scan import Scanning
from services.client_proxy.http.all_keys import KeysScan
from services.client_proxy.http.requests import AllKeys, KeyRange
from tests.support.entries import hourly, scan_request

CODEC = StateCodec(hourly())


def page_of(servicer: Any, codec: StateCodec, after: str) -> KeysScan:
    asked = AllKeys(10, after, KeyRange(), ordered=False, descending=False)
    return KeysScan(servicer, codec, pb.ReadOptions(), asked, Selection(), None, 1 << 20)


class _Directory:
    """One server, which refuses each scan in its turn."""

    def __init__(self, *refusals: KeyholeError) -> None:
        self.hop_seconds = 5.0
        self._refusals = list(refusals)
        holding = Holding(hourly(), frozenset(range(hourly().key_groups)), Role.OWNER, 1, 1, ready=True)
        (self._table,) = build([ServerView("a", holdings=(holding,))]).values()

    def table(self, _: tuple[str, str]) -> RouteTable:
        return self._table

    def codec(self, _: tuple[str, str]) -> StateCodec:
        return CODEC

    def link(self, _: str) -> Any:
        return self

    async def scan(self, *_: object) -> AsyncGenerator[pb.ScanResponse]:
        raise self._refusals.pop(0)
        yield


RULES = hourly(kind=StateKind.BROADCAST, key_groups=1)


class _Older(_Directory):
    """A server of before there were scans of a key group: of a broadcast state it gives all, anew each time."""

    def codec(self, _: tuple[str, str]) -> StateCodec:
        return StateCodec(RULES)

    async def scan(self, *_: object) -> AsyncGenerator[pb.ScanResponse]:
        yield pb.ScanResponse()
        yield pb.ScanResponse(map_keys=[self.codec(("", "")).storage_key(key)[2:] for key in "ab"], values=[b"", b""])


async def test_a_server_that_does_not_know_scans_of_a_key_group_is_found_out_before_it_is_read_for_ever() -> None:
    async def read(after: bytes) -> list[bytes]:
        request = scan_request()
        request.Clear()
        request.state.application, request.state.state = RULES.application, RULES.state
        request.key_group.after = after
        scanning = Scanning(_Older(), request, asyncio.get_running_loop().time() + 5)  # type: ignore[arg-type]
        return [key async for page in scanning.pages() for key in page.map_keys]

    first = await read(b"")
    assert len(first) == 2
    for key in first:
        with pytest.raises(Unsupported, match=r"state server a is of an earlier version.*anew.*Update it"):
            await read(b"\0\0" + key)


class _Servicer:
    """Has keys in one key group, and answers so many scans before there is no time left."""

    def __init__(self, codec: StateCodec, key: bytes, answers: int) -> None:
        self._key = key
        self._answers = answers
        self.asked: list[int] = []

    async def Scan(self, request: pb.ScanRequest, _: object) -> AsyncGenerator[pb.ScanResponse]:  # noqa: N802
        if not self._answers:
            raise DeadlineExceeded("no time is left")
        self._answers -= 1
        group = request.key_group.key_group
        self.asked.append(group)
        mine = group_of(self._key) == group and request.key_group.after < self._key
        yield pb.ScanResponse(map_keys=[self._key[2:]] if mine else [], values=[b"row"] if mine else [])


async def test_a_scan_of_all_keys_keeps_its_place_over_many_empty_key_groups() -> None:
    """However few of them are read in the time of one request."""
    codec = StateCodec(hourly())
    key = codec.storage_key(("sensor-7", 3))
    token = ""
    found: list[bytes] = []
    asked: list[int] = []
    for _ in range(hourly().key_groups + 1):
        servicer: Any = _Servicer(codec, key, 1)
        page = await page_of(servicer, codec, token).found()
        found += [of for of, _, _ in page.rows]
        asked += servicer.asked
        if page.next is None:
            break
        assert page.next != token
        token = page.next
    assert found == [key]
    assert sorted(set(asked)) == list(range(hourly().key_groups))
    # Where it comes no further it says why, at the start and later on.
    for after in ("", token):
        servicer = _Servicer(codec, key, 0)
        with pytest.raises(DeadlineExceeded):
            await page_of(servicer, codec, after).found()


@pytest.mark.parametrize(
    ("before", "kind", "said"),
    [
        (
            NotReady("restoring: 3 of 10 records"),
            DeadlineExceeded,
            "after 2 attempts; a did not answer. The attempt before failed because restoring: 3 of 10 records",
        ),
        (TooStale("70 ms old", age_ms=70), TooStale, "70 ms old .*in 2 attempts"),
    ],
)
async def test_what_a_server_said_before_it_kept_silent_until_the_deadline_is_told(
    before: KeyholeError, kind: type[KeyholeError], said: str
) -> None:
    directory: Any = _Directory(before, DeadlineExceeded("a did not answer"))
    scanning = Scanning(directory, scan_request(), asyncio.get_running_loop().time() + 5)
    with pytest.raises(kind) as caught:
        await anext(scanning.pages())
    assert re.search(said, caught.value.message)
