"""What everyone who serves keyhole.v1.Query must do, over real sockets: servers, and proxies in front of them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
import msgspec
import pytest

from keyhole import Client, errors
from keyhole.encoding.codec import StateCodec
from keyhole.errors import KeyholeError
from keyhole.model.state import KeyType, StateDescriptor
from keyhole.rpc import channels, convert, status
from keyhole.testing.fake_server import FakeServer
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc, state_pb2
from tests.support.lookup_ports import HAS_LOOKUP_PORT, streams_of, until_by_port
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import APPLICATION, KEY_GROUPS, STATE, descriptor, row, rows
from tests.support.refusals import raised_at_deadline, refusal_of
from tests.support.server_readers import read_by
from tests.support.state_servers import RunningServer, state_server
from tests.support.waiting import LONG_SECONDS, eventually, until

REF = pb.StateRef(application=APPLICATION, state=STATE)

TWO_BOUNDS = pb.ReadOptions(as_of_epoch=1, min_epoch=1)


class Backend(Protocol):
    """The server at the back, and what the tests do to it."""

    @property
    def address(self) -> str: ...

    async def begin(self) -> None:
        """The state of tests/support/readings.py, with sensor-0 to sensor-99, at epoch 1."""

    async def advance(self) -> None:
        """To the next epoch, from which on sensor-0 has 0.5."""

    async def stage(self, values: Mapping[str, float | None]) -> None:
        """What the next epoch is to put and delete: not committed, and in place of what was staged before."""

    async def commit_staged(self) -> None:
        """To the epoch that is staged."""

    async def renew(self, renewed: StateDescriptor, key: int, stored: bytes) -> None:
        """The state is made anew, with another descriptor and one key."""


class Fake:
    """The shipped fake."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server

    @property
    def address(self) -> str:
        return self._server.address

    async def begin(self) -> None:
        self._state = self._server.host(descriptor(), rows(100))

    async def advance(self) -> None:
        self._state.commit()
        self._state.put("sensor-0", row(0.5))

    async def stage(self, values: Mapping[str, float | None]) -> None:
        self._state.staged.clear()
        for name, celsius in values.items():
            self._state.stage(name, None if celsius is None else row(celsius))

    async def commit_staged(self) -> None:
        self._state.commit()

    async def renew(self, renewed: StateDescriptor, key: int, stored: bytes) -> None:
        self._server.host(renewed).put(key, stored)


class Real:
    """The state server itself, through its whole write path."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    @property
    def address(self) -> str:
        return self._server.address

    async def begin(self) -> None:
        await self._server.own(descriptor())
        await self._server.commit(rows(100))

    async def advance(self) -> None:
        await self._server.commit({"sensor-0": row(0.5)})

    async def stage(self, values: Mapping[str, float | None]) -> None:
        await self._server.stage({name: None if of is None else row(of) for name, of in values.items()})

    async def commit_staged(self) -> None:
        await self._server.commit_staged()

    async def renew(self, renewed: StateDescriptor, key: int, stored: bytes) -> None:
        await self._server.own(renewed)
        await self._server.commit({key: stored})


@dataclass
class Served:
    """A service that has the state of tests/support/readings.py with sensor-0 to sensor-99, at epoch 1."""

    stub: Any
    backend: Backend
    behind_a_proxy: bool
    address: str

    async def lookup(self, *requests: pb.LookupRequest) -> list[pb.LookupResponse]:
        """One stream; the responses by frame number."""
        call = self.stub.Lookup(iter(requests))
        return sorted([response async for response in call], key=lambda response: response.frame)


@pytest.fixture(
    params=[
        "fake",
        "fake behind a proxy",
        "state server",
        "state server behind a proxy",
        "state server, by its lookup port, behind a proxy",
        pytest.param(
            "state server, by a reader at its lookup port, behind a proxy",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="reader processes need Linux"),
        ),
    ]
)
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        backend: Backend
        if request.param.startswith("fake"):
            (server,) = await stack.enter_async_context(fake_servers("server-a"))
            backend = Fake(server)
        elif "reader" in request.param:
            backend = Real(await stack.enter_async_context(read_by(tmp_path / "stores")))
        else:
            settings = HAS_LOOKUP_PORT if "port" in request.param else {}
            backend = Real(await stack.enter_async_context(state_server("server-a", security=settings)))
        await backend.begin()
        address = backend.address
        if request.param.endswith("proxy"):
            proxy = await stack.enter_async_context(proxy_of(address))
            address = proxy.address
            if "port" in request.param:
                await eventually(
                    lambda: all(of._announced for of in streams_of(proxy)) and streams_of(proxy), LONG_SECONDS
                )
                await until_by_port(streams_of(proxy))
        channel = await stack.enter_async_context(channels.aio_channel(address))
        yield Served(query_pb2_grpc.QueryStub(channel), backend, request.param.endswith("proxy"), address)


def key(name: str) -> pb.Key:
    return pb.Key(parts=[pb.KeyPart(string=name)])


def storage_key(served: Served, name: str) -> bytes:
    return StateCodec(descriptor()).storage_key(name)


async def refusal(call: Any) -> KeyholeError:
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return status.from_rpc_error(caught.value)


def failure(response: pb.LookupResponse) -> KeyholeError:
    """The error that all keys of a frame failed with."""
    (only,) = response.failures
    assert len(only.indexes) in (0, len(response.values))
    return status.from_proto(only.error)


async def test_states_are_listed_and_described(served: Served) -> None:
    listed = (await served.stub.ListStates(pb.ListStatesRequest())).states
    described = await served.stub.DescribeState(pb.DescribeStateRequest(state=REF))
    assert [convert.descriptor_from_proto(message) for message in listed] == [descriptor()]
    assert convert.descriptor_from_proto(described.descriptor) == descriptor()
    assert [holding.server for holding in described.holdings] == ["server-a"]
    assert list(described.holdings[0].key_groups) == list(range(KEY_GROUPS))


async def test_states_of_another_application_are_not_listed(served: Served) -> None:
    assert not (await served.stub.ListStates(pb.ListStatesRequest(application="other"))).states


async def test_a_key_is_answered_with_its_row_and_its_source_f21_f31(served: Served) -> None:
    """F21, F31: a query over a real socket."""
    answer = (await served.stub.Get(pb.GetRequest(state=REF, key=key("sensor-7")))).answer
    assert (answer.found, answer.value) == (True, row(7.0))
    assert (answer.source.server, answer.source.role) == ("server-a", state_pb2.ROLE_OWNER)
    assert (answer.source.epoch, answer.source.commit_time_ms, answer.source.generation) == (1, 1000, 1)


async def test_an_absent_key_is_an_answer_and_never_a_default_f23(served: Served) -> None:
    """F23: an unknown key."""
    answer = (await served.stub.Get(pb.GetRequest(state=REF, key=key("nobody")))).answer
    assert (answer.found, answer.value, answer.source.epoch) == (False, b"", 1)


async def test_many_keys_are_answered_in_their_order_and_as_often_as_asked(served: Served) -> None:
    names = ["sensor-9", "nobody", "sensor-0", "sensor-9"]
    request = pb.GetManyRequest(state=REF, keys=[key(name) for name in names])
    answers = (await served.stub.GetMany(request)).answers
    assert [answer.value for answer in answers] == [row(9.0), b"", row(0.0), row(9.0)]
    assert not (await served.stub.GetMany(pb.GetManyRequest(state=REF))).answers


async def test_values_are_json_where_asked(served: Served) -> None:
    options = pb.ReadOptions(format=pb.VALUE_FORMAT_JSON)
    answer = (await served.stub.Get(pb.GetRequest(state=REF, key=key("sensor-7"), options=options))).answer
    assert json.loads(answer.value) == {"celsius": 7.0, "count": 1}
    frame = pb.LookupRequest(frame=1, state=REF, keys=[key("sensor-7"), key("nobody")], options=options)
    (response,) = await served.lookup(frame)
    assert (json.loads(response.values[0]), response.values[1]) == ({"celsius": 7.0, "count": 1}, b"")


async def test_frames_of_storage_keys_and_of_typed_keys_are_answered_on_one_stream(served: Served) -> None:
    stored = [storage_key(served, name) for name in ("sensor-1", "nobody", "sensor-2")]
    responses = await served.lookup(
        pb.LookupRequest(frame=1, state=REF, storage_keys=stored, topic_id="topic-1"),
        pb.LookupRequest(frame=2, state=REF, keys=[key("sensor-3"), key("sensor-4")]),
        pb.LookupRequest(frame=3, state=REF, topic_id="topic-1"),
    )
    assert [list(response.values) for response in responses] == [[row(1.0), b"", row(2.0)], [row(3.0), row(4.0)], []]
    assert not any(response.failures for response in responses)
    assert responses[0].sources[0].server == "server-a"


async def test_an_unknown_state_is_refused_with_the_states_that_exist_f22(served: Served) -> None:
    """F22: an unknown state."""
    unknown = pb.StateRef(application=APPLICATION, state="nothing")
    for call in (
        served.stub.Get(pb.GetRequest(state=unknown, key=key("a"))),
        served.stub.DescribeState(pb.DescribeStateRequest(state=unknown)),
    ):
        error = await refusal(call)
        assert isinstance(error, errors.UnknownState)
        assert STATE in error.message
    (response,) = await served.lookup(pb.LookupRequest(frame=1, state=unknown, keys=[key("a")]))
    assert isinstance(failure(response), errors.UnknownState)


async def test_a_key_of_the_wrong_type_or_arity_is_refused_f29(served: Served) -> None:
    """F29: a key of another type."""
    number = pb.Key(parts=[pb.KeyPart(integer=7)])
    two = pb.Key(parts=[pb.KeyPart(string="a"), pb.KeyPart(string="b")])
    for wrong in (number, two):
        assert isinstance(await refusal(served.stub.Get(pb.GetRequest(state=REF, key=wrong))), errors.KeyMismatch)
        (response,) = await served.lookup(pb.LookupRequest(frame=1, state=REF, keys=[wrong]))
        assert isinstance(failure(response), errors.KeyMismatch)


async def test_a_null_key_is_refused(served: Served) -> None:
    null = pb.Key(parts=[pb.KeyPart()])
    assert isinstance(await refusal(served.stub.Get(pb.GetRequest(state=REF, key=null))), errors.NullKey)


async def test_a_key_longer_than_the_store_takes_is_refused_without_being_repeated(served: Served) -> None:
    error = await refusal(served.stub.Get(pb.GetRequest(state=REF, key=key("long" * 1000))))
    assert isinstance(error, errors.KeyTooLong)
    assert "longlong" not in error.message


async def test_a_malformed_frame_fails_alone_and_the_stream_goes_on_f27(served: Served) -> None:
    """F27: an unexpected message."""
    good = storage_key(served, "sensor-1")
    beyond = KEY_GROUPS.to_bytes(2, "big") + b"key"
    malformed = [
        pb.LookupRequest(frame=1, state=REF, storage_keys=[good], keys=[key("a")], topic_id="topic-1"),
        pb.LookupRequest(frame=2, state=REF, storage_keys=[b"\x00"], topic_id="topic-1"),
        pb.LookupRequest(frame=3, state=REF, storage_keys=[b""], topic_id="topic-1"),
        pb.LookupRequest(frame=4, state=REF, storage_keys=[beyond], topic_id="topic-1"),
    ]
    fine = pb.LookupRequest(frame=9, state=REF, storage_keys=[good], topic_id="topic-1")
    *refused, answered = await served.lookup(*malformed, fine)
    assert all(isinstance(failure(response), errors.MalformedRequest) for response in refused)
    assert list(answered.values) == [row(1.0)]


async def test_storage_keys_of_another_topic_are_refused_as_stale(served: Served) -> None:
    stale = pb.LookupRequest(frame=1, state=REF, storage_keys=[storage_key(served, "sensor-1")], topic_id="old")
    (response,) = await served.lookup(stale)
    assert isinstance(failure(response), errors.StaleDescriptor)


async def test_an_epoch_that_is_not_reached_is_refused_with_the_one_that_is(served: Served) -> None:
    options = pb.ReadOptions(min_epoch=2)
    request = pb.GetRequest(state=REF, key=key("sensor-1"), options=options)
    # A proxy waits for the epoch until the deadline; without one, for two minutes.
    error = await refusal_of(lambda seconds: served.stub.Get(request, timeout=seconds), 0.5)
    assert isinstance(error, errors.EpochNotReached)
    assert "at epoch 1" in error.message
    await served.backend.advance()
    answer = (await served.stub.Get(request)).answer
    assert answer.source.epoch == 2


async def test_an_epoch_that_is_kept_is_read_by_its_number_by_every_call(served: Served) -> None:
    asked = key("sensor-0")

    async def found(as_of: int) -> list[tuple[bytes, int]]:
        options = pb.ReadOptions(as_of_epoch=as_of)
        (many,) = (await served.stub.GetMany(pb.GetManyRequest(state=REF, keys=[asked], options=options))).answers
        frame = pb.LookupRequest(frame=1, state=REF, keys=[asked], options=options, timeout_ms=120_000)
        (looked_up,) = await served.lookup(frame)
        if looked_up.failures:
            raise status.from_proto(looked_up.failures[0].error)
        return [(many.value, many.source.epoch), (looked_up.values[0], looked_up.sources[0].epoch)]

    await served.backend.advance()
    assert await found(1) == [(row(0.0), 1)] * 2
    assert await found(2) == [(row(0.5), 2)] * 2
    for _ in range(2):
        await served.backend.advance()
    for call in (served.stub.Get, served.stub.GetMany):
        wanted: Any = {"key": asked} if call == served.stub.Get else {"keys": [asked]}
        kind = pb.GetRequest if call == served.stub.Get else pb.GetManyRequest
        error = await refusal(call(kind(state=REF, options=pb.ReadOptions(as_of_epoch=1), **wanted)))
        assert (type(error), error.facts["oldest"]) == (errors.EpochGone, "2")
    error = await refusal(served.stub.Get(pb.GetRequest(state=REF, key=asked, options=TWO_BOUNDS)))
    assert isinstance(error, errors.MalformedRequest)


async def test_consistency_levels_of_later_versions_are_refused_and_not_weakened(served: Served) -> None:
    options = pb.ReadOptions(consistency=9)  # type: ignore[arg-type]  # a later one's
    error = await refusal(served.stub.Get(pb.GetRequest(state=REF, key=key("sensor-1"), options=options)))
    assert isinstance(error, errors.Unsupported)


async def test_the_latest_has_what_is_staged_says_so_and_is_asked_for_alone(served: Served) -> None:
    """By every call; other reads have what is committed, and so has this one of key groups without staged rows."""
    latest = pb.ReadOptions(consistency=pb.CONSISTENCY_LATEST)
    codec = StateCodec(descriptor())
    alone = next(
        name
        for number in range(100)
        if codec.storage_key(name := f"sensor-{number}")[:2]
        not in {codec.storage_key(other)[:2] for other in ("sensor-0", "sensor-1", "new")}
    )
    names = ["sensor-0", "sensor-1", "new", alone]

    async def found(options: pb.ReadOptions) -> list[tuple[bytes, int, int]]:
        """Value, epoch and staged epoch of each key."""
        many = (await served.stub.GetMany(pb.GetManyRequest(state=REF, keys=map(key, names), options=options))).answers
        answers = [(of.value, of.source.epoch, of.source.staged_epoch) for of in many]
        for name, one in zip(names, answers, strict=True):
            answer = (await served.stub.Get(pb.GetRequest(state=REF, key=key(name), options=options))).answer
            assert (answer.value, answer.source.epoch, answer.source.staged_epoch) == one
        stored = [codec.storage_key(name) for name in names]
        for frame in (
            pb.LookupRequest(frame=1, state=REF, storage_keys=stored, topic_id="topic-1", options=options),
            pb.LookupRequest(frame=1, state=REF, keys=map(key, names), options=options),
        ):
            (response,) = await served.lookup(frame)
            sources = [response.sources[of] for of in response.source_of or [0] * len(names)]
            assert [
                (value, of.epoch, of.staged_epoch) for value, of in zip(response.values, sources, strict=True)
            ] == answers
        return answers

    committed = await found(pb.ReadOptions())
    assert await found(latest) == committed
    await served.backend.stage({"sensor-0": 0.5, "sensor-1": None, "new": 1.5})
    assert await found(pb.ReadOptions()) == committed
    staged = [(row(0.5), 1, 2), (b"", 1, 2), (row(1.5), 1, 2)]
    assert await found(latest) == [*staged, committed[3]]
    await served.backend.stage({"sensor-0": 0.75})  # staged again, with other rows
    assert (await found(latest))[0] == (row(0.75), 1, 2)
    await served.backend.commit_staged()
    assert (
        await found(latest)
        == await found(pb.ReadOptions())
        == [(row(0.75), 2, 0), *((value, 2, 0) for value, _, _ in committed[1:])]
    )
    for contradiction in ({"as_of_epoch": 1}, {"stale": pb.STALE_ALWAYS}):
        options = pb.ReadOptions(consistency=pb.CONSISTENCY_LATEST, **contradiction)  # type: ignore[arg-type]  # each its own
        error = await refusal(served.stub.Get(pb.GetRequest(state=REF, key=key("new"), options=options)))
        assert isinstance(error, errors.MalformedRequest)
    # It holds an epoch once that is committed.
    await served.backend.stage({"sensor-0": 1.0})
    options = pb.ReadOptions(consistency=pb.CONSISTENCY_LATEST, min_epoch=3)
    request = pb.GetRequest(state=REF, key=key("sensor-0"), options=options)
    error = await refusal_of(lambda seconds: served.stub.Get(request, timeout=seconds), 0.5)
    assert isinstance(error, errors.EpochNotReached)


async def test_one_epoch_for_all_keys_is_what_a_proxy_sees_to_and_a_server_does_not_pretend_to(served: Served) -> None:
    """A server knows of no other's epoch."""
    options = pb.ReadOptions(consistency=pb.CONSISTENCY_SNAPSHOT)
    asked = served.stub.GetMany(pb.GetManyRequest(state=REF, keys=[key("sensor-1")], options=options))
    if served.behind_a_proxy:
        assert [answer.source.epoch for answer in (await asked).answers] == [1]
    else:
        assert isinstance(await refusal(asked), errors.Unsupported)


async def test_status_tells_each_server_and_what_it_holds(served: Served) -> None:
    (server,) = (await served.stub.Status(pb.StatusRequest())).servers
    assert (server.server, server.unreachable) == ("server-a", "")
    assert [holding.descriptor.state for holding in server.holdings] == [STATE]
    assert server.holdings[0].ready


async def test_a_state_that_was_made_anew_with_other_keys_is_answered_by_its_new_descriptor(served: Served) -> None:
    await served.backend.renew(descriptor(topic_id="topic-2", key=KeyType.BIGINT), 7, row(1.0))
    request = pb.GetRequest(state=REF, key=pb.Key(parts=[pb.KeyPart(integer=7)]))
    async with asyncio.timeout(LONG_SECONDS):
        while True:
            try:
                answer = (await served.stub.Get(request)).answer
            except grpc.aio.AioRpcError as error:
                # A proxy hears of it a moment later.
                assert isinstance(status.from_rpc_error(error), errors.KeyMismatch)  # noqa: PT017
            else:
                break
    assert msgspec.msgpack.decode(answer.value) == [1, 1.0, 1]


async def test_a_client_of_threads_gives_futures_of_its_reads(served: Served) -> None:
    def reads() -> None:
        with Client(served.address, timeout=LONG_SECONDS) as client:
            future, many = (
                client.get_async(APPLICATION, STATE, "sensor-7"),
                client.get_many_async(APPLICATION, STATE, (f"sensor-{number}" for number in range(101))),
            )
            assert isinstance(future, Future)
            assert (future.result().value.celsius, future.result().epoch) == (7.0, 1)
            assert [answer.value.celsius for answer in many.result()[:100]] == list(map(float, range(100)))
            assert not many.result()[100].found
            unknown = client.get_async(APPLICATION, "nothing", "sensor-7")
            assert isinstance(unknown.exception(), errors.UnknownState)
            with pytest.raises(errors.KeyMismatch):
                client.get_async(APPLICATION, STATE, 7).result()
            session = client.session()
            typed = session.state(f"{APPLICATION}/{STATE}").get_async("sensor-0")
            assert typed.result().value.celsius == 0.0
            assert session.epochs == {(APPLICATION, STATE): 1}
            asyncio.run_coroutine_threadsafe(served.backend.advance(), loop).result(LONG_SECONDS)
            until(lambda: client.get_async(APPLICATION, STATE, "sensor-0").result().value.celsius == 0.5, LONG_SECONDS)
            # What is read after it, by whichever method, is never older.
            assert session.get_many_async(APPLICATION, STATE, ["sensor-0"]).result()[0].epoch == 2
            assert session.epochs == {(APPLICATION, STATE): 2}
            ahead = client.session({(APPLICATION, STATE): 9})
            raised = raised_at_deadline(
                lambda seconds: asyncio.wrap_future(ahead.get_async(APPLICATION, STATE, "sensor-0", timeout=seconds)),
                *(0.2, errors.EpochNotReached, ""),
            )
            asyncio.run_coroutine_threadsafe(raised, loop).result(LONG_SECONDS)

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(reads)
