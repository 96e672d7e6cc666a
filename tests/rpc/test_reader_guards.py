"""Who may read at a lookup port that readers serve: whoever may by the server's own settings."""

from __future__ import annotations

import ssl
import sys
from pathlib import Path

import pytest

from keyhole.errors import PermissionDenied, Unauthenticated, UnknownState
from keyhole.rpc.status import from_proto
from keyhole.security.credentials import Credentials
from keyhole.stores.base import StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from keyhole.v1 import query_pb2 as pb
from tests.support.certificates import Authority
from tests.support.lookup_ports import calling
from tests.support.server_readers import LIMIT_BYTES, port_of, readers_of, until_all_read, until_reported
from tests.support.state_servers import state_server
from tests.support.states import descriptor, row

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reader processes need Linux")

POLICY = """
[[allow]]
who = ["certificate:job"]
verbs = ["write"]
states = ["app/*"]

[[allow]]
who = ["certificate:service"]
verbs = ["read", "direct"]
states = ["app/counts", "app/gone"]
"""


def asked(number: int, state: str) -> pb.LookupRequest:
    key = pb.Key(parts=[pb.KeyPart(string="a")])
    return pb.LookupRequest(frame=number, state=pb.StateRef(application="app", state=state), keys=[key])


async def test_a_reader_knows_callers_by_their_certificates_and_lets_them_read_what_they_may(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "policy.toml").write_text(POLICY)
    own, job = authority.issue("server", "127.0.0.1"), authority.issue("job")
    settings = {
        "lookups": "127.0.0.1:0",
        "reader_processes": 2,
        "tls": "on",
        "policy": str(tmp_path / "policy.toml"),
        "tls_certificate": own.certificate,
        "tls_key": own.key,
        "tls_ca": own.authority,
    }
    of_job = Credentials(tls_ca=job.authority, tls_certificate=job.certificate, tls_key=job.key)

    def context(name: str) -> ssl.SSLContext:
        files = authority.issue(name)
        shown = ssl.create_default_context(cafile=files.authority)
        shown.load_cert_chain(files.certificate, files.key)
        return shown

    engine = LmdbEngine(StoreLimits(tmp_path / "stores", LIMIT_BYTES))
    async with state_server("a", engine=engine, security=settings, credentials=of_job) as server:  # type: ignore[arg-type]
        await until_all_read(server, 1)
        await server.own(descriptor())
        await server.commit({"a": row(1.0)})
        async with calling(port_of(server), context("service")) as caller:
            await caller.open()
            assert [of.connections for of in readers_of(server)] == [1]
            caller.send(asked(1, "counts"), asked(2, "hidden"), asked(3, "gone"))
            got = sorted([await caller.next() for _ in range(3)], key=lambda response: response.frame)
        assert got[0].values == [row(1.0)]
        hidden, gone = (from_proto(response.failures[0].error) for response in got[1:])
        assert isinstance(hidden, PermissionDenied)
        assert isinstance(gone, UnknownState)
        assert "counts" not in str(gone)  # which states there are, the server's answer says to itself alone
        async with calling(port_of(server), context("stranger")) as caller:
            await caller.open()
            caller.send(asked(1, "counts"))
            assert isinstance(from_proto((await caller.next()).failures[0].error), PermissionDenied)
        # One without a certificate gets nothing at all.
        with pytest.raises((ssl.SSLError, ConnectionError, Unauthenticated, EOFError)):
            async with calling(port_of(server), ssl.create_default_context(cafile=own.authority)) as caller:
                await caller.open()
        await until_reported(server)
        registry = server.server._registry
        assert registry is not None
        assert registry.counts.elsewhere.failed["PERMISSION_DENIED"] >= 1
