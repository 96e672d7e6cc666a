"""`python -m keyhole.rpc.health_check state-server|client-proxy|metrics-exporter|HOST:PORT [--alive]`

The health command of the images: exit code 0 where it serves, by the standard gRPC health service; a metrics exporter
is asked over HTTP. With --alive: where it lives, which a state server does long before a job gives it key groups; and
the answer may take longer.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import grpc
import msgspec
from grpc_health.v1 import health_pb2, health_pb2_grpc

from keyhole.addresses import joined
from keyhole.config import ClientProxyConfig, MetricsExporterConfig, StateServerConfig, load
from keyhole.errors import KeyholeError
from keyhole.rpc.channels import sync_channel
from keyhole.rpc.liveness import LIVENESS
from keyhole.security.certificates import names_of
from keyhole.security.credentials import PLAIN, Credentials

_SECONDS = 3.0
# On a node whose cores are all busy one that is well may take long to answer, and must not be ended for that.
_ALIVE_SECONDS = 30.0
_EXPORTER = "metrics-exporter"
_USAGE = f"usage: python -m keyhole.rpc.health_check state-server|client-proxy|{_EXPORTER}|HOST:PORT [--alive]"
_KINDS: Mapping[str, type[StateServerConfig | ClientProxyConfig | MetricsExporterConfig]] = {
    "state-server": StateServerConfig,
    "client-proxy": ClientProxyConfig,
    _EXPORTER: MetricsExporterConfig,
}
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - what others may have chosen


def main(arguments: list[str], environ: Mapping[str, str]) -> int:
    """Returns the exit code: 0, 1 (it doesn't serve; standard error says why) or 2 (asked wrongly)."""
    wanted = [one for one in arguments if one != "--alive"]
    if len(wanted) != 1:
        print(_USAGE, file=sys.stderr)  # noqa: T201 - for a person
        return 2
    try:
        address, credentials = address_of(wanted[0], environ), _credentials(wanted[0], environ)
    except KeyholeError as error:
        print(error.message, file=sys.stderr)  # noqa: T201
        return 2
    alive = "--alive" in arguments
    seconds = _ALIVE_SECONDS if alive else _SECONDS
    if wanted[0] == _EXPORTER:
        trouble = _trouble_over_http(address, credentials, seconds)
    else:
        trouble = trouble_at(address, alive=alive, credentials=credentials, seconds=seconds)
    if trouble:
        print(f"{address}: {trouble}", file=sys.stderr)  # noqa: T201
    return 1 if trouble else 0


def address_of(what: str, environ: Mapping[str, str]) -> str:
    """host:port: as given, or where the deployable in this environment listens.

    Raises:
        InvalidConfiguration: Its configuration is wrong.
    """
    if what not in _KINDS:
        return what
    config = load(_KINDS[what], environ)
    return _reached(config.host, config.port)


def _credentials(what: str, environ: Mapping[str, str]) -> Credentials:
    """What the deployable itself has: it is asked under a name of its own certificate, whatever its address is."""
    if what not in _KINDS:
        return PLAIN
    config = load(_KINDS[what], environ)
    own = config.credentials
    if not own.tls:
        return PLAIN
    name = own.tls_server_name or names_of(Path(own.tls_certificate).read_bytes())[0]
    return msgspec.structs.replace(own, tls_server_name=name, token_file="")


def trouble_at(
    address: str, *, alive: bool = False, credentials: Credentials = PLAIN, seconds: float = _SECONDS
) -> str:
    """Why the server there doesn't serve (with `alive`: doesn't live); empty: it does. Blocks for `seconds` at most."""
    request = health_pb2.HealthCheckRequest(service=LIVENESS if alive else "")
    with sync_channel(address, credentials) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            # A busy machine may not take a connection at the first try.
            answer = stub.Check(request, timeout=seconds, wait_for_ready=True)
        except grpc.RpcError as error:
            return f"no answer ({error.code().name}: {error.details()})"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return ""
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def _trouble_over_http(address: str, credentials: Credentials, seconds: float) -> str:
    connection = HTTPConnection(address, timeout=seconds)
    if credentials.tls:
        context = ssl.create_default_context(cafile=credentials.tls_ca or None)
        context.check_hostname = False  # it is this machine
        context.load_cert_chain(credentials.tls_certificate, credentials.tls_key)
        connection = HTTPSConnection(address, timeout=seconds, context=context)
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except OSError as error:
        return f"no answer ({error})"
    finally:
        connection.close()
    return "" if status == HTTPStatus.OK else f"HTTP status {status}"


def _reached(host: str, port: int) -> str:
    return joined(_EVERYWHERE.get(host, host), port)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
