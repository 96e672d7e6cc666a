"""What everyone who serves keyhole.v1.Query must answer to Scan: servers and the fake, and proxies in front of them."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol

import grpc
import pytest

from keyhole import AsyncClient, Client, errors, field
from keyhole import aggregates as agg
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.key_codec import encode_integer
from keyhole.encoding.storage_key import group_of
from keyhole.errors import KeyholeError
from keyhole.model.state import KeyType, StateDescriptor, StateKind
from keyhole.rpc import channels, convert
from keyhole.testing.fake_server import FakeServer
from keyhole.v1 import predicate_pb2 as pb2
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc
from keyhole.v1.state_pb2 import ROLE_OWNER, ROLE_STANDBY
from tests.support.copies import Copies, copies
from tests.support.entries import APPLICATION, KEY_GROUPS, STATE, hourly, hours, key_of, row, scan_request
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import descriptor as readings
from tests.support.refusals import refusal_of
from tests.support.state_servers import RunningServer, state_server
from tests.support.waiting import LONG_SECONDS

Rows = Mapping[Any, bytes]


class Backend(Protocol):
    """The server at the back, and what the tests do to it."""

    @property
    def address(self) -> str: ...

    async def host(self, of: StateDescriptor, rows: Rows, key_groups: Sequence[int] = ()) -> None:
        """The state, made anew, with these rows at epoch 1."""

    async def advance(self, rows: Rows) -> None:
        """To epoch 2."""

    async def stage(self, rows: Mapping[Any, bytes | None]) -> None:
        """The rows of the next epoch, which is not committed; None deletes. What was staged before is dropped."""

    async def commit_staged(self) -> None:
        """Makes what is staged the last epoch."""


class Fake:
    """The shipped fake."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server

    @property
    def address(self) -> str:
        return self._server.address

    async def host(self, of: StateDescriptor, rows: Rows, key_groups: Sequence[int] = ()) -> None:
        self._state = self._server.host(of, rows, key_groups)

    async def advance(self, rows: Rows) -> None:
        self._state.epoch = 2
        for key, stored in rows.items():
            self._state.put(key, stored)

    async def stage(self, rows: Mapping[Any, bytes | None]) -> None:
        self._state.staged.clear()
        for key, stored in rows.items():
            self._state.stage(key, stored)

    async def commit_staged(self) -> None:
        self._state.commit()


class Real:
    """The state server itself, through its whole write path."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    @property
    def address(self) -> str:
        return self._server.address

    async def host(self, of: StateDescriptor, rows: Rows, key_groups: Sequence[int] = ()) -> None:
        await self._server.own(of, key_groups)
        await self._server.commit(rows)

    async def advance(self, rows: Rows) -> None:
        await self._server.commit(rows)

    async def stage(self, rows: Mapping[Any, bytes | None]) -> None:
        await self._server.stage(rows)

    async def commit_staged(self) -> None:
        await self._server.commit_staged()


class Served:
    """A service, and the server at its back. It has no state yet."""

    def __init__(self, address: str, stub: Any, backend: Backend, *, proxied: bool) -> None:
        self.address, self.stub, self.backend, self.proxied = address, stub, backend, proxied

    async def host(self, of: StateDescriptor, rows: Rows) -> None:
        """Until the service knows of it."""
        await self.backend.host(of, rows)
        request = pb.DescribeStateRequest(state=pb.StateRef(application=of.application, state=of.state))
        async with asyncio.timeout(LONG_SECONDS):  # a proxy hears of it a moment later
            while True:
                try:
                    described = (await self.stub.DescribeState(request)).descriptor
                except grpc.aio.AioRpcError:
                    described = None
                if described is not None and described.topic_id == of.topic_id:
                    return
                await asyncio.sleep(0.005)

    async def pages(self, request: pb.ScanRequest, seconds: float = LONG_SECONDS) -> list[pb.ScanResponse]:
        return [page async for page in self.stub.Scan(request, timeout=seconds)]

    async def scan(self, request: pb.ScanRequest) -> list[Any]:
        """The map keys, decoded."""
        described = await self.stub.DescribeState(pb.DescribeStateRequest(state=request.state))
        codec = StateCodec(convert.descriptor_from_proto(described.descriptor))
        keys = [codec.entries.decode(key) for page in await self.pages(request) for key in page.map_keys]
        return [key[0] if len(key) == 1 else key for key in keys]

    async def refusal(self, request: pb.ScanRequest, seconds: float = 5.0) -> KeyholeError:
        return await refusal_of(lambda deadline: self.pages(request, deadline), seconds)


@pytest.fixture(params=["fake", "fake behind a proxy", "state server", "state server behind a proxy"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        backend: Backend
        if request.param.startswith("fake"):
            (server,) = await stack.enter_async_context(fake_servers("server-a"))
            backend = Fake(server)
        else:
            backend = Real(await stack.enter_async_context(state_server("server-a")))
        address, proxied = backend.address, request.param.endswith("proxy")
        if proxied:
            address = (await stack.enter_async_context(proxy_of(address))).address
        channel = await stack.enter_async_context(channels.aio_channel(address))
        yield Served(address, query_pb2_grpc.QueryStub(channel), backend, proxied=proxied)


async def test_all_entries_of_a_key_come_in_order_over_several_pages_of_one_source(served: Served) -> None:
    numbers = random.Random(1).sample(range(-50_000, 50_000), 1200)
    await served.host(hourly(), hours("sensor-7", numbers) | hours("sensor-70", [1]) | hours("sensor-", [2]))
    pages = await served.pages(scan_request())
    assert len(pages) > 2
    assert [value for page in pages for value in page.values] == [row(float(number)) for number in sorted(numbers)]
    assert {(page.source.server, page.source.role, page.source.epoch) for page in pages} == {
        ("server-a", ROLE_OWNER, 1)
    }
    assert await served.scan(scan_request()) == sorted(numbers)
    assert await served.scan(scan_request(descending=True)) == sorted(numbers, reverse=True)
    assert await served.scan(scan_request(descending=True, limit=1001)) == sorted(numbers, reverse=True)[:1001]


async def test_a_range_has_its_start_and_not_its_stop_in_either_direction(served: Served) -> None:
    await served.host(hourly(), hours("sensor-7", range(10)))
    for descending in (False, True):
        way = slice(None, None, -1 if descending else 1)

        async def found(start: int | None, stop: int | None, limit: int = 0, down: bool = descending) -> list[Any]:
            return await served.scan(scan_request(start=start, stop=stop, limit=limit, descending=down))

        assert await found(3, 6) == [3, 4, 5][way]
        assert await found(3, None) == list(range(3, 10))[way]
        assert await found(None, 3) == [0, 1, 2][way]
        assert await found(-5, 99) == list(range(10))[way]
        assert await found(3, None, limit=2) == list(range(3, 10))[way][:2]
        assert await found(3, 6, limit=2**64 - 1) == [3, 4, 5][way]
        assert await found(3, 3) == await found(6, 3) == await found(10, None) == await found(None, 0) == []


async def test_a_bound_of_the_first_columns_stands_before_all_that_begin_so(served: Served) -> None:
    keys = [("a", 1), ("a", 2), ("a\0", 1), ("aa", -1), ("b", 0), ("b", 7)]
    of = hourly(KeyType.STRING, KeyType.BIGINT)
    await served.host(of, {("sensor-7", *key): row(1.0) for key in reversed(keys)})
    assert await served.scan(scan_request()) == keys
    assert await served.scan(scan_request(start=("a",), stop=("b",))) == keys[:4]
    assert await served.scan(scan_request(start=("b",))) == keys[4:]
    assert await served.scan(scan_request(start=("a", 2), stop=("b", 7))) == keys[1:5]
    # All with the first column "a": up to the string that comes right after it.
    assert await served.scan(scan_request(start=("a",), stop=("a\0",))) == keys[:2]
    assert await served.scan(scan_request(start=("a",), stop=("b", 7), descending=True, limit=2)) == [keys[4], keys[3]]


async def test_the_elements_of_a_list_come_in_the_order_of_their_positions(served: Served) -> None:
    await served.host(hourly(kind=StateKind.LIST), {("sensor-7", n): row(float(n)) for n in range(5)})
    assert await served.scan(scan_request()) == [0, 1, 2, 3, 4]
    assert await served.scan(scan_request(start=1, stop=4, descending=True)) == [3, 2, 1]
    (page,) = await served.pages(scan_request(descending=True, limit=2))
    assert list(page.values) == [row(4.0), row(3.0)]


async def test_a_broadcast_state_is_scanned_whole_by_its_keys(served: Served) -> None:
    of = hourly(kind=StateKind.BROADCAST, key_groups=1)
    await served.host(of, {name: row(1.0) for name in ("b", "", "a", "c")})
    assert await served.scan(scan_request(())) == ["", "a", "b", "c"]
    assert await served.scan(scan_request((), start="a", stop="c", descending=True)) == ["b", "a"]
    assert isinstance(await served.refusal(scan_request("a")), errors.KeyMismatch)
    async with AsyncClient(served.address, timeout=LONG_SECONDS) as client:
        assert [entry.map_key for entry in await client.scan(APPLICATION, STATE, (), limit=2)] == ["", "a"]


async def test_a_key_without_entries_is_an_empty_answer_with_a_source(served: Served) -> None:
    await served.host(hourly(), hours("sensor-7", range(3)))
    for request in (scan_request("nobody"), scan_request(start=9)):
        (page,) = await served.pages(request)
        assert (list(page.map_keys), list(page.values)) == ([], [])
        assert (page.source.server, page.source.epoch) == ("server-a", 1)


async def test_values_are_json_where_asked(served: Served) -> None:
    await served.host(hourly(), hours("sensor-7", range(2)))
    options = pb.ReadOptions(format=pb.VALUE_FORMAT_JSON)
    (page,) = await served.pages(scan_request(options=options))
    assert [json.loads(value) for value in page.values] == [{"celsius": 0.0, "count": 1}, {"celsius": 1.0, "count": 1}]


async def test_pages_that_are_read_late_are_still_of_the_first_ones_epoch(served: Served) -> None:
    await served.host(hourly(), hours("sensor-7", range(1200)))
    call = served.stub.Scan(scan_request(), timeout=LONG_SECONDS)
    first: pb.ScanResponse = await call.read()
    await served.backend.advance(hours("sensor-7", range(1300), count=2))
    pages = [first]
    while page := await call.read():
        pages.append(page)
    assert {page.source.epoch for page in pages} == {1}
    assert [value for page in pages for value in page.values] == [row(float(number)) for number in range(1200)]
    assert len([value for page in await served.pages(scan_request()) for value in page.values]) == 1300


async def test_the_latest_has_what_is_staged_of_a_key_group_and_says_so(served: Served) -> None:
    """Of one key, of all, of a range of either, counted or in order. Other scans have what is committed."""
    await served.host(hourly(), hours("sensor-7", range(5)) | hours("sensor-8", range(2)))
    latest = pb.ReadOptions(consistency=pb.CONSISTENCY_LATEST)
    group = group_of(StateCodec(hourly()).prefix("sensor-7"))
    assert group != group_of(StateCodec(hourly()).prefix("sensor-8"))

    async def found(options: pb.ReadOptions, **asked: Any) -> tuple[list[bytes], set[tuple[int, int]]]:
        pages = await served.pages(scan_request(options=options, **asked))
        return [value for page in pages for value in page.values], {
            (page.source.epoch, page.source.staged_epoch) for page in pages
        }

    async def counted(options: pb.ReadOptions) -> list[tuple[int, int]]:
        """How many entries each of the two key groups has, and of which epoch anything is staged."""
        counts = []
        for of in (group, group_of(StateCodec(hourly()).prefix("sensor-8"))):
            request = pb.ScanRequest(
                state=scan_request().state,
                key_group=pb.KeyGroupScan(key_group=of),
                options=options,
                aggregates=[pb2.Aggregate(kind=pb2.AGGREGATE_KIND_COUNT)],
            )
            last = (await served.pages(request))[-1]
            counts.append((last.aggregates[0].count, last.source.staged_epoch))
        return counts

    committed = [row(float(n)) for n in range(5)]
    assert await found(latest) == (committed, {(1, 0)})
    await served.backend.stage({("sensor-7", 1): row(1.0, 9), ("sensor-7", 3): None, ("sensor-7", 7): row(7.0)})
    assert await found(pb.ReadOptions()) == (committed, {(1, 0)})
    staged = [row(0.0), row(1.0, 9), row(2.0), row(4.0), row(7.0)]
    assert await found(latest) == (staged, {(1, 2)})
    assert await found(latest, descending=True) == (staged[::-1], {(1, 2)})
    assert await found(latest, start=1, stop=4) == (staged[1:3], {(1, 2)})
    assert await found(latest, key="sensor-8") == ([row(0.0), row(1.0)], {(1, 0)})
    within = pb.KeyGroupScan(key_group=group, descending=True, map_start=encode_integer(2, 4))
    request = pb.ScanRequest(
        state=scan_request().state, key_group=within, options=latest, selection=pb.Selection(), limit=2
    )
    assert [value for page in await served.pages(request) for value in page.values] == [row(7.0), row(4.0)]
    assert await counted(latest) == [(5, 2), (2, 0)]
    await served.backend.stage({("sensor-7", 9): row(9.0)})  # again, with other rows
    assert await found(latest) == ([*committed, row(9.0)], {(1, 2)})
    assert await counted(latest) == [(6, 2), (2, 0)]
    assert await counted(pb.ReadOptions()) == [(5, 0), (2, 0)]
    await served.backend.commit_staged()
    assert await found(latest) == await found(pb.ReadOptions()) == ([*committed, row(9.0)], {(2, 0)})


async def test_an_unknown_state_and_one_without_entries_are_refused_by_name(served: Served) -> None:
    await served.host(readings(), {"sensor-7": row(1.0)})
    error = await served.refusal(scan_request())
    assert isinstance(error, errors.UnknownState)
    assert "readings" in error.message
    request = pb.ScanRequest(state=pb.StateRef(application=APPLICATION, state="readings"), key=key_of("sensor-7"))
    error = await served.refusal(request)
    assert isinstance(error, errors.Unsupported)
    assert "readings is of kind value" in error.message
    request.state.application = "climate"
    assert isinstance(await served.refusal(request), errors.UnknownApplication)


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (scan_request(key=7), errors.KeyMismatch),  # type: ignore[arg-type]  # what is refused
        (scan_request(start="noon"), errors.KeyMismatch),
        (scan_request(stop=1 << 31), errors.KeyMismatch),
        (scan_request(start=(1, 2)), errors.KeyMismatch),
        (scan_request(stop=(None,)), errors.NullKey),
        (scan_request(key="s" * 1000), errors.KeyTooLong),
        (scan_request(topic_id="topic-0"), errors.StaleDescriptor),
        (scan_request(options=pb.ReadOptions(consistency=pb.CONSISTENCY_SNAPSHOT)), errors.Unsupported),
        (
            scan_request(options=pb.ReadOptions(consistency=pb.CONSISTENCY_LATEST, as_of_epoch=1)),
            errors.MalformedRequest,
        ),
        (
            scan_request(options=pb.ReadOptions(consistency=pb.CONSISTENCY_LATEST, stale=pb.STALE_ALWAYS)),
            errors.MalformedRequest,
        ),
        (scan_request(options=pb.ReadOptions(stale=9)), errors.Unsupported),  # type: ignore[arg-type]  # a later one's
        (pb.ScanRequest(state=scan_request().state), errors.KeyMismatch),
        (pb.ScanRequest(state=scan_request().state, key=key_of("sensor-7", "8")), errors.KeyMismatch),
    ],
)
async def test_what_does_not_fit_the_state_is_refused_and_not_quoted(
    served: Served, request_: pb.ScanRequest, kind: type[KeyholeError]
) -> None:
    await served.host(hourly(), hours("sensor-7", range(3)))
    error = await served.refusal(request_)
    assert type(error) is kind
    for secret in ("noon", "sensor-7", "sss", str(1 << 31)):
        assert secret not in error.message


async def test_a_bound_may_be_longer_than_any_key(served: Served) -> None:
    await served.host(hourly(KeyType.STRING), {("sensor-7", name): row(1.0) for name in "az"})
    assert await served.scan(scan_request(start="m" * 1000)) == ["z"]
    assert await served.scan(scan_request(stop="m" * 1000, descending=True)) == ["a"]


async def test_an_epoch_that_is_not_reached_is_refused_with_the_one_that_is(served: Served) -> None:
    await served.host(hourly(), hours("sensor-7", range(3)))
    request = scan_request(options=pb.ReadOptions(min_epoch=2))
    error = await served.refusal(request, seconds=0.5)
    assert isinstance(error, errors.EpochNotReached)
    assert "at epoch 1" in error.message
    await served.backend.advance(hours("sensor-7", [9]))
    assert {page.source.epoch for page in await served.pages(request)} == {2}


async def test_a_key_group_of_nobody_is_refused(served: Served) -> None:
    of = hourly()
    group = StateCodec(of).prefix("sensor-7")[1]
    others = [number for number in range(KEY_GROUPS) if number != group]
    await served.backend.host(of, {("sensor-70", 1): row(1.0)}, others)
    says = f"holds {KEY_GROUPS - 1} of {KEY_GROUPS} key groups"
    async with asyncio.timeout(3 * LONG_SECONDS):
        while says not in (error := await served.refusal(scan_request(), seconds=0.3)).message and served.proxied:
            # A proxy hears of all of it a moment later.
            assert isinstance(error, errors.UnknownApplication | errors.DeadlineExceeded)
    if served.proxied:
        assert isinstance(error, errors.DeadlineExceeded)
    else:
        assert isinstance(error, errors.NotOwner)


async def test_the_client_reads_what_the_service_has(served: Served) -> None:
    await served.host(hourly(KeyType.STRING, KeyType.BIGINT), {("sensor-7", "a", n): row(float(n)) for n in range(7)})
    async with AsyncClient(served.address, timeout=LONG_SECONDS) as client:
        entries = await client.scan(APPLICATION, STATE, "sensor-7", start=("a", 2), stop="b", descending=True, limit=3)
        assert [entry.map_key for entry in entries] == [("a", 6), ("a", 5), ("a", 4)]
        assert [value.celsius for value in entries.values] == [6.0, 5.0, 4.0]
        assert (len(entries), entries[0].value.count, entries.epoch, entries.source.server) == (3, 1, 1, "server-a")
        assert (await client.get(APPLICATION, STATE, ("sensor-7", "a", 6))).value == entries[0].value


async def test_a_state_that_was_made_anew_with_another_map_key_is_read_by_its_new_descriptor(served: Served) -> None:
    await served.host(hourly(), hours("sensor-7", range(3)))
    async with AsyncClient(served.address, timeout=LONG_SECONDS) as client:
        assert [entry.map_key for entry in await client.scan(APPLICATION, STATE, "sensor-7")] == [0, 1, 2]
        # The same bytes would be numbers, too.
        renewed = hourly(KeyType.DATE, topic_id="topic-2")
        await served.host(renewed, {("sensor-7", dt.date(1970, 1, 3)): row(2.0)})
        assert [entry.map_key for entry in await client.scan(APPLICATION, STATE, "sensor-7")] == [dt.date(1970, 1, 3)]
        assert not await client.scan(APPLICATION, STATE, "sensor-7", start=dt.date(1971, 1, 1))
        with pytest.raises(errors.KeyMismatch):
            await client.scan(APPLICATION, STATE, "sensor-7", start=1)
        assert (await client.scan(APPLICATION, STATE, "sensor-7"))[0].value.celsius == 2.0


@pytest.mark.parametrize(
    "within",
    [
        {},
        {"start": "sensor-7"},
        {"start": "a", "stop": "sensor-8"},
        {"prefix": "sensor-"},
        {"prefix": "sensor-", "map_start": 2, "map_stop": 4},
        {"map_stop": 1, "where": field("celsius") >= 0},
        {"start": "z"},
    ],
    ids=str,
)
async def test_counts_and_aggregates_are_of_what_a_scan_of_the_same_range_gives(served: Served, within: Any) -> None:
    await served.host(hourly(), hours("sensor-7", range(6)) | hours("sensor-8", range(3)) | hours("other", range(4)))
    path, asked = f"{APPLICATION}/{STATE}", {"sum": agg.sum("celsius"), "top": agg.top(2, "celsius")}
    async with AsyncClient(served.address, timeout=LONG_SECONDS) as client:
        found = [entry async for entry in client.scan_all(APPLICATION, STATE, **within)]
        count, state = len(found), client.state(path)
        assert await client.count(APPLICATION, STATE, **within) == await state.count(**within) == count
        figures = await state.aggregate(asked, **within)
        assert figures["sum"] == (sum(entry.value.celsius for entry in found) if found else None)
        hottest = sorted((entry.value.celsius for entry in found), reverse=True)[:2]
        assert [entry.value.celsius for entry in figures["top"]] == hottest
    with Client(served.address, timeout=LONG_SECONDS) as threads:
        assert await asyncio.to_thread(threads.count, APPLICATION, STATE, **within) == count
        assert await asyncio.to_thread(threads.state(path).count, **within) == count


async def test_a_range_of_aggregates_that_can_not_be_is_refused_as_that_of_a_scan(served: Served) -> None:
    await served.host(hourly(kind=StateKind.VALUE), {"sensor-7": row(1.0)})
    async with AsyncClient(served.address, timeout=LONG_SECONDS) as client:
        for within, error in (
            ({"start": 7}, errors.KeyMismatch),
            ({"prefix": "a", "stop": "b"}, errors.MalformedRequest),
            ({"map_start": 2}, errors.Unsupported),
        ):
            with pytest.raises(error):
                await client.count(APPLICATION, STATE, **within)  # type: ignore[arg-type]  # by their names
        with pytest.raises(TypeError, match="limit"):
            await client.count(APPLICATION, STATE, limit=1)  # type: ignore[call-arg]  # there is none


class Copied:
    """The two copies, and a proxy before them."""

    def __init__(self, of: Copies, owner: Any, standby: Any, proxy: Any) -> None:
        self.copies, self.owner, self.standby, self.proxy = of, owner, standby, proxy

    async def scan(self, stub: Any, seconds: float = LONG_SECONDS, **options: Any) -> pb.ScanResponse:
        """The answer's first page."""
        request = scan_request(options=pb.ReadOptions(**options))
        pages = [page async for page in stub.Scan(request, timeout=seconds)]
        return pages[0]

    async def refusal(self, stub: Any, seconds: float = 5.0, **options: Any) -> KeyholeError:
        return await refusal_of(lambda deadline: self.scan(stub, deadline, **options), seconds)


@pytest.fixture(params=["fake", "state server"])
async def copied(request: pytest.FixtureRequest) -> AsyncIterator[Copied]:
    async with AsyncExitStack() as stack:
        both = await stack.enter_async_context(copies(request.param, hourly(), hours("sensor-7", range(3))))
        proxy = await stack.enter_async_context(proxy_of(*both.addresses))
        stubs = [
            query_pb2_grpc.QueryStub(await stack.enter_async_context(channels.aio_channel(address)))
            for address in (*both.addresses, proxy.address)
        ]
        ready = Copied(both, *stubs)
        async with asyncio.timeout(LONG_SECONDS):  # the standby has caught up, and the proxy knows of both
            while not await _ready(ready):  # noqa: ASYNC110 - as a reader would
                await asyncio.sleep(0.01)
        yield ready


async def _ready(copied: Copied) -> bool:
    try:
        followed = (await copied.scan(copied.standby)).source.as_of_ms
        holdings = (await copied.proxy.DescribeState(pb.DescribeStateRequest(state=scan_request().state))).holdings
    except grpc.aio.AioRpcError:
        return False
    return bool(followed) and {(h.source.role, h.ready) for h in holdings} == {(ROLE_OWNER, True), (ROLE_STANDBY, True)}


async def test_where_nothing_stale_is_wanted_only_a_confirmed_owner_is_scanned(copied: Copied) -> None:
    assert (await copied.scan(copied.owner, stale=pb.STALE_NEVER)).source.role == ROLE_OWNER
    assert isinstance(await copied.refusal(copied.standby, stale=pb.STALE_NEVER), errors.NotOwner)
    copied.copies.silence_coordinator()
    assert isinstance(await copied.refusal(copied.owner, stale=pb.STALE_NEVER), errors.Unconfirmed)
    assert isinstance(await copied.refusal(copied.proxy, 0.5, stale=pb.STALE_NEVER), errors.Unconfirmed)
    for stub in (copied.owner, copied.proxy):
        assert (await copied.scan(stub)).source.unconfirmed


async def test_a_scan_of_any_copy_gets_both_and_of_the_bounds_only_those_that_meet_them(copied: Copied) -> None:
    roles = {(await copied.scan(copied.proxy, stale=pb.STALE_ALWAYS)).source.role for _ in range(50)}
    assert roles == {ROLE_OWNER, ROLE_STANDBY}
    assert {(await copied.scan(copied.proxy)).source.role for _ in range(10)} == {ROLE_OWNER}
    copied.copies.age(1_000)
    error = await copied.refusal(copied.standby, max_staleness_ms=500_000)
    assert isinstance(error, errors.TooStale)
    assert float(error.facts["age_ms"]) >= 1_000_000
    for _ in range(5):
        page = await copied.scan(copied.proxy, stale=pb.STALE_ALWAYS, max_staleness_ms=500_000)
        assert page.source.role == ROLE_OWNER


async def test_an_epoch_that_no_copy_has_is_waited_for_and_then_named(copied: Copied) -> None:
    error = await copied.refusal(copied.proxy, 0.5, min_epoch=2)
    assert isinstance(error, errors.EpochNotReached)
    assert error.facts["epoch"] == "1"
    waiting = asyncio.ensure_future(copied.scan(copied.proxy, stale=pb.STALE_ALWAYS, min_epoch=2))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await copied.copies.advance(hours("sensor-7", [3]))
    page = await waiting
    assert page.source.epoch == 2


async def test_when_the_owner_is_lost_the_standby_is_scanned_where_it_may_be(copied: Copied) -> None:
    await copied.copies.advance(hours("sensor-7", range(3), count=2))
    reached = (await copied.scan(copied.proxy)).source.epoch
    await copied.copies.lose_owner()
    for _ in range(20):
        page = await copied.scan(copied.proxy, min_epoch=reached)
        assert (page.source.role, page.source.epoch) == (ROLE_STANDBY, 2)
        assert list(page.values) == [row(float(n), 2) for n in range(3)]
    error = await copied.refusal(copied.proxy, 0.5, stale=pb.STALE_NEVER)
    assert isinstance(error, errors.DeadlineExceeded)
    assert error.facts["cause"] in {"NO_SERVER", "SERVER_LOST"}
