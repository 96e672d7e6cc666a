"""The state servers as the coordinator speaks to them: typed calls, deadlines, errors of keyhole.errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import grpc

from keyhole.coordinator.decisions import ServerCommit
from keyhole.coordinator.receipts import Target
from keyhole.errors import KeyholeError
from keyhole.rpc.channels import sync_channel
from keyhole.rpc.convert import descriptor_to_proto
from keyhole.rpc.status import from_rpc_error
from keyhole.types import Run, StateDescriptor
from keyhole.v1 import state_server_pb2 as pb
from keyhole.v1 import state_server_pb2_grpc

_Result = TypeVar("_Result")

# A server that is alive answers these at once; one that isn't must not hold up an epoch.
_ASK_SECONDS = 2.0
_WAIT_MS = 2000


def run_to_proto(run: Run) -> pb.Run:
    return pb.Run(application=run.application, query=run.query, generation=run.generation, run_id=run.run_id)


class ServerLink:
    """One address. Thread-safe; every call blocks, and raises KeyholeError only."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = sync_channel(address)
        self._stub = state_server_pb2_grpc.StateServerStub(self._channel)

    def describe(self) -> Target:
        """Who listens there.

        Raises:
            UnavailableError: Nobody, or it is draining.
        """
        status = _call(lambda: self._stub.Describe(pb.DescribeRequest(), timeout=_ASK_SECONDS)).status
        return Target(status.server, self.address, status.incarnation)

    def open_run(self, run: Run, target: Target, grant: str, timeout: float) -> None:
        request = pb.OpenRunRequest(run=run_to_proto(run), incarnation=target.incarnation, grant=grant)
        _call(lambda: self._stub.OpenRun(request, timeout=timeout))

    def assign(
        self,
        run: Run,
        version: int,
        states: Sequence[tuple[StateDescriptor, Sequence[int]]],
        complete: tuple[int, int],
    ) -> tuple[bool, int, int]:
        """Gives the server its key groups. Returns (ready, records restored, records to restore)."""
        request = pb.AssignRequest(
            run=run_to_proto(run),
            assignment_version=version,
            states=[pb.StateAssignment(descriptor=descriptor_to_proto(d), key_groups=groups) for d, groups in states],
            complete_epoch=complete[0],
            complete_commit_time_ms=complete[1],
            wait_ms=_WAIT_MS,
        )
        answer = _call(lambda: self._stub.Assign(request, timeout=_ASK_SECONDS + _WAIT_MS / 1000))
        return answer.ready, answer.restored_records, answer.records_to_restore

    def release(self, run: Run, state: str, groups: Sequence[int], timeout: float) -> None:
        request = pb.ReleaseRequest(run=run_to_proto(run), state=state, key_groups=groups)
        _call(lambda: self._stub.Release(request, timeout=timeout))

    def commit(self, request: pb.CommitRequest, timeout: float) -> pb.CommitResponse:
        return _call(lambda: self._stub.Commit(request, timeout=timeout))

    def abort(self, run: Run, epoch: int) -> None:
        _call(lambda: self._stub.Abort(pb.AbortRequest(run=run_to_proto(run), epoch=epoch), timeout=_ASK_SECONDS))

    def confirm(self, run: Run, version: int, complete: tuple[int, int]) -> str:
        """Renews the lease. Returns the incarnation that answered."""
        request = pb.ConfirmRequest(
            run=run_to_proto(run),
            assignment_version=version,
            complete_epoch=complete[0],
            complete_commit_time_ms=complete[1],
        )
        return _call(lambda: self._stub.Confirm(request, timeout=_ASK_SECONDS)).incarnation

    def close(self) -> None:
        self._channel.close()


def _call(call: Callable[[], _Result]) -> _Result:
    try:
        return call()
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error


def state_commit(state: str, commit: ServerCommit, replace: bool) -> pb.StateCommit:
    return pb.StateCommit(
        state=state,
        winners=[pb.Winner(partition=p, attempt_id=a) for p, a in commit.winners],
        receipts=[
            pb.KeyGroupReceipt(key_group=g.key_group, rows=g.rows, bytes=g.bytes, checksum=g.checksum)
            for g in commit.groups
        ],
        replace=replace,
    )


class Fleet:
    """Links to all servers, and calls to many of them at once."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._links = {address: ServerLink(address) for address in addresses}
        # Two calls to each server at once: a long commit must not hold up the heartbeat that keeps the lease.
        self._pool = ThreadPoolExecutor(2 * max(1, len(addresses)), thread_name_prefix="keyhole-coordinator")

    def link(self, target: Target) -> ServerLink:
        return self._links[target.address]

    def observe(self) -> dict[str, Target]:
        """The servers that answer now, by id."""
        answers = self.each({address: link.describe for address, link in self._links.items()})
        return {answer.server: answer for answer in answers.values() if isinstance(answer, Target)}

    def each(self, calls: Mapping[str, Callable[[], _Result]]) -> dict[str, _Result | KeyholeError]:
        """Makes the calls at once; each ends in its result or its error."""

        def run(call: Callable[[], _Result]) -> _Result | KeyholeError:
            try:
                return call()
            except KeyholeError as error:
                return error

        return dict(zip(calls, self._pool.map(run, calls.values()), strict=True))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        for link in self._links.values():
            link.close()
