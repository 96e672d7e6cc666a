"""Asks a proxy for its servers, and all of them for their figures: once a round, each for a moment at most."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, NamedTuple, Self

import grpc

from keyhole.errors import KeyholeError
from keyhole.rpc.channels import sync_channel
from keyhole.rpc.status import from_rpc_error
from keyhole.security.credentials import Credentials
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc, state_pb2, stats_pb2, stats_pb2_grpc

_AT_ONCE = 16


class ClusterLook(NamedTuple):
    """What one round has found.

    Attributes:
        at: When, on a clock that never goes back: seconds.
        now_ms: When: milliseconds since 1970, UTC.
        error: Why no proxy has answered; None: one has.
        figures: By address, of those proxies and servers that let themselves be asked from here.
    """

    at: float
    now_ms: float
    servers: Sequence[pb.ServerStatus] = ()
    states: Sequence[state_pb2.StateDescriptor] = ()
    figures: Mapping[str, stats_pb2.ReadStatsResponse] = {}
    error: KeyholeError | None = None


class ClusterLooks:
    """Keeps its connections from round to round. One thread; close it by leaving it.

    Args:
        targets: host:port of client proxies.
        timeout_seconds: Of each call.
    """

    def __init__(self, targets: Sequence[str], credentials: Credentials, timeout_seconds: float) -> None:
        self._targets = targets
        self._credentials = credentials
        self._timeout = timeout_seconds
        self._channels: dict[str, grpc.Channel] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="keyhole-top")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Those that are under way end with their connections.
        self._pool.shutdown(wait=False, cancel_futures=True)
        for channel in self._channels.values():
            channel.close()

    def look(self) -> ClusterLook:
        """One round. That nobody answers is no error: it is what there is to show."""
        at, now_ms = time.monotonic(), time.time() * 1000
        error: KeyholeError | None = None
        for target in self._targets:
            try:
                stub: Any = query_pb2_grpc.QueryStub(self._channel(target))
                status = stub.Status(pb.StatusRequest(), timeout=self._timeout)
                states = stub.ListStates(pb.ListStatesRequest(), timeout=self._timeout).states
            except grpc.RpcError as refused:
                error = from_rpc_error(refused, target)
                if error.reason != "NO_SERVER":
                    continue
                states = []
            servers = [server.address for server in status.servers if not server.unreachable]
            return ClusterLook(at, now_ms, status.servers, states, self._figures([*self._targets, *servers]))
        return ClusterLook(at, now_ms, error=error)

    def _figures(self, addresses: Sequence[str]) -> dict[str, stats_pb2.ReadStatsResponse]:
        asked = dict.fromkeys(addresses)
        told = self._pool.map(self._figures_of, [self._channel(address) for address in asked])
        return {address: of for address, of in zip(asked, told, strict=True) if of is not None}

    def _figures_of(self, channel: grpc.Channel) -> stats_pb2.ReadStatsResponse | None:
        stub: Any = stats_pb2_grpc.StatsStub(channel)
        try:
            read: stats_pb2.ReadStatsResponse = stub.Read(stats_pb2.ReadStatsRequest(), timeout=self._timeout)
        except grpc.RpcError:  # out of reach from here, or not for this caller: its rates are not shown
            return None
        return read

    def _channel(self, address: str) -> grpc.Channel:
        if address not in self._channels:
            self._channels[address] = sync_channel(address, self._credentials)
        return self._channels[address]
