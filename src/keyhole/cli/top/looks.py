"""Asks the proxies for their servers, and all of them for their figures: once a round, all at once."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import grpc

from keyhole.errors import KeyholeError, PermissionDenied, Unauthenticated
from keyhole.rpc.channels import sync_channel
from keyhole.rpc.status import from_rpc_error
from keyhole.security.credentials import Credentials
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc, state_pb2, stats_pb2, stats_pb2_grpc

SILENT = "does not answer here"
"""Of whom nothing has come yet, or who can't be reached from here: a proxy may well reach it."""
_NOT_FOR_US = "tells this caller no figures"


class ClusterLook(NamedTuple):
    """What one round has found.

    Attributes:
        at: When, on a clock that never goes back: seconds.
        now_ms: When: milliseconds since 1970, UTC.
        error: Why no proxy has answered; None: one has.
        figures: By address, of those proxies and servers that have answered since the last round.
        figured_at: By address, when its figures came, where that was not `at`.
        silent: By address, why there are none of the others.
    """

    at: float
    now_ms: float
    servers: Sequence[pb.ServerStatus] = ()
    states: Sequence[state_pb2.StateDescriptor] = ()
    figures: Mapping[str, stats_pb2.ReadStatsResponse] = {}
    error: KeyholeError | None = None
    figured_at: Mapping[str, float] = {}
    silent: Mapping[str, str] = {}


class ClusterLooks:
    """Keeps its connections, and the calls without an answer, from round to round. One thread; close it by leaving it.

    Args:
        targets: host:port of client proxies.
        timeout_seconds: Of each call.
        figures_seconds: For how long a round waits for figures. Those that come later are the next round's.
    """

    def __init__(
        self, targets: Sequence[str], credentials: Credentials, timeout_seconds: float, figures_seconds: float
    ) -> None:
        self._targets = targets
        self._credentials = credentials
        self._timeout = timeout_seconds
        self._figures_seconds = min(figures_seconds, timeout_seconds)
        self._channels: dict[str, grpc.Channel] = {}
        self._figures = _LookCalls()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Calls that are under way end with their connections.
        for channel in self._channels.values():
            channel.close()

    def look(self) -> ClusterLook:
        """One round. That nobody answers is no error: it is what there is to show."""
        at, now_ms = time.monotonic(), time.time() * 1000
        # Those that are not the first to answer may still be under way when the next round begins.
        asked = _LookCalls()
        for target in self._targets:
            asked.begin(target, self._status)
        errors = dict[str, KeyholeError]()
        while (one := asked.next(None)) is not None:
            try:
                status: pb.StatusResponse = one.call.result()
                states = self._states(one.key)
            except grpc.RpcError as refused:
                errors[one.key] = from_rpc_error(refused, one.key)
                continue
            servers = [server.address for server in status.servers if not server.unreachable]
            return self._with_figures(ClusterLook(at, now_ms, status.servers, states), [*self._targets, *servers])
        return ClusterLook(at, now_ms, error=next(errors[target] for target in self._targets if target in errors))

    def _status(self, target: str) -> grpc.Future[Any]:
        stub: Any = query_pb2_grpc.QueryStub(self._channel(target))
        call: grpc.Future[Any] = stub.Status.future(pb.StatusRequest(), timeout=self._timeout)
        return call

    def _states(self, target: str) -> Sequence[state_pb2.StateDescriptor]:
        stub: Any = query_pb2_grpc.QueryStub(self._channel(target))
        try:
            states: Sequence[state_pb2.StateDescriptor] = stub.ListStates(
                pb.ListStatesRequest(), timeout=self._timeout
            ).states
        except grpc.RpcError as refused:
            if from_rpc_error(refused, target).reason != "NO_SERVER":
                raise
            return []
        return states

    def _with_figures(self, look: ClusterLook, addresses: Sequence[str]) -> ClusterLook:
        missing = dict.fromkeys(addresses)
        for address in missing:
            self._figures.begin(address, self._read)
        figures, figured_at, silent = dict[str, stats_pb2.ReadStatsResponse](), dict[str, float](), dict[str, str]()
        until = time.monotonic() + self._figures_seconds
        while missing.keys() - figures.keys() - silent.keys():
            one = self._figures.next(max(0.0, until - time.monotonic()))
            if one is None:
                break
            try:
                figures[one.key], figured_at[one.key] = one.call.result(), one.at
                silent.pop(one.key, None)
            except grpc.RpcError as refused:
                why = from_rpc_error(refused, one.key)
                silent[one.key] = _NOT_FOR_US if isinstance(why, (PermissionDenied, Unauthenticated)) else SILENT
        silent |= {address: SILENT for address in missing if address not in figures and address not in silent}
        return look._replace(figures=figures, figured_at=figured_at, silent=silent)

    def _read(self, address: str) -> grpc.Future[Any]:
        stub: Any = stats_pb2_grpc.StatsStub(self._channel(address))
        call: grpc.Future[Any] = stub.Read.future(stats_pb2.ReadStatsRequest(), timeout=self._timeout)
        return call

    def _channel(self, address: str) -> grpc.Channel:
        if address not in self._channels:
            self._channels[address] = sync_channel(address, self._credentials)
        return self._channels[address]


class _EndedCall(NamedTuple):
    key: str
    at: float
    call: grpc.Future[Any]


class _LookCalls:
    """Calls under way, at most one of each key; they are taken in the order in which they end."""

    def __init__(self) -> None:
        self._begun = set[str]()
        self._ended: queue.SimpleQueue[_EndedCall] = queue.SimpleQueue()

    def begin(self, key: str, call: Callable[[str], grpc.Future[Any]]) -> None:
        """Unless one of this key is under way, or has ended and was not taken yet."""
        if key not in self._begun:
            self._begun.add(key)
            call(key).add_done_callback(lambda done: self._ended.put(_EndedCall(key, time.monotonic(), done)))

    def next(self, seconds: float | None) -> _EndedCall | None:
        """The one that ends next; None: none within that time, or there is none. Blocks; without a time until
        the next one ends, as each does by its own deadline.
        """
        if not self._begun:
            return None
        try:
            one = self._ended.get(timeout=seconds)
        except queue.Empty:
            return None
        self._begun.remove(one.key)
        return one
