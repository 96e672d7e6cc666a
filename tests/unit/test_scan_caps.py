"""What one caller may take by scans: which calls are one scan, and what is counted of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from keyhole.errors import Overloaded, TooLarge
from keyhole.rpc.scan_caps import CallerScan, CallerScans, ScanCaps
from keyhole.rpc.scan_requests import CALLS_AT_A_TIME
from keyhole.security import authentication
from keyhole.security.authentication import ANYBODY, Caller, Presented
from keyhole.testing.clock import ManualClock
from keyhole.v1 import query_pb2 as pb

_OWN, _FIRST, _SECOND = (pb.ScanRequest(scan=number) for number in (0, 1, 2))


def _page(rows: int, size: int = 1) -> pb.ScanResponse:
    return pb.ScanResponse(map_keys=[b""] * rows, values=[b"x" * size] * rows)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(autouse=True)
def anybody() -> Iterator[None]:
    yield
    authentication.become(ANYBODY)


def scans_of(clock: ManualClock, **caps: float) -> CallerScans:
    return CallerScans(ScanCaps(**caps, settings="KEYHOLE_X_"), clock, "this proxy")


def called(by: str) -> None:
    caller = Caller(None, (by,), None, Presented())
    authentication.become(caller)


async def _opened(scans: CallerScans, request: pb.ScanRequest = _OWN) -> None:
    async with scans.open(request):
        pass


async def test_calls_of_one_number_are_one_scan_and_others_are_each_their_own(clock: ManualClock) -> None:
    scans = scans_of(clock, at_once=2)
    async with AsyncExitStack() as open_calls:
        for request in (_FIRST, _FIRST, _OWN, _FIRST):
            await open_calls.enter_async_context(scans.open(request))
        with pytest.raises(Overloaded, match="all callers together: 2 scans are under way in this proxy") as no:
            await open_calls.enter_async_context(scans.open(_SECOND))
        assert no.value.facts == {"cap": "KEYHOLE_X_MAX_CALLER_SCANS", "limit": "2"}
        called("token:other")
        # Somebody else's of the same number is another one.
        await open_calls.enter_async_context(scans.open(_FIRST))
        await open_calls.enter_async_context(scans.open(_OWN))
        with pytest.raises(Overloaded, match="token:other: 2 scans are under way"):
            await open_calls.enter_async_context(scans.open(_OWN))
        # One that ends a moment later makes room.
        waiting = asyncio.ensure_future(_opened(scans))
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting


async def test_one_number_does_not_stand_for_any_number_of_calls(clock: ManualClock) -> None:
    scans = scans_of(clock, at_once=1)
    async with AsyncExitStack() as open_calls:
        for _ in range(CALLS_AT_A_TIME):
            await open_calls.enter_async_context(scans.open(_FIRST))
        with pytest.raises(Overloaded):
            await open_calls.enter_async_context(scans.open(_FIRST))


@pytest.mark.parametrize(
    ("caps", "page", "says"),
    [
        ({"rows": 10}, _page(4), "give 10 rows at most"),
        ({"bytes": 1000}, _page(1, 400), "give 1,000 bytes at most"),
    ],
)
async def test_what_a_scan_has_given_is_counted_over_its_calls(
    clock: ManualClock, caps: dict[str, int], page: pb.ScanResponse, says: str
) -> None:
    scans = scans_of(clock, **caps)
    for request in (_OWN, _OWN, _OWN, _FIRST, _SECOND, _FIRST):
        async with scans.open(request) as scan:
            scan.took(page)
    async with scans.open(_FIRST) as scan:
        with pytest.raises(TooLarge, match=says) as no:
            scan.took(page)
    name = f"KEYHOLE_X_MAX_SCAN_{next(iter(caps)).upper()}"
    assert no.value.facts == {"cap": name, "limit": str(next(iter(caps.values())))}
    assert name in no.value.message
    # Its reader goes on much later: that is another scan.
    clock.advance(61)
    async with scans.open(_FIRST) as scan:
        scan.took(page)


async def test_a_scan_may_take_so_long_from_its_first_call_on(clock: ManualClock) -> None:
    scans = scans_of(clock, seconds=5)
    async with scans.open(_FIRST) as scan:
        clock.advance(4)
        assert scan.left() == 1.0
        assert list(scan.timed(iter("ab"))) == ["a", "b"]
    clock.advance(2)
    with pytest.raises(TooLarge, match=r"take 5 s at most in this proxy \(KEYHOLE_X_MAX_SCAN_SECONDS\)"):
        await _opened(scans, _FIRST)
    async with scans.open(_SECOND) as scan:
        pages = scan.timed(iter("ab"))
        assert next(pages) == "a"
        clock.advance(6)
        with pytest.raises(TooLarge):
            next(pages)


async def test_what_is_remembered_is_bounded_and_without_caps_nothing_is(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyhole.rpc.scan_caps._MOST_REMEMBERED", 3)
    scans = scans_of(clock, rows=5)
    async with scans.open(pb.ScanRequest(scan=99)) as held:
        for number in range(1, 10):
            await _opened(scans, pb.ScanRequest(scan=number))
        assert len(scans._known) <= 4
        # Whoever was not used for longest is forgotten, and not who came first.
        for number in (8, 10):
            await _opened(scans, pb.ScanRequest(scan=number))
        assert {number for _, number in scans._known} >= {8, 10}
        held.took(_page(5))
        async with scans.open(pb.ScanRequest(scan=99)) as again:
            with pytest.raises(TooLarge):
                again.took(_page(1))
    clock.advance(61)
    await _opened(scans)
    assert (len(scans._known), scans._scans, scans._calls) == (0, {}, {})
    free = scans_of(clock)
    async with free.open(_FIRST) as scan:
        scan.took(_page(1_000_000, 0))
        assert (scan.left(), free._known) == (None, {})


async def test_proxies_have_no_caps_where_callers_are_known(clock: ManualClock) -> None:
    class Known(Caller):
        is_anybody = False

        def may_everywhere(self, *verbs: object) -> bool:
            return self.names == ("certificate:proxy",)

    def become(name: str) -> None:
        authentication.become(Known(None, (name,), None, Presented()))

    scans = scans_of(clock, at_once=1)

    async def both() -> tuple[CallerScan, CallerScan]:
        async with scans.open(_FIRST) as first, scans.open(_SECOND) as second:
            return first, second

    become("certificate:proxy")
    assert await both()
    become("token:somebody")
    with pytest.raises(Overloaded):
        await both()
