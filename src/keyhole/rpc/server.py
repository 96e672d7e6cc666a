"""What every Keyhole server has: options, health, reflection, errors as statuses, one log line, and a drain.

A deployable's main is then: build the servicers, `add` them, `start`, `run_until` it is to stop.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from keyhole.addresses import joined, port_taken
from keyhole.config import SecuritySettings
from keyhole.rpc.authorization import AccessInterceptor
from keyhole.rpc.channels import Options
from keyhole.rpc.frames import MAX_MESSAGE_BYTES, MAX_RESPONSE_BYTES
from keyhole.rpc.interceptors import ErrorInterceptor
from keyhole.rpc.liveness import LIVENESS
from keyhole.rpc.tls import server_credentials
from keyhole.rpc.workarounds import grpcio_batches as batches
from keyhole.rpc.workarounds import grpcio_unknown_methods as unknown_methods
from keyhole.security.guard import PortGuard

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_SERVER: Options = (
    ("grpc.max_send_message_length", MAX_RESPONSE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # What of the two ends a connection whose peer answers no ping (measured; the other one's default is a minute).
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Clients ping every 10 s, also while idle.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    # What one caller may take: headers, streams, connections that don't get anywhere or that nobody uses.
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.absolute_max_metadata_size", 32 << 10),
    ("grpc.max_concurrent_streams", 1_000),
    ("grpc.max_allowed_incoming_connections", 4_000),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 600_000),
)


class RpcServer:
    """A gRPC server of one deployable. Make and use it inside the running event loop.

    Health starts as NOT_SERVING, for the server as a whole ("") and for each of its services; `set_serving` changes it.
    For LIVENESS it is always SERVING.

    Args:
        name: Of the deployable, for the log: "state-server".
        host: To listen on.
        port: 0: any free one; see `port` after `start`.
        security: Whether it speaks TLS, and who may call; None: everybody on this machine, in plaintext.
        shared_port: Other processes of this deployable listen on the port, too, and share its connections.

    Attributes:
        guard: What `security` made: the same for this deployable's HTTP ports. None: there is none.

    Raises:
        InvalidConfiguration: The security settings contradict each other, or a file of theirs can't be used.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        security: SecuritySettings | None = None,
        *,
        shared_port: bool = False,
    ) -> None:
        self._name = name
        self._host = host
        self._port = port
        self.guard = PortGuard(name, host, security) if security is not None else None
        self._access = AccessInterceptor(self.guard.access) if self.guard is not None and self.guard.access else None
        interceptors = (ErrorInterceptor(), self._access) if self._access else (ErrorInterceptor(),)
        batches.mend()
        # Two servers that don't mean to would share a port's connections at random; the second must fail instead.
        self._server = unknown_methods.server(interceptors, (*_SERVER, ("grpc.so_reuseport", int(shared_port))))
        self._health = health_aio.HealthServicer()
        self._services: list[str] = []
        self._draining = False
        self._stopped = False

    @property
    def port(self) -> int:
        """The port it listens on; known after `start`."""
        return self._port

    @property
    def address(self) -> str:
        """Where the server is found, as host:port. Port 0 is the one that it got once `start` has returned."""
        return joined(self._host, self._port)

    def counted_by(self, note: Callable[[str], None]) -> None:
        """`note` is called with the reason of each refusal because of the caller; see PortGuard."""
        if self.guard is not None:
            self.guard.counted_by(note)

    def add(self, add_to_server: Callable[[Any, Any], None], servicer: object, service: str) -> None:
        """Adds a servicer before `start`.

        Args:
            add_to_server: The generated `add_<Service>Servicer_to_server`.
            service: Its full name: "keyhole.v1.Query".
        """
        add_to_server(servicer, self._server)
        self._services.append(service)

    async def start(self) -> None:
        """Binds and serves.

        Raises:
            PortTaken: Another process listens on the port, or the host is none of this machine's.
        """
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        reflection.enable_server_reflection((*self._services, health_name, reflection.SERVICE_NAME), self._server)
        await self.set_serving(False)
        await self._health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        try:
            if self.guard is not None and self.guard.material is not None:
                credentials = server_credentials(
                    self.guard.material, require_client_certificate=self.guard.client_certificates
                )
                self._port = self._server.add_secure_port(self.address, credentials)
            else:
                self._port = self._server.add_insecure_port(self.address)
        except RuntimeError as error:
            raise port_taken(self._name, self.address) from error
        await self._server.start()
        _log.info("started %s %s", self._name, self.address, extra={"service": self._name, "address": self.address})

    async def set_serving(self, serving: bool) -> None:
        """What the standard health service answers; NOT_SERVING for good once the server drains."""
        up = serving and not self._draining
        state = health_pb2.HealthCheckResponse.SERVING if up else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", *self._services):
            await self._health.set(service, state)

    async def _stop_serving(self) -> None:
        # Not the servicer's own enter_graceful_shutdown, which takes LIVENESS along.
        self._draining = True
        await self.set_serving(False)

    async def stop(self, grace_seconds: float) -> None:
        """Drains: NOT_SERVING, no new calls; calls under way may end within the grace, then are cut. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        await self._stop_serving()
        await self._server.stop(grace_seconds)
        if self._access is not None:
            self._access.close()

    async def run_until(
        self, stopping: asyncio.Event, drain_seconds: float, on_drain: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Serves until it is to stop, then drains.

        Args:
            stopping: Set by whoever wants it to; a deployable's signals do.
            drain_seconds: The grace for calls under way.
            on_drain: Called first, health being NOT_SERVING already: ends streams that would not end by themselves.
        """
        await stopping.wait()
        _log.info("draining", extra={"service": self._name, "address": self.address})
        await self._stop_serving()
        if on_drain is not None:
            await on_drain()
        await self.stop(drain_seconds)
        _log.info("stopped", extra={"service": self._name, "address": self.address})


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Runs a deployable's main coroutine on uvloop, where there is one."""
    # gRPC's poller thread hands each event to the loop's thread, and LMDB gives the interpreter lock up at every get.
    # With the default of 5 ms each of them can wait that long for a busy thread; below 0.1 ms nothing more is gained.
    # Measured: 3,000 gets/s beside a busy thread at 5 ms, 800,000 at 0.1 ms.
    sys.setswitchinterval(0.0001)
    # By default the collector looks through whatever is young after every 700 objects more, and what comes in batches
    # (records, rows, futures) is always young. That was a fifth of a restore's time (measured: 3.1 us a record, 2.4 at
    # 50,000).
    gc.set_threshold(50_000, 20, 100)
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    return uvloop.run(main)
