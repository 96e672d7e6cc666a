"""The lookup port of a real state server: the same answers, rights, audit and figures as on its gRPC port."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from keyhole import AsyncClient
from keyhole.errors import (
    Draining,
    KeyholeError,
    PermissionDenied,
    PortTaken,
    StaleDescriptor,
    Unauthenticated,
    UnknownState,
)
from keyhole.local.ports import free_ports
from keyhole.rpc.channels import aio_channel
from keyhole.rpc.port_frames import VERSION
from keyhole.rpc.status import from_proto
from keyhole.security.credentials import Credentials
from keyhole.testing.network import Network
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc, state_server_pb2, state_server_pb2_grpc
from services.client_proxy.app import ClientProxy
from tests.support.certificates import Authority
from tests.support.direct_reads import direct_streams_of, until_reached
from tests.support.lookup_ports import HAS_LOOKUP_PORT, Caller, calling, streams_of, until_by_port
from tests.support.proxies import proxy_of
from tests.support.state_servers import RunningServer, state_server
from tests.support.states import descriptor, row
from tests.support.tokens import make_tokens
from tests.support.waiting import LONG_SECONDS, eventually

POLICY = """
[[allow]]
who = ["certificate:job"]
verbs = ["write"]
states = ["app/*"]

[[allow]]
who = ["certificate:proxy"]
verbs = ["platform"]

[[allow]]
who = ["token:reader", "token:newer", "certificate:service"]
verbs = ["read", "direct"]
states = ["app/counts", "app/gone"]
"""
COUNTS = pb.StateRef(application="app", state="counts")


def asked(number: int, state: str = "counts", timed: bool = False) -> pb.LookupRequest:
    key = pb.Key(parts=[pb.KeyPart(string="a")])
    return pb.LookupRequest(frame=number, state=pb.StateRef(application="app", state=state), keys=[key], timed=timed)


def failure(response: pb.LookupResponse) -> KeyholeError:
    (only,) = response.failures
    return from_proto(only.error)


def port_of(server: RunningServer) -> int:
    registry = server.server._registry
    assert registry is not None
    return registry.lookup_port


@pytest.fixture
async def plain() -> AsyncIterator[RunningServer]:
    async with state_server("a", security=HAS_LOOKUP_PORT) as server:
        await server.own(descriptor())
        await server.commit({"a": row(1.0)})
        yield server


async def test_it_answers_as_the_stream_of_grpc_does_and_counts_the_same(plain: RunningServer) -> None:
    stale = pb.LookupRequest(frame=3, state=COUNTS, storage_keys=[b"a"], topic_id="x")
    requests = [asked(1), asked(2, "nothing"), stale]
    async with aio_channel(plain.address) as channel:
        call = query_pb2_grpc.QueryStub(channel).Lookup(iter(requests))
        by_grpc = [response async for response in call]
    registry = plain.server._registry
    assert registry is not None
    reads = registry.tables["app", "counts"].reads
    keys, failed = reads.keys, dict(reads.failed)
    async with calling(port_of(plain)) as caller:
        await caller.open()
        caller.send(*requests)
        assert [await caller.next() for _ in requests] == by_grpc
        caller.send(asked(4, timed=True))
        assert (await caller.next()).server_micros > 0
    assert isinstance(failure(by_grpc[1]), UnknownState)
    assert isinstance(failure(by_grpc[2]), StaleDescriptor)
    assert (reads.keys, dict(reads.failed)) == (2 * keys + 1, {reason: 2 * count for reason, count in failed.items()})


async def test_it_is_announced_with_the_server_s_address_and_not_where_there_is_none(plain: RunningServer) -> None:
    async with state_server("b") as without:
        for server, port in ((plain, port_of(plain)), (without, 0)):
            async with aio_channel(server.address) as channel:
                stub = state_server_pb2_grpc.StateServerStub(channel)
                described = (await stub.Describe(state_server_pb2.DescribeRequest())).status
                owned = await anext(aiter(stub.WatchOwnership(state_server_pb2.WatchOwnershipRequest())))
            assert (described.lookup_port, owned.lookup_port) == (port, port)
    assert port_of(plain)


async def test_a_server_that_stops_says_so_to_those_who_are_connected() -> None:
    async with state_server("a", security=HAS_LOOKUP_PORT) as server, calling(port_of(server)) as caller:
        await caller.open()
        async with aio_channel(server.address) as channel:
            call = query_pb2_grpc.QueryStub(channel).Lookup()
            await call.write(asked(1))
            await call.read()
            stopping = asyncio.ensure_future(server.server.stop())
            assert isinstance(await caller.why_ended(), Draining)
            assert not stopping.done()  # it does not wait for calls that are under way
            call.cancel()
        await stopping


async def test_a_server_whose_port_of_grpc_is_taken_leaves_no_lookup_port_behind(plain: RunningServer) -> None:
    (lookups,) = free_ports(1)
    taken = int(plain.address.rpartition(":")[2])
    second = RunningServer("b", None, None, {"lookups": f"127.0.0.1:{lookups}"}, port=taken)
    with pytest.raises(PortTaken, match="state-server"):
        await second.server.start()
    (await asyncio.start_server(lambda *_: None, "127.0.0.1", lookups)).close()
    port = second.server._lookups
    assert port is not None
    assert port._looking is not None
    await asyncio.wait([port._looking], timeout=LONG_SECONDS)
    assert port._looking.cancelled()


@dataclass
class Guarded:
    directory: Path
    authority: Authority
    server: RunningServer
    proxy: ClientProxy

    def shown(self, certificate: str, token: str) -> Credentials:
        """Of a client. The token's file may be replaced."""
        files = self.authority.issue(certificate)
        return Credentials(
            tls_ca=files.authority,
            tls_certificate=files.certificate,
            tls_key=files.key,
            token_file=str(self.directory / f"{token}.token"),
        )

    def says(self, name: str) -> str:
        return f"Bearer {(self.directory / f'{name}.token').read_text().strip()}"

    def context(self, name: str) -> ssl.SSLContext:
        files = self.authority.issue(name)
        context = ssl.create_default_context(cafile=files.authority)
        context.load_cert_chain(files.certificate, files.key)
        return context

    @asynccontextmanager
    async def calling(self, certificate: str) -> AsyncIterator[Caller]:
        async with calling(port_of(self.server), self.context(certificate)) as caller:
            yield caller


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    authority = Authority(tmp_path)
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "tokens.toml").write_text(make_tokens(tmp_path, "reader", "newer"))
    own, job = authority.issue("server", "127.0.0.1"), authority.issue("job")
    settings = {
        "lookups": "127.0.0.1:0",
        "tls": "on",
        "policy": str(tmp_path / "policy.toml"),
        "tokens": str(tmp_path / "tokens.toml"),
        "tls_certificate": own.certificate,
        "tls_key": own.key,
        "tls_ca": own.authority,
    }
    of_job = Credentials(tls_ca=job.authority, tls_certificate=job.certificate, tls_key=job.key)
    of_proxy = authority.issue("proxy", "127.0.0.1")
    proxy_settings = {
        **{name: of for name, of in settings.items() if name != "lookups"},
        "tls_certificate": of_proxy.certificate,
        "tls_key": of_proxy.key,
    }
    async with state_server("a", security=settings, credentials=of_job) as server:
        await server.own(descriptor())
        await server.commit({"a": row(1.0)})
        async with proxy_of(server.address, security=proxy_settings) as proxy:
            yield Guarded(tmp_path, authority, server, proxy)


async def test_a_caller_is_known_by_its_certificate_or_its_token_and_reads_what_it_may(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    for certificate, says in (("service", ""), ("stranger", guarded.says("reader"))):
        caplog.clear()
        async with guarded.calling(certificate) as caller:
            with caplog.at_level(logging.INFO, "keyhole.audit"):
                await caller.open(says)
                caller.send(asked(1), asked(2, "hidden"), asked(3, "gone"))
                assert list((await caller.next()).values) == [row(1.0)]
                assert isinstance(failure(await caller.next()), PermissionDenied)
                unknown = failure(await caller.next())
        assert isinstance(unknown, UnknownState)
        assert "counts" not in unknown.message
        (refused,) = (record.__dict__ for record in caplog.records if record.name == "keyhole.audit")
        who = "certificate:service" if certificate == "service" else "certificate:stranger"
        assert (refused["who"], refused["method"]) == (who, "/keyhole.v1.Query/Lookup")
        assert (refused["verb"], refused["application"], refused["state"]) == ("read", "app", "hidden")
        assert refused["peer"].startswith("ipv4:127.0.0.1:")


async def test_who_shows_nothing_valid_is_refused_counted_and_in_the_audit_log(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    registry = guarded.server.server._registry
    assert registry is not None
    before = registry.counts.refusals.by_refusal["unauthenticated"]
    with caplog.at_level(logging.INFO, "keyhole.audit"):
        async with guarded.calling("stranger") as caller:
            caller.send(pb.LookupOpening(version=VERSION, authorization="Bearer nothing"))
            assert isinstance(await caller.why_ended(), Unauthenticated)
    assert "its token is not among those that are known" in str([record.__dict__ for record in caplog.records])
    assert registry.counts.refusals.by_refusal["unauthenticated"] == before + 1
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        async with calling(port_of(guarded.server), ssl.create_default_context(cafile=guarded.authority.path)) as bare:
            await bare.open(guarded.says("reader"))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        async with calling(port_of(guarded.server)) as clear:
            await clear.open(guarded.says("reader"))


async def test_a_new_policy_counts_for_open_connections_and_a_token_that_is_gone_ends_its_own(guarded: Guarded) -> None:
    # The certificate says nothing that the policy knows: the token alone lets it read.
    async with guarded.calling("stranger") as caller:
        await caller.open(guarded.says("reader"))
        caller.send(asked(1))
        assert (await caller.next()).values
        (guarded.directory / "policy.toml").write_text(POLICY.replace('"token:reader", ', ""))
        async with asyncio.timeout(LONG_SECONDS):
            while True:
                caller.send(asked(2))
                response = await caller.next()
                if response.failures:
                    break
                await asyncio.sleep(0.05)
        assert isinstance(failure(response), PermissionDenied)
        (guarded.directory / "tokens.toml").write_text(make_tokens(guarded.directory, "other"))
        ended = await caller.why_ended()
        assert isinstance(ended, Unauthenticated)
        assert "expired" in ended.facts


async def read(client: AsyncClient) -> float:
    return float((await client.get("app", "counts", "a")).value.n)


async def test_a_proxy_and_a_client_that_asks_directly_go_by_it_and_by_grpc_once_it_is_announced_no_more(
    plain: RunningServer,
) -> None:
    async with (
        proxy_of(plain.address) as proxy,
        AsyncClient(proxy.address, timeout=LONG_SECONDS) as by_proxy,
        AsyncClient(proxy.address, timeout=LONG_SECONDS, routing="direct") as direct,
    ):
        assert await read(by_proxy) == await read(direct) == 1.0
        await until_reached(direct, plain.address)
        streams = [*streams_of(proxy), *direct_streams_of(direct)]
        await eventually(lambda: all(of._announced for of in streams))
        await until_by_port(streams)
        connections = [of.port for of in streams if of.port is not None]
        assert len(connections) == 2
        assert await read(by_proxy) == await read(direct) == 1.0
        assert all(of.answered for of in connections)
        registry = plain.server._registry
        assert registry is not None
        registry.lookup_port = 0
        registry.changed()
        await eventually(lambda: not any(of.port for of in streams), LONG_SECONDS)
        assert await read(by_proxy) == await read(direct) == 1.0


async def test_reads_go_on_by_grpc_while_the_port_is_cut_off_or_reset_and_by_the_port_again_after_that(
    plain: RunningServer,
) -> None:
    registry = plain.server._registry
    assert registry is not None
    (way,) = free_ports(1)
    with closing(Network()) as network:
        network.link("way", way, port_of(plain))
        registry.lookup_port = way
        async with proxy_of(plain.address) as proxy, AsyncClient(proxy.address, timeout=LONG_SECONDS) as client:
            assert await read(client) == 1.0
            await eventually(lambda: streams_of(proxy)[0].port)
            for harm in (network.cut, network.reset):
                reading = [asyncio.ensure_future(read(client)) for _ in range(20)]
                harm("way")
                reading += [asyncio.ensure_future(read(client)) for _ in range(20)]
                assert await asyncio.gather(*reading) == [1.0] * 40
                network.heal("way")
                await eventually(lambda: streams_of(proxy)[0].port, LONG_SECONDS)
                assert await read(client) == 1.0


async def test_by_tls_and_a_token_reads_are_of_who_asks_and_go_on_with_a_newer_token(guarded: Guarded) -> None:
    credentials = guarded.shown("stranger", "reader")
    async with AsyncClient(
        guarded.proxy.address, timeout=LONG_SECONDS, credentials=credentials, routing="direct"
    ) as client:
        assert await read(client) == 1.0
        await until_reached(client, guarded.server.address)
        (stream,) = direct_streams_of(client)
        await eventually(lambda: stream.port and streams_of(guarded.proxy)[0].port, LONG_SECONDS)
        first = stream.port
        assert await read(client) == 1.0
        with pytest.raises(PermissionDenied):
            await client.get("app", "hidden", "a")
        (guarded.directory / "reader.token").write_text((guarded.directory / "newer.token").read_text())
        async with asyncio.timeout(LONG_SECONDS):
            while stream.port is None or stream.port is first:
                assert await read(client) == 1.0
        assert stream.port._authorization == guarded.says("newer")
        assert await read(client) == 1.0
        assert stream.port.answered
