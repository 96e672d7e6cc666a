"""State servers, proxies and metrics exporters as child processes on this machine."""

from __future__ import annotations

import contextlib
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from keyhole.local.processes import Child
from keyhole.rpc.channels import sync_channel
from keyhole.v1 import state_server_pb2, state_server_pb2_grpc

_START_TIMEOUT_SECONDS = 120
_ASK_SECONDS = 1.0


def start_state_server(
    name: str,
    port: int,
    *,
    bootstrap_servers: str,
    directory: Path,
    environ: Mapping[str, str],
    module: str = "services.state_server",
) -> Child:
    """A state server on loopback; returns once it answers (it is not *ready* before a job gives it key groups).

    Args:
        directory: Holds its stores (`<name>/`) and its log (`<name>.log`).
        environ: The base of its environment: PATH and the like, and any further KEYHOLE_STATE_SERVER_*.
        module: What to run; tests have one that stops at chosen steps.

    Raises:
        MachineError: It did not come up; the message has the end of its log.
    """
    child = spawn_state_server(
        name, port, bootstrap_servers=bootstrap_servers, directory=directory, environ=environ, module=module
    )
    return _healthy(child, lambda: answers(f"127.0.0.1:{port}"))


def spawn_state_server(
    name: str,
    port: int,
    *,
    bootstrap_servers: str,
    directory: Path,
    environ: Mapping[str, str],
    module: str = "services.state_server",
    logs: Path | None = None,
) -> Child:
    """As `start_state_server`, but doesn't wait until it answers. `logs`: the folder of its log, if it is another."""
    settings = {
        "KEYHOLE_STATE_SERVER_ID": name,
        "KEYHOLE_STATE_SERVER_PORT": str(port),
        "KEYHOLE_STATE_SERVER_DIRECTORY": str(directory / name),
        "KEYHOLE_STATE_SERVER_BOOTSTRAP_SERVERS": bootstrap_servers,
    }
    return _start(name, module, logs or directory, {**environ, **settings})


def start_client_proxy(
    name: str, port: int, *, servers: Sequence[str], directory: Path, environ: Mapping[str, str]
) -> Child:
    """A client proxy on loopback; returns once it serves: it has reached at least one of the servers.

    Raises:
        MachineError: It did not come up; the message has the end of its log.
    """
    child = spawn_client_proxy(name, port, servers=servers, directory=directory, environ=environ)
    return _healthy(child, lambda: serves(f"127.0.0.1:{port}"))


def spawn_client_proxy(
    name: str,
    port: int,
    *,
    servers: Sequence[str],
    directory: Path,
    environ: Mapping[str, str],
    module: str = "services.client_proxy",
) -> Child:
    """As `start_client_proxy`, but doesn't wait until it serves. `module`: see `start_state_server`."""
    settings = {
        "KEYHOLE_CLIENT_PROXY_PORT": str(port),
        "KEYHOLE_CLIENT_PROXY_SERVERS": ",".join(servers),
    }
    return _start(name, module, directory, {**environ, **settings})


def spawn_metrics_exporter(
    name: str,
    port: int,
    *,
    servers: Sequence[str],
    proxies: Sequence[str],
    coordinators: Sequence[str],
    bootstrap_servers: str,
    directory: Path,
    environ: Mapping[str, str],
) -> Child:
    """A metrics exporter on loopback; doesn't wait until it answers."""
    settings = {
        "KEYHOLE_METRICS_EXPORTER_PORT": str(port),
        "KEYHOLE_METRICS_EXPORTER_SERVERS": ",".join(servers),
        "KEYHOLE_METRICS_EXPORTER_PROXIES": ",".join(proxies),
        "KEYHOLE_METRICS_EXPORTER_COORDINATORS": ",".join(coordinators),
        "KEYHOLE_METRICS_EXPORTER_BOOTSTRAP_SERVERS": bootstrap_servers,
        "KEYHOLE_METRICS_EXPORTER_KAFKA_INTERVAL_SECONDS": "5",
    }
    return _start(name, "services.metrics_exporter", directory, {**environ, **settings})


def exposes(address: str) -> bool:
    """Whether a metrics exporter answers there."""
    # Not through a proxy that the environment names: it is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with contextlib.suppress(OSError), opener.open(f"http://{address}/healthz", timeout=_ASK_SECONDS) as answer:
        return bool(answer.status == 200)
    return False


def answers(address: str) -> bool:
    """Whether a state server answers there."""
    with sync_channel(address) as channel:
        stub = state_server_pb2_grpc.StateServerStub(channel)
        try:
            stub.Describe(state_server_pb2.DescribeRequest(), timeout=_ASK_SECONDS)
        except grpc.RpcError:
            return False
        return True


def serves(address: str) -> bool:
    """Whether the standard health service there says SERVING."""
    with sync_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=_ASK_SECONDS)
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _start(name: str, module: str, directory: Path, environ: Mapping[str, str]) -> Child:
    directory.mkdir(parents=True, exist_ok=True)
    # -P: a folder `services` in the caller's working directory is none of ours.
    return Child(name, [sys.executable, "-P", "-m", module], directory / f"{name}.log", environ)


def _healthy(child: Child, healthy: Callable[[], bool]) -> Child:
    try:
        child.wait_healthy(healthy, _START_TIMEOUT_SECONDS)
    except BaseException:
        child.kill()
        raise
    return child
