"""Who may do what, on a real state server and a real proxy, over mutual TLS and tokens."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from keyhole import AsyncClient, Client, Credentials
from keyhole.cli.doctor import examination
from keyhole.cli.main import main
from keyhole.clock import SystemClock
from keyhole.config import ClientProxyConfig
from keyhole.coordinator.fleet import Fleet
from keyhole.discovery import StaticDiscovery
from keyhole.errors import InvalidConfiguration, KeyholeError, PermissionDenied, Unauthenticated, UnknownState
from keyhole.logs import JsonFormatter
from keyhole.metrics.page import MetricsPage
from keyhole.rpc.channels import aio_channel, sync_channel
from keyhole.rpc.status import from_rpc_error
from keyhole.security import tokens
from keyhole.security.guard import PortGuard
from keyhole.security.policy import Verb
from keyhole.v1 import query_pb2, query_pb2_grpc, state_server_pb2_grpc, stats_pb2, stats_pb2_grpc
from keyhole.v1 import state_server_pb2 as pb
from services.client_proxy.app import ClientProxy
from tests.support.certificates import Authority
from tests.support.direct_reads import reaches, until_reached
from tests.support.refusals import longer_and_longer
from tests.support.state_servers import RunningServer, state_server
from tests.support.states import descriptor, row
from tests.support.tokens import make_tokens
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS, eventually

ISSUER, AUDIENCE = "https://issuer.example", "keyhole"

POLICY = """
[[allow]]
who = ["certificate:proxy"]
verbs = ["platform"]

[[allow]]
who = ["certificate:job"]
verbs = ["write"]
states = ["app/*"]

[[allow]]
who = ["token:reader", "jwt:alice"]
verbs = ["read"]
states = ["app/counts"]

[[allow]]
who = ["token:scanner"]
verbs = ["scan"]
states = ["app/*"]

[[allow]]
who = ["token:operator"]
verbs = ["admin"]
states = ["*/*"]
"""

WRITES = ("OpenRun", "Assign", "Release", "ReadBase", "Commit", "Confirm")


@dataclass
class Cluster:
    """One state server with two states, and a proxy."""

    directory: Path
    authority: Authority
    server: RunningServer
    proxy: ClientProxy
    policy: Path
    tokens: Path
    signer: Any

    def token(self, name: str) -> Credentials:
        """Of one who has a token, and connects to the proxy."""
        return Credentials(tls_ca=str(self.authority.path), token_file=str(self.directory / f"{name}.token"))

    def certificate(self, name: str, token: str = "") -> Credentials:
        """Of one who has a certificate, and connects to whichever."""
        files = self.authority.issue(name)
        token_file = str(self.directory / f"{token}.token") if token else ""
        return Credentials(
            tls_ca=files.authority, tls_certificate=files.certificate, tls_key=files.key, token_file=token_file
        )

    def jwt(self, subject: str = "alice", **claims: Any) -> Credentials:
        """Of one who has a JWT."""
        now = int(time.time())
        given = {"sub": subject, "iss": ISSUER, "aud": AUDIENCE, "exp": now + 600, **claims}
        given = {name: value for name, value in given.items() if value is not None}
        path = self.directory / f"{subject}.jwt"
        path.write_text(jwt.encode(given, self.signer, "ES256", headers={"kid": "one"}))
        return Credentials(tls_ca=str(self.authority.path), token_file=str(path))


def secret_of(cluster: Cluster, name: str) -> str:
    return (cluster.directory / f"{name}.token").read_text().strip()


def line_of_a_key(cluster: Cluster) -> str:
    return Path(cluster.authority.issue("server", "127.0.0.1").key).read_text().splitlines()[1]


def key_set(signer: ec.EllipticCurvePrivateKey, kid: str = "one") -> str:
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(signer.public_key()))
    return json.dumps({"keys": [{**public, "kid": kid, "alg": "ES256", "use": "sig"}]})


@asynccontextmanager
async def cluster_in(directory: Path) -> AsyncIterator[Cluster]:
    authority = Authority(directory)
    policy, token_file, keys = directory / "policy.toml", directory / "tokens.toml", directory / "keys.json"
    policy.write_text(POLICY)
    token_file.write_text(make_tokens(directory, "reader", "scanner", "operator", "nobody"))
    signer = ec.generate_private_key(ec.SECP256R1())
    keys.write_text(key_set(signer))
    of_server, of_job = authority.issue("server", "127.0.0.1"), authority.issue("job")
    of_proxy = authority.issue("proxy", "127.0.0.1")
    job = Credentials(tls_ca=of_job.authority, tls_certificate=of_job.certificate, tls_key=of_job.key)
    common = {"tls": "on", "policy": str(policy), "tokens": str(token_file)}
    security = {
        **common,
        "tls_certificate": of_server.certificate,
        "tls_key": of_server.key,
        "tls_ca": of_server.authority,
    }
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(state_server("a", security=security, credentials=job))
        await server.own(descriptor())
        await server.commit({"a": row(1.0)})
        config = ClientProxyConfig(
            servers=(server.address,),
            port=0,
            tls_certificate=of_proxy.certificate,
            tls_key=of_proxy.key,
            tls_ca=of_proxy.authority,
            tls_client_certificates="off",
            jwks=str(keys),
            issuer=ISSUER,
            audience=AUDIENCE,
            **common,
        )
        proxy = ClientProxy(config, StaticDiscovery([server.address]), SystemClock())
        await proxy.start()
        stack.push_async_callback(proxy.stop, 0)
        yield Cluster(directory, authority, server, proxy, policy, token_file, signer)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_in(tmp_path) as running:
        yield running


async def outcome(call: Callable[[], Any]) -> type[BaseException] | None:
    """Of which kind the error is; None: there is none."""
    try:
        await call()
    except KeyholeError as error:
        return type(error)
    except grpc.RpcError as error:
        return type(from_rpc_error(error))
    return None


async def becomes(kind: type[KeyholeError] | None, call: Callable[[], Any]) -> None:
    """Waits until it does: changed files are read a moment later."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await outcome(call) is not kind:  # noqa: ASYNC110 - as a user would
            await asyncio.sleep(0.02)


async def refusal(call: Callable[[], Any]) -> KeyholeError:
    with pytest.raises((KeyholeError, grpc.RpcError)) as caught:
        await call()
    error = caught.value
    return error if isinstance(error, KeyholeError) else from_rpc_error(error)


async def test_a_reader_reads_what_it_may_and_nothing_else(cluster: Cluster) -> None:
    async with AsyncClient(cluster.proxy.address, credentials=cluster.token("reader"), timeout=LONG_SECONDS) as client:
        assert (await client.get("app", "counts", "a")).value.n == 1.0
        assert [of.state for of in await client.list_states()] == ["counts"]
        assert (await client.describe_state("app", "counts")).state == "counts"
        refused = [
            await refusal(lambda: client.get("app", "hidden", "a")),
            await refusal(lambda: client.get("other", "hidden", "a")),
            await refusal(lambda: client.describe_state("app", "hidden")),
            await refusal(client.status),
        ]
    async with aio_channel(cluster.proxy.address, cluster.token("reader")) as channel:
        stub: Any = query_pb2_grpc.QueryStub(channel)
        refused += [
            await refusal(
                stub.Scan(query_pb2.ScanRequest(state=query_pb2.StateRef(application="app", state=state))).read
            )
            for state in ("counts", "hidden")
        ]
        # Within frames, where the stream goes on.
        call = stub.Lookup()
        for frame, state in enumerate(("hidden", "counts")):
            await call.write(
                query_pb2.LookupRequest(
                    frame=frame,
                    state=query_pb2.StateRef(application="app", state=state),
                    keys=[query_pb2.Key(parts=[query_pb2.KeyPart(string="a")])],
                )
            )
            response = await call.read()
            assert [failure.error.reason for failure in response.failures] == ([12] if state == "hidden" else [])
        call.cancel()
    assert all(isinstance(error, PermissionDenied) for error in refused)
    # The same words, whether there is such a state or not.
    assert len({error.message for error in refused}) == 1
    assert all(not error.facts for error in refused)


async def test_who_reads_is_told_how_a_key_is_read_without_where_the_servers_are(cluster: Cluster) -> None:
    request = query_pb2.ExplainRequest(
        state=query_pb2.StateRef(application="app", state="counts"),
        key=query_pb2.Key(parts=[query_pb2.KeyPart(string="a")]),
    )
    async with aio_channel(cluster.proxy.address, cluster.token("reader")) as channel:
        explained = await query_pb2_grpc.QueryStub(channel).Explain(request)
    assert explained.answer.found
    assert [(copy.server, copy.address) for copy in explained.copies] == [("a", "a")]
    assert [hop.address for hop in explained.hops] == ["a"]
    assert cluster.server.address not in str(explained)


async def test_each_identity_has_its_verbs_at_the_proxy(cluster: Cluster) -> None:
    async with AsyncClient(cluster.proxy.address, credentials=cluster.token("scanner"), timeout=LONG_SECONDS) as client:
        assert isinstance(await refusal(lambda: client.get("app", "counts", "a")), PermissionDenied)
        # It may: that the state has no entries is an answer.
        assert not isinstance(await refusal(lambda: client.scan("app", "counts", "a")), PermissionDenied)
    async with AsyncClient(
        cluster.proxy.address, credentials=cluster.token("operator"), timeout=LONG_SECONDS
    ) as client:
        (status,) = await client.status()
        assert status.server == "a"
        assert isinstance(await refusal(lambda: client.get("app", "counts", "a")), PermissionDenied)
    async with AsyncClient(cluster.proxy.address, credentials=cluster.token("nobody"), timeout=LONG_SECONDS) as client:
        assert await client.list_states() == []
        assert isinstance(await refusal(lambda: client.get("app", "counts", "a")), PermissionDenied)


async def test_sql_and_mirrors_need_the_verbs_of_what_they_are_made_of(cluster: Cluster) -> None:
    """docs/adr/sql-has-no-verb-of-its-own.md."""

    who = {"r": ["read"], "s": ["scan"], "rs": ["read", "scan"], "w": ["watch"]}
    entries = [
        f'[[allow]]\nwho = ["jwt:{name}"]\nverbs = {json.dumps(verbs)}\nstates = ["app/counts"]\n'
        for name, verbs in who.items()
    ]
    cluster.policy.write_text(POLICY + "".join(entries))

    async def as_seen(name: str) -> dict[str, Any]:
        """What each way to read gives, or which error."""
        credentials = cluster.jwt(name)
        async with AsyncClient(cluster.proxy.address, credentials=credentials, timeout=LONG_SECONDS) as client:
            await becomes(None, lambda: client.describe_state("app", "counts"))

            async def snapshot() -> int:
                return (await client.snapshot("app/counts")).epoch

            async def mirror() -> int:
                async with client.mirror("app/counts") as mirrored:
                    return len(mirrored)

            def sql() -> list[Any]:
                with Client(cluster.proxy.address, credentials=credentials, timeout=LONG_SECONDS) as threaded:
                    return list(threaded.sql("select k, n from 'app/counts'"))

            ways = {"snapshot": snapshot, "mirror": mirror, "sql": lambda: asyncio.to_thread(sql)}
            return {name: await _seen(way) for name, way in ways.items()}

    denied = PermissionDenied
    assert await as_seen("r") == {"snapshot": 1, "mirror": denied, "sql": denied}
    assert await as_seen("s") == {"snapshot": denied, "mirror": denied, "sql": denied}
    assert await as_seen("rs") == {"snapshot": 1, "mirror": denied, "sql": [("a", 1.0)]}
    assert await as_seen("w") == {"snapshot": denied, "mirror": 1, "sql": denied}


async def _seen(way: Callable[[], Any]) -> Any:
    try:
        return await way()
    except KeyholeError as error:
        return type(error)


async def test_what_else_there_is_is_not_told_to_who_may_see_only_some_of_it(cluster: Cluster) -> None:
    cluster.policy.write_text(POLICY.replace("app/counts", "app/[cz]*"))
    async with AsyncClient(cluster.proxy.address, credentials=cluster.token("reader"), timeout=LONG_SECONDS) as client:
        await becomes(UnknownState, lambda: client.get("app", "zebra", "a"))
        for call in (lambda: client.get("app", "zebra", "a"), lambda: client.describe_state("app", "zebra")):
            error = await refusal(call)
            assert isinstance(error, UnknownState)
            assert "counts" not in error.message + str(error.facts)


def signed_with_the_public_key(claims: dict[str, Any], key: str) -> str:
    """What a verifier takes that lets the token choose the algorithm."""

    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).rstrip(b"=").decode()

    head = part(json.dumps({"alg": "HS256", "typ": "JWT", "kid": "one"}).encode())
    text = f"{head}.{part(json.dumps(claims).encode())}"
    return f"{text}.{part(hmac.digest(key.encode(), text.encode(), 'sha256'))}"


async def test_who_shows_nothing_or_something_that_is_not_valid_is_refused_in_the_same_words(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    (cluster.directory / "wrong.token").write_text("keyhole_" + "x" * 43)
    other = ec.generate_private_key(ec.SECP256R1())
    good = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 600}

    def forged(name: str, token: str) -> Credentials:
        (cluster.directory / name).write_text(token)
        return Credentials(tls_ca=str(cluster.authority.path), token_file=str(cluster.directory / name))

    public = jwt.algorithms.ECAlgorithm.to_jwk(cluster.signer.public_key())
    tried = {
        "nothing": Credentials(tls_ca=str(cluster.authority.path)),
        "wrong": cluster.token("wrong"),
        "expired": cluster.jwt("late", exp=int(time.time()) - 60),
        "unissued": cluster.jwt("unissued", iss="https://elsewhere.example"),
        "unmeant": cluster.jwt("unmeant", aud="somebody-else"),
        "endless": cluster.jwt("endless", exp=None),
        "another key": forged("a", jwt.encode(good, other, "ES256", headers={"kid": "one"})),
        "unknown key": forged("b", jwt.encode(good, other, "ES256", headers={"kid": "two"})),
        "none": forged("c", jwt.encode(good, None, "none", headers={"kid": "one"})),
        "shared secret": forged("d", signed_with_the_public_key(good, public)),
    }
    refusals = set()
    for name, credentials in tried.items():
        async with AsyncClient(cluster.proxy.address, credentials=credentials, timeout=LONG_SECONDS) as client:
            for call in (client.list_states, lambda: client.get("app", "counts", "a")):
                error = await refusal(call)
                assert isinstance(error, Unauthenticated), name
                refusals.add((error.message, str(error.facts)))
    assert len(refusals) == 1
    written = [record for record in caplog.records if record.name == "keyhole.audit"]
    assert len(written) == 2 * len(tried)
    assert {"it shows neither a token nor a certificate", "its token is not valid (ExpiredSignatureError)"} <= {
        record.__dict__["why"] for record in written
    }


async def test_a_watch_has_a_verb_of_its_own_and_is_audited_where_it_is_refused(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncClient(cluster.proxy.address, credentials=cluster.token("reader"), timeout=LONG_SECONDS) as client:
        with caplog.at_level(logging.INFO, "keyhole.audit"):
            assert isinstance(await refusal(lambda: client.watch("app", "counts").page()), PermissionDenied)
        (written,) = [record for record in caplog.records if record.name == "keyhole.audit"]
        assert written.__dict__["method"].endswith("Query/Watch")
        cluster.policy.write_text(POLICY.replace('verbs = ["read"]', 'verbs = ["read", "watch"]'))
        changes = client.watch("app", "counts", "a")

        async def watched() -> None:
            while not await changes.page():
                pass

        await becomes(None, watched)
        assert changes.token
        caplog.clear()
        # Who loses the verb loses what it watches, too, and is told as if it asked now.
        with caplog.at_level(logging.INFO, "keyhole.audit"):
            cluster.policy.write_text(POLICY)
            await becomes(PermissionDenied, changes.page)
        at_watch = [record.__dict__ for record in caplog.records if record.name == "keyhole.audit"]
        assert [(of["who"], of["verb"], of["state"]) for of in at_watch] == [("token:reader", "watch", "counts")]
        await changes.close()


async def test_whoever_asks_the_servers_itself_needs_a_verb_and_what_these_ask_for_and_else_reads_by_the_proxy(
    cluster: Cluster,
) -> None:
    both, token = cluster.certificate("somebody", "reader"), cluster.token("reader")
    ref = query_pb2.WatchRoutesRequest(state=query_pb2.StateRef(application="app", state="counts"))

    async def read(client: AsyncClient) -> float:
        return float((await client.get("app", "counts", "a")).value.n)

    async with AsyncClient(cluster.proxy.address, credentials=both, routing="direct", timeout=LONG_SECONDS) as client:
        assert await read(client) == 1.0
        async with aio_channel(cluster.proxy.address, both) as channel:
            stub: Any = query_pb2_grpc.QueryStub(channel)
            assert isinstance(await refusal(stub.WatchRoutes(ref).read), PermissionDenied)
        assert not reaches(client, cluster.server.address)
    cluster.policy.write_text(POLICY.replace('verbs = ["read"]', 'verbs = ["read", "direct"]'))
    async with aio_channel(cluster.proxy.address, both) as channel:
        stub = query_pb2_grpc.QueryStub(channel)
        await becomes(None, lambda: stub.WatchRoutes(ref).read())
    async with AsyncClient(cluster.proxy.address, credentials=both, routing="direct", timeout=LONG_SECONDS) as client:
        assert await read(client) == 1.0
        await until_reached(client, cluster.server.address)
        assert await read(client) == 1.0
        assert isinstance(await refusal(lambda: client.get("app", "hidden", "a")), PermissionDenied)
        # The servers ask for a certificate, and the proxy doesn't.
        async with AsyncClient(
            cluster.proxy.address, credentials=token, routing="direct", timeout=LONG_SECONDS
        ) as other:
            assert await read(other) == 1.0
            await eventually(lambda: other._connection._servers._servers)
            assert await read(other) == 1.0
            assert not reaches(other, cluster.server.address)
        # Who loses the verb is cut off from the servers, and reads on.
        cluster.policy.write_text(POLICY)
        await eventually(lambda: not client._connection._servers._servers)
        assert await read(client) == 1.0
    # Routes have the state's schema in them, which is for those who may see it.
    async with aio_channel(cluster.proxy.address, both) as channel:
        stub = query_pb2_grpc.QueryStub(channel)
        for verbs, refused in (('"read", "direct"', None), ('"direct"', PermissionDenied)):
            cluster.policy.write_text(POLICY.replace('verbs = ["read"]', f"verbs = [{verbs}]"))
            await becomes(refused, lambda: stub.WatchRoutes(ref).read())


async def test_a_jwt_of_the_issuer_is_known_by_its_subject(cluster: Cluster) -> None:
    async with AsyncClient(cluster.proxy.address, credentials=cluster.jwt(), timeout=LONG_SECONDS) as client:
        assert (await client.get("app", "counts", "a")).value.n == 1.0
    async with AsyncClient(cluster.proxy.address, credentials=cluster.jwt("bob"), timeout=LONG_SECONDS) as client:
        assert isinstance(await refusal(lambda: client.get("app", "counts", "a")), PermissionDenied)


async def test_only_the_application_may_write_and_only_the_platform_may_ask_who_owns_what(cluster: Cluster) -> None:
    target = cluster.server.address
    run = pb.Run(application="app", query="main", generation=1, run_id="run")
    other = pb.Run(application="other", query="main", generation=1, run_id="run")
    requests: dict[str, Any] = {
        "OpenRun": pb.OpenRunRequest,
        "Assign": pb.AssignRequest,
        "Release": pb.ReleaseRequest,
        "ReadBase": pb.ReadBaseRequest,
        "Commit": pb.CommitRequest,
        "Confirm": pb.ConfirmRequest,
    }
    callers = {
        "proxy": cluster.certificate("proxy"),
        "stranger": cluster.certificate("stranger"),
        "operator": cluster.certificate("stranger", "operator"),
        "job": cluster.certificate("job"),
    }
    for name, credentials in callers.items():
        async with aio_channel(target, credentials) as channel:
            stub: Any = state_server_pb2_grpc.StateServerStub(channel)
            for method in WRITES:
                error = await refusal(
                    lambda stub=stub, method=method: getattr(stub, method)(requests[method](run=other))
                )
                assert isinstance(error, PermissionDenied), (name, method)
                if name != "job":
                    error = await refusal(
                        lambda stub=stub, method=method: getattr(stub, method)(requests[method](run=run))
                    )
                    assert isinstance(error, PermissionDenied), (name, method)
            retire = lambda application, stub=stub: stub.RetireQuery(pb.RetireQueryRequest(application=application))  # noqa: E731
            for application in ("other",) if name == "job" else ("other", "app"):
                error = await refusal(lambda retire=retire, application=application: retire(application))
                assert isinstance(error, PermissionDenied), (name, application)
            header = pb.StageRequest(header=pb.StageHeader(run=other))
            error = await refusal(lambda stub=stub, header=header: stub.Stage(iter([header])))
            assert isinstance(error, PermissionDenied), name
            describe = lambda stub=stub: stub.Describe(pb.DescribeRequest())  # noqa: E731
            if name == "stranger":
                assert isinstance(await refusal(describe), PermissionDenied)
            else:
                assert (await describe()).status.server == "a"
            may_write = lambda application, stub=stub: stub.Describe(pb.DescribeRequest(writes=application))  # noqa: E731
            for application in ("other", "app"):
                if (name, application) == ("job", "app"):
                    assert (await may_write(application)).status.server == "a"
                else:
                    error = await refusal(lambda may=may_write, application=application: may(application))
                    assert isinstance(error, PermissionDenied), (name, application)
            drain = lambda look, stub=stub: stub.Drain(pb.DrainRequest(look=look))  # noqa: E731
            if name == "operator":
                assert not (await drain(True)).draining, "nothing has come of those that were refused"
            else:
                for look in (False, True):
                    error = await refusal(lambda drain=drain, look=look: drain(look))
                    assert isinstance(error, PermissionDenied), name
            moves = lambda stub=stub: stub.Move(  # noqa: E731
                pb.MoveRequest(application="app", state="counts", key_groups=[0], undo=True)
            )
            if name == "operator":
                assert not (await moves()).key_groups
            else:
                assert isinstance(await refusal(moves), PermissionDenied), name
            dump = stub.Dump(pb.DumpRequest(application="app", state="counts"))
            if name in ("proxy", "operator"):
                assert [chunk async for chunk in dump]
            else:
                assert isinstance(await refusal(dump.read), PermissionDenied)
    # An assignment may not carry another application's state either.
    async with aio_channel(target, callers["job"]) as channel:
        stub = state_server_pb2_grpc.StateServerStub(channel)
        smuggled = pb.AssignRequest(run=run)
        smuggled.states.add().descriptor.application = "other"
        assert isinstance(await refusal(lambda: stub.Assign(smuggled)), PermissionDenied)


async def test_a_driver_hears_before_it_takes_a_query_who_would_refuse_it(cluster: Cluster) -> None:
    target = cluster.server.address
    refusing: dict[str, list[type[KeyholeError]]] = {}
    for name in ("job", "proxy", "stranger"):
        with contextlib.closing(Fleet(lambda: (target,), cluster.certificate(name))) as fleet:
            seen = await asyncio.to_thread(fleet.observe)
            targets = [sighting.target for sighting in seen.values()]
            refusals = await asyncio.to_thread(fleet.refusing, "app", targets) if seen else fleet.refused.values()
            refusing[name] = [type(error) for error in refusals]
            assert not fleet.mismatched
    assert refusing == {"job": [], "proxy": [PermissionDenied], "stranger": [PermissionDenied]}


async def test_every_method_of_every_service_needs_an_identity_but_health(cluster: Cluster) -> None:
    nobody = aio_channel(cluster.proxy.address, Credentials(tls_ca=str(cluster.authority.path)))
    async with asyncio.timeout(PATIENCE_SECONDS), nobody as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status
        for service in query_pb2.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                path = f"/{service.full_name}/{method.name}"
                kind = "stream" if method.server_streaming else "unary"
                call = getattr(channel, f"{'stream' if method.client_streaming else 'unary'}_{kind}")(path)
                # Nothing is sent on a stream: gRPC's client tells no status to who is just writing when it comes.
                given = call() if method.client_streaming else call(b"")
                error = await refusal(given.read if method.server_streaming else lambda given=given: given)
                assert isinstance(error, Unauthenticated), path
        info: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        assert isinstance(await refusal(info.ServerReflectionInfo().read), Unauthenticated)
    async with aio_channel(cluster.proxy.address, cluster.token("nobody")) as channel:
        info = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = info.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        assert (await asked.read()).list_services_response.service


async def test_a_token_that_is_taken_out_of_the_file_ends_its_streams_and_a_new_policy_counts_for_open_ones(
    cluster: Cluster,
) -> None:
    async with AsyncClient(cluster.proxy.address, credentials=cluster.token("reader"), timeout=LONG_SECONDS) as client:
        assert (await client.get("app", "counts", "a")).found
        cluster.policy.write_text(POLICY.replace('"token:reader", ', ""))
        await becomes(PermissionDenied, lambda: client.get("app", "counts", "a"))
        cluster.policy.write_text(POLICY)
        await becomes(None, lambda: client.get("app", "counts", "a"))
    stub: Any = query_pb2_grpc.QueryStub(aio_channel(cluster.proxy.address, cluster.token("reader")))
    call = stub.Lookup()
    await call.write(query_pb2.LookupRequest(frame=1))
    await call.read()
    cluster.tokens.write_text(make_tokens(cluster.directory, "scanner"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert isinstance(await refusal(call.read), Unauthenticated)


async def test_a_token_that_expires_ends_its_stream_and_reads_go_on_with_the_newer_one(cluster: Cluster) -> None:
    entries = cluster.tokens.read_text()
    cluster.policy.write_text(POLICY.replace('"token:reader"', '"token:reader", "token:brief", "token:longer"'))
    for lives in longer_and_longer(8.0):
        expires = time.monotonic() + lives
        first = make_tokens(cluster.directory, "brief", expires=datetime.now(UTC) + timedelta(seconds=lives))
        second = make_tokens(cluster.directory, "longer")
        cluster.tokens.write_text("\n".join([entries, first, second]))
        brief = cluster.token("brief")
        async with AsyncClient(cluster.proxy.address, credentials=brief, timeout=LONG_SECONDS) as client:
            stub = query_pb2_grpc.QueryStub(aio_channel(cluster.proxy.address, brief))
            call = await _stream_of_one_who_reads(client, stub, expires - lives / 4)
            if call is None:
                continue  # the machine is so slow that the token was over by then
            (cluster.directory / "brief.token").write_text((cluster.directory / "longer.token").read_text())
            answered = 0
            while time.monotonic() < expires + 2 or answered <= 20:
                assert (await client.get("app", "counts", "a")).found
                answered += 1
                await asyncio.sleep(0.02)
        error = await refusal(call.read)
        assert isinstance(error, Unauthenticated)
        assert "expired" in error.facts
        return
    pytest.fail("the token was over before it was shown")


async def _stream_of_one_who_reads(client: AsyncClient, stub: Any, until: float) -> Any:
    """Once a read is answered, a stream whose first frame is, too. None: not by then, on the monotonic clock."""
    while await outcome(lambda: client.get("app", "counts", "a")) is not None:
        if time.monotonic() > until:
            return None
        await asyncio.sleep(0.02)
    call = stub.Lookup()
    try:
        await call.write(query_pb2.LookupRequest(frame=1))
        await call.read()
    except (grpc.RpcError, asyncio.InvalidStateError):
        return None
    return call if time.monotonic() < until else None


async def test_the_proxy_loses_no_server_when_its_certificate_is_renewed(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    for lives in longer_and_longer(8.0):
        caplog.clear()
        if await _renewed_in_time(cluster, lives):
            break
    else:
        pytest.fail("its certificate had ended before it was renewed")
    assert not [record for record in caplog.records if record.message == "server lost"]


async def _renewed_in_time(cluster: Cluster, lives: float) -> bool:
    """A proxy of its own, whose certificate ends after so many seconds, is read from until that has ended, and longer.
    False: on a slow machine it had ended before there was another one.
    """
    ends = time.monotonic() + lives
    soon = cluster.authority.issue("proxy", "127.0.0.1", lives=timedelta(seconds=lives), to="brief")
    config = ClientProxyConfig(
        servers=(cluster.server.address,),
        port=0,
        tls="on",
        tls_certificate=soon.certificate,
        tls_key=soon.key,
        tls_ca=soon.authority,
        policy=str(cluster.policy),
        tokens=str(cluster.tokens),
        tls_client_certificates="off",
    )
    try:
        proxy = ClientProxy(config, StaticDiscovery([cluster.server.address]), SystemClock())
        await proxy.start()
    except InvalidConfiguration:  # it has ended
        return False
    try:
        async with AsyncClient(proxy.address, credentials=cluster.token("reader"), timeout=LONG_SECONDS) as client:
            if await outcome(lambda: client.get("app", "counts", "a", timeout=lives)) is not None:
                return False
            cluster.authority.issue("proxy", "127.0.0.1", to="brief")
            # Files are looked at each second; and a certificate's end is a whole second.
            if time.monotonic() > ends - 3:
                return False
            while time.monotonic() < ends + 2:
                assert (await client.get("app", "counts", "a")).found
                await asyncio.sleep(0.02)
    finally:
        await proxy.stop(0)
    return True


async def test_threads_and_an_http_port_are_asked_the_same(cluster: Cluster) -> None:
    def from_a_thread() -> float:
        with Client(cluster.proxy.address, credentials=cluster.token("reader"), timeout=LONG_SECONDS) as client:
            return client.get("app", "counts", "a").value.n  # type: ignore[no-any-return]

    assert await asyncio.to_thread(from_a_thread) == 1.0

    def by_a_channel() -> KeyholeError:
        with sync_channel(cluster.proxy.address, cluster.token("nobody")) as channel:
            stub = query_pb2_grpc.QueryStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                stub.Status(query_pb2.StatusRequest(), timeout=PATIENCE_SECONDS)
            return from_rpc_error(caught.value)

    assert isinstance(await asyncio.to_thread(by_a_channel), PermissionDenied)
    guard = PortGuard(
        "proxy",
        "127.0.0.1",
        ClientProxyConfig(servers=("a:1",), policy=str(cluster.policy), tokens=str(cluster.tokens)),
    )
    token = secret_of(cluster, "reader")
    caller = guard.http_caller(f"Bearer {token}", None, "peer")
    caller.check(Verb.READ, "app", "counts")
    with pytest.raises(PermissionDenied):
        caller.check(Verb.SCAN, "app", "counts")
    with pytest.raises(Unauthenticated):
        guard.http_caller("", None, "peer")
    with pytest.raises(Unauthenticated):
        guard.http_caller("Basic YTpi", None, "peer")


async def test_figures_are_for_those_who_may_see_them(cluster: Cluster) -> None:
    cluster.policy.write_text(POLICY + '[[allow]]\nwho = ["token:scanner"]\nverbs = ["metrics"]\n')
    async with aio_channel(cluster.proxy.address, cluster.token("scanner")) as channel:
        stub: Any = stats_pb2_grpc.StatsStub(channel)
        await becomes(None, lambda: stub.Read(stats_pb2.ReadStatsRequest()))
        assert (await stub.Read(stats_pb2.ReadStatsRequest())).families
    page = MetricsPage("127.0.0.1:0", figures, cluster.proxy._rpc.guard)
    await page.start()
    trusted = ssl.create_default_context(cafile=str(cluster.authority.path))
    answers = {}
    async with aiohttp.ClientSession() as session:
        for name in ("", "scanner", "operator", "reader"):
            headers = {"Authorization": f"Bearer {secret_of(cluster, name)}"} if name else {}
            async with session.get(f"https://{page.address}/metrics", headers=headers, ssl=trusted) as response:
                answers[name] = response.status
    await page.stop()
    assert answers == {"": 401, "scanner": 200, "operator": 200, "reader": 403}
    async with aio_channel(cluster.proxy.address, cluster.token("reader")) as channel:
        stub = stats_pb2_grpc.StatsStub(channel)
        assert isinstance(await refusal(lambda: stub.Read(stats_pb2.ReadStatsRequest())), PermissionDenied)


async def figures() -> bytes:
    return b""


async def test_no_secret_is_in_a_log_an_error_or_a_repr(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = secret_of(cluster, "reader")
    credentials = cluster.token("reader")
    texts = [repr(credentials), str(credentials)]
    async with AsyncClient(cluster.proxy.address, credentials=credentials, timeout=LONG_SECONDS) as client:
        await client.get("app", "counts", "a")
        texts.append(repr(client))
        error = await refusal(client.status)
        texts += [repr(error), str(error.facts)]
        texts += [repr(await client.describe_state("app", "counts"))]
    cluster.tokens.write_text("[[tokens]]\nname = 'x'\nsha256 = '" + secret + "'\n")
    cluster.policy.write_text("[[allow]]\nwho = ['token:" + secret)
    async with (
        AsyncClient(cluster.proxy.address, credentials=credentials, timeout=LONG_SECONDS) as client,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        while sum("last good" in record.message for record in caplog.records) < 2:
            await client.get("app", "counts", "a")
    key = line_of_a_key(cluster)
    formatter = JsonFormatter()
    texts += [formatter.format(record) for record in caplog.records]
    texts += [repr(cluster.proxy.__dict__), repr(cluster.server.server.__dict__)]
    assert len(texts) > 10
    found = [text for text in texts if secret in text or tokens.digest(secret) in text or key in text]
    assert not found


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("[[allow]]\nwho = ['token:a']\nverbs = ['raed']\nstates = ['*/*']", "raed.*verbs are read, scan"),
        ("[[allow]]\nwho = ['a']\nverbs = ['read']\nstates = ['*/*']", "entry 1: 'a' in who is no identity"),
        ("[[allow]]\nwho = ['token:a']\nverbs = ['read']", "entry 1: states is missing"),
        ("[[allow]]\nwho = ['token:a']\nverbs = ['read']\nstates = ['counts']", "'counts' in states is not APPL"),
        ("[[allow]]\nwho = ['token:a']\nverbs = ['write']\nstates = ['app/counts']", "must be app/"),
        ("[[allow]]\nwho = ['token:a']\nverbs = ['platform']\nstates = ['a/b']", "leave states out"),
        ("[[allow]]\nwho = []\nverbs = ['read']\nstates = ['*/*']", "entry 1: who is empty"),
        ("[[allow]]\nwho = ['*']\nverb = ['read']\nstates = ['*/*']", "policy.toml is not one: .*verb"),
        ("deny = 'all'", "policy.toml is not one"),
        ("[[allow", "policy.toml is not one"),
    ],
)
def test_a_wrong_policy_is_refused_at_the_start_with_what_is_wrong(tmp_path: Path, policy: str, says: str) -> None:
    (tmp_path / "policy.toml").write_text(policy)
    (tmp_path / "tokens.toml").write_text(make_tokens(tmp_path, "a"))
    config = ClientProxyConfig(
        servers=("a:1",), policy=str(tmp_path / "policy.toml"), tokens=str(tmp_path / "tokens.toml")
    )
    with pytest.raises(InvalidConfiguration, match=says):
        PortGuard("proxy", "127.0.0.1", config)


def test_settings_that_contradict_are_refused(tmp_path: Path) -> None:
    policy, keys = tmp_path / "policy.toml", tmp_path / "keys.json"
    policy.write_text(POLICY)
    keys.write_text(key_set(ec.generate_private_key(ec.SECP256R1())))
    token_file = tmp_path / "tokens.toml"
    wrong: dict[str, dict[str, str]] = {
        "POLICY is missing": {"tokens": "x"},
        "needs callers who can say who they are": {"policy": str(policy)},
        "without issuer and audience": {"policy": str(policy), "jwks": str(keys), "issuer": "x"},
        "set jwks too": {"policy": str(policy), "tokens": str(token_file), "issuer": "x"},
        r"tokens' file .*nowhere can't be read": {"policy": str(policy), "tokens": str(tmp_path / "nowhere")},
        "must come from a file or an https URL": {
            "policy": str(policy),
            "jwks": "http://issuer.example/keys",
            "issuer": "x",
            "audience": "y",
        },
        "holds no keys": {"policy": str(policy), "jwks": str(policy), "issuer": "x", "audience": "y"},
    }
    for says, settings in wrong.items():
        with pytest.raises(InvalidConfiguration, match=says):
            PortGuard("proxy", "127.0.0.1", ClientProxyConfig(servers=("a:1",), **settings))  # type: ignore[arg-type]


def test_a_token_is_not_sent_in_the_clear_beyond_this_machine(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    file = str(tmp_path / "token")
    with pytest.raises(InvalidConfiguration, match=r"would be sent to proxy:7400 for everybody"):
        sync_channel("proxy:7400", Credentials(tls=False, token_file=file))
    sync_channel("proxy:7400", Credentials(tls=False, token_file=file, plaintext="allow")).close()
    sync_channel("127.0.0.1:7400", Credentials(tls=False, token_file=file)).close()
    with pytest.raises(InvalidConfiguration, match=r"without TLS has no meaning"):
        sync_channel("proxy:7400", Credentials(tls=False, tls_ca="x"))
    (tmp_path / "token").write_text("two words\nand lines")
    with pytest.raises(InvalidConfiguration, match="holds no token") as caught:
        sync_channel("127.0.0.1:7400", Credentials(tls=False, token_file=file))
    assert "words" not in str(caught.value)


async def test_eventually_all_streams_are_forgotten(cluster: Cluster) -> None:
    interceptor = cluster.proxy._rpc._access
    assert interceptor is not None
    async with AsyncClient(cluster.proxy.address, credentials=cluster.token("reader"), timeout=LONG_SECONDS) as client:
        await client.get("app", "counts", "a")
        assert len(interceptor._streams) == 1
    await eventually(lambda: not interceptor._streams)


async def test_a_doctor_without_the_right_to_see_servers_says_so_and_looks_at_the_rest(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "machine_findings", lambda environ: [])

    async def worst(name: str) -> tuple[int, list[dict[str, str]]]:
        shown = cluster.token(name)
        options = ["--tls-ca", shown.tls_ca, "--token-file", shown.token_file, "--json", "--timeout", "60"]
        code = await asyncio.to_thread(main, ["doctor", "--proxy", cluster.proxy.address, *options])
        return code, json.loads(capsys.readouterr().out)["findings"]

    code, found = await worst("reader")
    assert (code, found[0]["level"]) == (0, "warning")
    assert "may not ask for servers" in found[0]["says"]
    assert not [one for one in found if one["about"].startswith("server ")]
    code, found = await worst("operator")
    assert found[0]["level"] == "ok"
    assert [one for one in found if one["about"].startswith("server ")]
