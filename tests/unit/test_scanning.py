"""One scan through the proxy, of a copy that says what the test lets it say."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from keyhole.encoding.codec import StateCodec
from keyhole.errors import DeadlineExceeded, KeyholeError, NotReady, TooStale
from keyhole.model.read import Role
from keyhole.protocol.routing import RouteTable, build
from keyhole.protocol.server_view import Holding, ServerView
from keyhole.v1 import query_pb2 as pb
from services.client_proxy.forwarding.scan import Scanning
from tests.support.entries import hourly, scan_request

CODEC = StateCodec(hourly())


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
