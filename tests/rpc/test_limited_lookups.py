"""Limits of lookups at a proxy and a state server: who is refused, and how, and that others are answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from keyhole import AsyncClient, Credentials
from keyhole.backoff import retry_after_seconds
from keyhole.errors import DeadlineExceeded, KeyholeError, MalformedRequest, Overloaded
from keyhole.rpc import frame_ages, status
from keyhole.rpc.channels import aio_channel
from keyhole.rpc.convert import key_to_proto
from keyhole.rpc.read_admission import Limit
from keyhole.rpc.read_requests import MAX_KEYS_PER_REQUEST
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc
from services.client_proxy.app import ClientProxy
from tests.support import figures
from tests.support.lookup_ports import HAS_LOOKUP_PORT, calling
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import APPLICATION, KEY_GROUPS, STATE, descriptor, rows
from tests.support.state_servers import state_server
from tests.support.tokens import make_tokens
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, eventually

REF = pb.StateRef(application=APPLICATION, state=STATE)
SENSORS = [f"sensor-{number}" for number in range(100)]
LOW, HIGH = range(8), range(8, KEY_GROUPS)
POLICY = """
[[allow]]
who = ["token:*"]
verbs = ["read", "scan"]
states = ["*/*"]
"""


def _frame(number: int, sensors: Iterable[str]) -> pb.LookupRequest:
    return pb.LookupRequest(frame=number, state=REF, keys=[key_to_proto(descriptor().key, name) for name in sensors])


def _error(response: pb.LookupResponse) -> KeyholeError:
    """Of a frame that was refused whole."""
    (failure,) = response.failures
    assert not failure.indexes
    return status.from_proto(failure.error)


def _refusal(error: KeyholeError, setting: str, limit: int) -> float:
    """Returns when to try again, in seconds."""
    assert isinstance(error, Overloaded)
    assert setting in error.message
    assert (error.facts["cap"], error.facts["limit"]) == (setting, str(limit))
    seconds = retry_after_seconds(error)
    assert seconds is not None
    return seconds


@contextlib.asynccontextmanager
async def _stream(address: str, seconds: float | None = None) -> AsyncIterator[Any]:
    """A Lookup stream, as a client in any language has it. `seconds`: the call's deadline."""
    async with aio_channel(address) as channel:
        stub: Any = query_pb2_grpc.QueryStub(channel)
        call = stub.Lookup(timeout=seconds)
        yield call
        call.cancel()


def _keys(proxy: ClientProxy) -> int:
    return proxy._servicer.under_way[0]


def _owned_by(groups: range, server: Any) -> list[str]:
    codec = server.states[APPLICATION, STATE].codec
    return [name for name in SENSORS if codec.storage_key(name)[1] in groups]


async def test_one_caller_floods_a_proxy_and_another_one_is_answered(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "tokens.toml").write_text(make_tokens(tmp_path, "one", "two"))
    settings: Any = {
        "policy": str(tmp_path / "policy.toml"),
        "tokens": str(tmp_path / "tokens.toml"),
        "max_caller_lookup_keys": 8,
        "max_lookup_keys": 12,
    }
    token = (tmp_path / "one.token").read_text().strip()
    shown = Credentials(tls=False, token_file=str(tmp_path / "two.token"))
    async with (
        fake_servers("a", "b") as (a, b),
        proxy_of(a.address, b.address, security=settings) as proxy,
        AsyncClient(proxy.address, timeout=LONG_SECONDS, credentials=shown) as other,
        aio_channel(proxy.address) as channel,
    ):
        a.host(descriptor(), rows(100), LOW)
        b.host(descriptor(), rows(100), HIGH)
        slow, fast = _owned_by(LOW, a), _owned_by(HIGH, b)
        assert (await other.get(APPLICATION, STATE, fast[0])).found
        a.hold.clear()
        stub: Any = query_pb2_grpc.QueryStub(channel)
        call = stub.Lookup(metadata=(("authorization", f"Bearer {token}"),))
        for number in range(50):
            await call.write(_frame(number, [slow[number % len(slow)]]))
        async with asyncio.timeout(PATIENCE_SECONDS):
            refused = [await call.read() for _ in range(42)]
        assert {of.frame for of in refused} == set(range(8, 50))
        for response in refused:
            assert _refusal(_error(response), "KEYHOLE_CLIENT_PROXY_MAX_CALLER_LOOKUP_KEYS", 8) == 0.1
        assert "token:one: 8 keys are being looked up in this proxy" in _error(refused[0]).message
        assert _keys(proxy) == 8
        # No room is left for a caller who has none of its own.
        answers = await asyncio.gather(*(other.get(APPLICATION, STATE, name) for name in fast[:4]))
        assert all(answer.found for answer in answers)
        a.hold.set()
        assert {(await call.read()).frame for _ in range(8)} == set(range(8))
        assert _keys(proxy) == 0
        call.cancel()
        stats = await proxy._stats.read()
    assert figures.value(stats, "keyhole_client_proxy_limited_reads_total", limit="caller_keys") == 42
    # Who floods must not raise the alarm that reads fail.
    assert figures.value(stats, "keyhole_client_proxy_failed_reads_total") == 0


async def test_over_http_it_is_a_429_that_says_when_to_try_again() -> None:
    limits: Any = {"max_caller_lookup_keys_per_second": 1}
    async with (
        fake_servers("a") as (server,),
        proxy_of(server.address, security=limits, http="127.0.0.1:0") as proxy,
        aiohttp.ClientSession(f"http://{proxy.http_address}") as http,
    ):
        server.host(descriptor(), rows(100))
        path = f"/v1/{APPLICATION}/{STATE}"
        # Larger than what there is, so let in, and owed for 1,499 s.
        async with http.post(f"{path}:batchGet", json={"keys": SENSORS * 15}) as answer:
            assert len((await answer.json())["answers"]) == 1_500
        asked = server.frames
        async with http.get(f"{path}/sensor-1") as answer:
            body = await answer.json()
            assert (answer.status, body["reason"], body["retryable"]) == (429, "OVERLOADED", True)
            assert body["facts"]["cap"] == "KEYHOLE_CLIENT_PROXY_MAX_CALLER_LOOKUP_KEYS_PER_SECOND"
            seconds = float(body["facts"]["retry_after_seconds"])
            assert seconds <= int(answer.headers["Retry-After"]) < seconds + 1
            assert 1_000 < seconds <= 1_500
        async with aio_channel(proxy.address) as channel:
            # The same caller by another port.
            request = pb.GetRequest(state=REF, key=key_to_proto(descriptor().key, "sensor-1"))
            with pytest.raises(grpc.aio.AioRpcError) as no:
                await query_pb2_grpc.QueryStub(channel).Get(request)
        assert no.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert 1_000 < (retry_after_seconds(status.from_rpc_error(no.value)) or 0) <= 1_500
        assert server.frames == asked


async def test_a_request_over_http_counts_while_it_is_under_way() -> None:
    limits: Any = {"max_lookup_keys": 1, "max_lookup_calls": 2}
    async with (
        fake_servers("a") as (server,),
        proxy_of(server.address, security=limits, http="127.0.0.1:0") as proxy,
        aiohttp.ClientSession(f"http://{proxy.http_address}") as http,
    ):
        server.host(descriptor(), rows(100))
        server.hold.clear()

        async def read() -> tuple[int, str, Any]:
            async with http.get(f"/v1/{APPLICATION}/{STATE}/sensor-1") as answer:
                body = await answer.json()
                return answer.status, answer.headers.get("Retry-After", ""), body.get("facts", {}).get("cap")

        waiting = asyncio.ensure_future(read())
        await eventually(lambda: _keys(proxy) == 1)
        assert await read() == (429, "1", "KEYHOLE_CLIENT_PROXY_MAX_LOOKUP_KEYS")
        async with _stream(proxy.address) as open_stream:
            await open_stream.write(_frame(1, ["sensor-1"]))
            assert isinstance(_error(await open_stream.read()), Overloaded)
            assert await read() == (429, "1", "KEYHOLE_CLIENT_PROXY_MAX_LOOKUP_CALLS")
        server.hold.set()
        assert (await waiting)[0] == 200
        assert _keys(proxy) == 0
        stats = await proxy._stats.read()
    # All others lack what one of them has taken.
    assert figures.value(stats, "keyhole_client_proxy_failed_reads_total", reason="OVERLOADED") == 3
    assert figures.value(stats, "keyhole_client_proxy_limited_reads_total", limit="keys") == 2
    assert figures.value(stats, "keyhole_client_proxy_limited_reads_total", limit="calls") == 1


async def test_a_state_server_refuses_what_is_beyond_a_rate_and_takes_more_once_it_is_paid() -> None:
    limits: Any = {"max_caller_lookup_keys_per_second": 10}
    async with (
        state_server("server-a", security=limits) as server,
        _stream(server.address) as stream,
        aio_channel(server.address) as channel,
    ):
        await server.own(descriptor())
        await server.commit(rows(100))
        await stream.write(_frame(1, SENSORS * 100))
        assert len((await stream.read()).values) == 10_000
        await stream.write(_frame(2, SENSORS[:3]))
        refused = await stream.read()
        seconds = _refusal(_error(refused), "KEYHOLE_STATE_SERVER_MAX_CALLER_LOOKUP_KEYS_PER_SECOND", 10)
        assert (len(refused.values), 900 < seconds <= 1_000) == (3, True)
        stub: Any = query_pb2_grpc.QueryStub(channel)
        many = pb.GetManyRequest(state=REF, keys=_frame(0, SENSORS[:3]).keys)
        with pytest.raises(grpc.aio.AioRpcError) as no:
            await stub.GetMany(many)
        _refusal(status.from_rpc_error(no.value), "KEYHOLE_STATE_SERVER_MAX_CALLER_LOOKUP_KEYS_PER_SECOND", 10)
        server.clock.ahead_seconds += seconds
        await stream.write(_frame(3, SENSORS[:3]))
        assert not (await stream.read()).failures
        stats = await figures.read_stats(server.address)
    assert figures.value(stats, "keyhole_state_server_limited_reads_total", limit="caller_rate") == 6
    assert figures.value(stats, "keyhole_state_server_open_lookup_calls") == 1


TOO_MANY = pb.LookupRequest(frame=1, state=REF, storage_keys=[b""] * 100_000)


async def _asks_too_much_and_then_another_one_asks(address: str) -> None:
    async with _stream(address) as stream, _stream(address) as other:
        await stream.write(TOO_MANY)
        refused = await stream.read()
        await other.write(_frame(1, ["sensor-1"]))
        assert not (await other.read()).failures
    assert isinstance(_error(refused), MalformedRequest)
    # Of a frame as large as a message may be, the refusal would be as large.
    assert len(refused.values) == MAX_KEYS_PER_REQUEST


async def test_a_frame_of_more_keys_than_may_be_takes_nothing_of_what_all_may_have_in_a_second() -> None:
    limits: Any = {"max_lookup_keys_per_second": 100}
    async with fake_servers("a") as (fake,), proxy_of(fake.address, security=limits) as proxy:
        fake.host(descriptor(), rows(100))
        await _asks_too_much_and_then_another_one_asks(proxy.address)
    async with state_server("server-a", security=limits | HAS_LOOKUP_PORT) as server:
        await server.own(descriptor())
        await server.commit(rows(100))
        await _asks_too_much_and_then_another_one_asks(server.address)
        registry = server.server._registry
        assert registry is not None
        async with calling(registry.lookup_port) as caller, calling(registry.lookup_port) as other:
            await caller.open()
            caller.send(TOO_MANY)
            refused = await caller.next()
            await other.open()
            other.send(_frame(1, ["sensor-1"]))
            assert not (await other.next()).failures
        stats = await figures.read_stats(server.address)
    assert isinstance(_error(refused), MalformedRequest)
    failed = figures.value(stats, "keyhole_state_server_failed_reads_total", reason="MALFORMED_REQUEST")
    assert failed == 2 * MAX_KEYS_PER_REQUEST


async def test_a_lookup_stream_too_many_is_refused_and_its_place_is_given_back() -> None:
    limits: Any = {"max_caller_lookup_calls": 1}
    async with state_server("server-a", security=limits) as server:
        await server.own(descriptor())
        await server.commit(rows(100))
        async with _stream(server.address) as first:
            await first.write(_frame(1, ["sensor-1"]))
            assert (await first.read()).values[0]
            async with _stream(server.address) as second:
                with pytest.raises(grpc.aio.AioRpcError) as no:
                    await second.read()
            error = status.from_rpc_error(no.value)
            assert _refusal(error, "KEYHOLE_STATE_SERVER_MAX_CALLER_LOOKUP_CALLS", 1) == 1.0
        # A client of ours comes again when it was told to.
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            assert (await client.get(APPLICATION, STATE, "sensor-1")).found


async def test_a_frame_behind_its_calls_deadline_is_dropped_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked_up(*_: object) -> None:
        raise AssertionError("the store is not to be asked")

    async with (
        state_server("server-a") as server,
        _stream(server.address, LONG_SECONDS) as stream,
    ):
        await server.own(descriptor())
        await server.commit(rows(100))
        await stream.write(_frame(1, ["sensor-1"]))
        assert not (await stream.read()).failures
        monkeypatch.setattr("services.state_server.servicers.query.frame_response", looked_up)
        server.clock.ahead_seconds += LONG_SECONDS
        await stream.write(_frame(2, SENSORS[:5]))
        assert isinstance(_error(await stream.read()), DeadlineExceeded)
        stats = await figures.read_stats(server.address)
    assert figures.value(stats, "keyhole_state_server_expired_reads_total") == 5


async def test_a_frame_that_has_waited_for_longer_than_its_timeout_is_dropped_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frame_ages, "_WINDOW_SECONDS", LONG_SECONDS)
    async with state_server("server-a") as server, _stream(server.address) as stream:
        await server.own(descriptor())
        await server.commit(rows(100))

        async def asked(sent_ms: int, timeout_ms: int = 50_000) -> pb.LookupResponse:
            frame = _frame(1, SENSORS[:5])
            frame.sent_ms, frame.timeout_ms = sent_ms, timeout_ms
            await stream.write(frame)
            response: pb.LookupResponse = await stream.read()
            return response

        assert not (await asked(1_000)).failures
        # As if the server had been busy with others for so long.
        server.clock.ahead_seconds += 100.0
        late = _error(await asked(1_001))
        assert isinstance(late, DeadlineExceeded)
        assert int(late.facts["late_ms"]) >= 99_000
        # Who waits for longer, and who does not say when, gets an answer.
        assert not (await asked(1_002, timeout_ms=1_000_000)).failures
        assert not (await asked(0)).failures
        assert not (await asked(1_003)).failures
        stats = await figures.read_stats(server.address)
    assert figures.value(stats, "keyhole_state_server_expired_reads_total") == 5


async def test_a_client_whose_clock_stood_still_is_answered_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_ages, "_WINDOW_SECONDS", LONG_SECONDS)
    async with (
        state_server("server-a") as server,
        AsyncClient(server.address, timeout=2 * PATIENCE_SECONDS) as client,
    ):
        await server.own(descriptor())
        await server.commit(rows(100))
        assert (await client.get(APPLICATION, STATE, "sensor-1")).found
        server.clock.ahead_seconds += 100.0
        answers = await asyncio.gather(*(client.get(APPLICATION, STATE, name) for name in SENSORS[:5]))
        assert [answer.value.celsius for answer in answers] == [0.0, 1.0, 2.0, 3.0, 4.0]
        stats = await figures.read_stats(server.address)
    assert figures.value(stats, "keyhole_state_server_expired_reads_total") > 0


async def test_a_proxy_asks_no_server_for_what_nobody_waits_for_any_more() -> None:
    class Late:
        def peer(self) -> str:
            return "ipv4:10.0.0.1:5000"

        def time_remaining(self) -> float:
            return 0.0

    context: Any = Late()
    async with fake_servers("a") as (server,), proxy_of(server.address) as proxy:
        server.host(descriptor(), rows(100))
        async with AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
            await client.get(APPLICATION, STATE, "sensor-1")
        asked = server.frames
        request = pb.GetManyRequest(state=REF, keys=_frame(0, SENSORS[:5]).keys)
        with pytest.raises(DeadlineExceeded, match="nothing was looked up"):
            await proxy._servicer.GetMany(request, context)
        assert (server.frames, proxy._servicer.admission.expired) == (asked, 5)


async def test_a_stranger_who_never_reads_takes_no_more_than_its_share() -> None:
    limits: Any = {"max_caller_lookup_keys": 20}
    async with (
        fake_servers("a") as (server,),
        proxy_of(server.address, security=limits) as proxy,
        _stream(proxy.address) as stream,
    ):
        server.host(descriptor(), rows(100))
        server.hold.clear()
        most = 0

        async def flood() -> None:
            nonlocal most
            for number in range(20_000):
                await stream.write(_frame(number, ["sensor-1"]))
                sessions = proxy._servicer._sessions
                most = max([most, *(session._responses.qsize() for session in sessions)])

        flooding = asyncio.ensure_future(flood())
        refused = proxy._servicer.admission.refused
        await eventually(lambda: refused[Limit.CALLER_KEYS] > 500 or flooding.done())
        assert _keys(proxy) == 20
        server.hold.set()
        await eventually(lambda: _keys(proxy) < 20)
        async with aio_channel(proxy.address) as channel:
            (state,) = (await query_pb2_grpc.QueryStub(channel).ListStates(pb.ListStatesRequest())).states
        assert state.state == STATE
        # One more than at which it stops reading from the stream, and those of what was under way by then.
        assert most <= 64 + 20
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
