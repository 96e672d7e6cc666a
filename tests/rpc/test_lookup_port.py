"""The lookup port of a real state server: the same answers, rights, audit and figures as on its gRPC port."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from keyhole.errors import (
    Draining,
    KeyholeError,
    PermissionDenied,
    StaleDescriptor,
    Unauthenticated,
    UnknownState,
)
from keyhole.rpc.channels import aio_channel
from keyhole.rpc.port_frames import VERSION
from keyhole.rpc.status import from_proto
from keyhole.security.credentials import Credentials
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc, state_server_pb2, state_server_pb2_grpc
from tests.support.certificates import Authority
from tests.support.lookup_ports import Caller, calling
from tests.support.state_servers import RunningServer, state_server
from tests.support.states import descriptor, row
from tests.support.tokens import make_tokens
from tests.support.waiting import LONG_SECONDS

POLICY = """
[[allow]]
who = ["certificate:job"]
verbs = ["write"]
states = ["app/*"]

[[allow]]
who = ["token:reader", "certificate:service"]
verbs = ["read"]
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
    async with state_server("a", security={"lookups": "127.0.0.1:0"}) as server:
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
    async with state_server("a", security={"lookups": "127.0.0.1:0"}) as server, calling(port_of(server)) as caller:
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


@dataclass
class Guarded:
    directory: Path
    authority: Authority
    server: RunningServer

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
    (tmp_path / "tokens.toml").write_text(make_tokens(tmp_path, "reader", "nobody"))
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
    async with state_server("a", security=settings, credentials=of_job) as server:
        await server.own(descriptor())
        await server.commit({"a": row(1.0)})
        yield Guarded(tmp_path, authority, server)


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
