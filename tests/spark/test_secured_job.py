"""A Spark job, its tasks, a state server and a proxy, with mutual TLS and a policy between them all; real processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from keyhole import Client, Credentials
from keyhole.config import JobConfig
from keyhole.errors import KeyholeError
from keyhole.local.ports import free_ports
from keyhole.local.services import spawn_client_proxy, spawn_state_server
from keyhole.rpc.channels import sync_channel
from keyhole.security.certificates import TlsFiles
from keyhole.spark import queryable
from keyhole.v1 import state_server_pb2, state_server_pb2_grpc
from tests.support.certificates import Authority, tls_environ
from tests.support.streams import RunQuery, Stream
from tests.support.waiting import LONG_SECONDS

POLICY = """
[[allow]]
who = ["certificate:job"]
verbs = ["write"]
states = ["{application}/*"]

[[allow]]
who = ["certificate:proxy"]
verbs = ["platform"]

[[allow]]
who = ["certificate:reader"]
verbs = ["read"]
states = ["{application}/*"]
"""


def _environ(prefix: str, files: TlsFiles, policy: Path) -> dict[str, str]:
    return {**os.environ, **tls_environ(prefix, files), f"{prefix}POLICY": str(policy)}


def _credentials(files: TlsFiles) -> Credentials:
    return Credentials(tls_ca=files.authority, tls_certificate=files.certificate, tls_key=files.key)


def _until(answers: Callable[[], object]) -> None:
    until = time.monotonic() + LONG_SECONDS
    while True:
        try:
            answers()
        except KeyholeError:
            assert time.monotonic() < until
            time.sleep(0.1)
        else:
            return


def test_a_job_writes_under_its_own_certificate_and_another_one_writes_nothing(
    stream: Stream, run_query: RunQuery, kafka: str, application: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY.format(application=application))
    of_server, of_proxy = authority.issue("server", "127.0.0.1"), authority.issue("proxy", "127.0.0.1")
    server, proxy = free_ports(2)
    target = f"127.0.0.1:{server}"
    children = [
        spawn_state_server(
            "server-0",
            server,
            bootstrap_servers=kafka,
            directory=tmp_path / "services",
            environ=_environ("KEYHOLE_STATE_SERVER_", of_server, policy),
        ),
        spawn_client_proxy(
            "proxy",
            proxy,
            servers=[target],
            directory=tmp_path / "services",
            environ=_environ("KEYHOLE_CLIENT_PROXY_", of_proxy, policy),
        ),
    ]
    try:
        with sync_channel(target, _credentials(of_proxy)) as channel:
            stub = state_server_pb2_grpc.StateServerStub(channel)
            stub.Describe(state_server_pb2.DescribeRequest(), timeout=LONG_SECONDS, wait_for_ready=True)

        def config(name: str) -> JobConfig:
            files = authority.issue(name)
            return JobConfig(
                application,
                (target,),
                kafka,
                epoch_deadline_seconds=120,  # who is refused is told at once
                tls="on",
                tls_certificate=files.certificate,
                tls_key=files.key,
                tls_ca=files.authority,
            )

        rows = stream("k string, v bigint", [[{"k": f"k{n}", "v": n} for n in range(20)]])
        run_query(rows, "append", queryable.value("last", key="k", config=config("job")))
        with Client(
            f"127.0.0.1:{proxy}", credentials=_credentials(authority.issue("reader")), timeout=LONG_SECONDS
        ) as client:
            _until(lambda: client.get(application, "last", "k7"))
            assert client.get(application, "last", "k7").value.v == 7
            with pytest.raises(StreamingQueryException):
                run_query(
                    stream("k string, v bigint", [[{"k": "k7", "v": 0}]]),
                    "append",
                    queryable.value("last", key="k", config=config("stranger"), on_new_checkpoint="continue"),
                    checkpoint="another",
                )
            assert client.get(application, "last", "k7").value.v == 7
    finally:
        for child in children:
            child.terminate()
    assert "not allowed" not in (tmp_path / "services" / "proxy.log").read_text()
    refused = [line for line in (tmp_path / "services" / "server-0.log").read_text().splitlines() if "refused" in line]
    assert any("certificate:stranger" in line for line in refused)
