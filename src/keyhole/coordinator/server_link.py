"""The state servers as the coordinator speaks to them: typed calls, deadlines, errors of keyhole.errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeVar

import grpc

from keyhole.errors import DeadlineExceeded, ServerLost
from keyhole.model.epoch import Run
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import CompleteRecord
from keyhole.protocol.membership import Held, Placement, Sighting
from keyhole.protocol.receipts import Target
from keyhole.rpc.channels import sync_channel
from keyhole.rpc.convert import descriptor_to_proto
from keyhole.rpc.convert_stamps import put_complete_stamp
from keyhole.rpc.convert_writes import run_to_proto
from keyhole.rpc.status import from_rpc_error
from keyhole.rpc.version import PROTOCOL_VERSION, check
from keyhole.security.credentials import PLAIN, Credentials
from keyhole.v1 import state_pb2, state_server_pb2_grpc
from keyhole.v1 import state_server_pb2 as pb

_Result = TypeVar("_Result")

# A server that is alive answers these at once; one that isn't must not hold up an epoch.
_ASK_SECONDS = 2.0
# One that asks Kafka first gives that up a while before (services.state_server.kafka_rights).
_RIGHTS_SECONDS = 15.0


class ServerShare(NamedTuple):
    """What one server is to do for a state: key groups to own, and others to follow."""

    descriptor: StateDescriptor
    owned: Sequence[int]
    followed: Sequence[int]


class Confirmed(NamedTuple):
    """A server's answer to a heartbeat: which incarnation it is, and which of the copies that it follows are warm."""

    incarnation: str
    warm: Held


class ServerLink:
    """One address. Thread-safe; every call blocks, and raises KeyholeError only. Timeouts are in seconds."""

    def __init__(self, address: str, credentials: Credentials = PLAIN) -> None:
        self.address = address
        # False from a call that was not answered in time until the next answer: nobody should wait for it again.
        self.responsive = True
        self._channel = sync_channel(address, credentials)
        self._stub = state_server_pb2_grpc.StateServerStub(self._channel)

    def describe(self, writes: str = "", query: str = "", states: Collection[str] = ()) -> Sighting:
        """Who listens there.

        Args:
            writes: The application that the caller is about to write; empty: none.
            query: Whose states the server would write for it; empty: it does not ask Kafka whether it may.
            states: Their names.

        Raises:
            UnavailableError: Nobody. Or Kafka does not answer the server.
            ProtocolMismatch: A server of another version.
            Unauthenticated, PermissionDenied: It does not know the caller; or does not let it do that.
            InvalidConfiguration: Kafka's rules don't let the server do its part.
        """
        request = pb.DescribeRequest(writes=writes, brief=True, query=query, states=states)
        timeout = _RIGHTS_SECONDS if query else _ASK_SECONDS
        status = self._call(lambda: self._stub.Describe(request, timeout=timeout)).status
        check(status.protocol_version, f"state server {status.server} ({self.address})")
        target = Target(status.server, self.address, status.incarnation)
        ending = status.draining and not status.goes_on
        placements = tuple(Placement(of.application, of.state, frozenset(of.key_groups)) for of in status.placements)
        return Sighting(target, draining=status.draining, ending=ending, replica=status.replica, placements=placements)

    def confirms(self, application: str, query: str) -> bool:
        """Whether it owns key groups of the query, and has heard of its coordinator within its lease.

        Raises:
            UnavailableError: Nobody answers.
            Unauthenticated, PermissionDenied: It does not know the caller.
        """
        status = self._call(lambda: self._stub.Describe(pb.DescribeRequest(), timeout=_ASK_SECONDS)).status
        return any(
            of.source.role == state_pb2.ROLE_OWNER and not of.source.unconfirmed
            for of in status.holdings
            if (of.descriptor.application, of.descriptor.query) == (application, query)
        )

    def open_run(self, run: Run, target: Target, grant: str, timeout: float) -> None:
        request = pb.OpenRunRequest(run=run_to_proto(run), incarnation=target.incarnation, grant=grant)
        request.protocol_version = PROTOCOL_VERSION
        self._call(lambda: self._stub.OpenRun(request, timeout=timeout))

    def assign(
        self,
        run: Run,
        version: int,
        states: Sequence[ServerShare],
        complete: CompleteRecord | None,
        wait_seconds: float,
    ) -> tuple[bool, int, int]:
        """Gives the server its key groups. Returns (all it owns is ready, records restored, records to restore).

        Args:
            wait_seconds: Until it answers that it isn't ready yet.
        """
        request = pb.AssignRequest(
            run=run_to_proto(run),
            assignment_version=version,
            states=[
                pb.StateAssignment(
                    descriptor=descriptor_to_proto(share.descriptor),
                    key_groups=share.owned,
                    standby_key_groups=share.followed,
                )
                for share in states
            ],
            wait_ms=round(wait_seconds * 1000),
        )
        put_complete_stamp(complete, request)
        answer = self._call(lambda: self._stub.Assign(request, timeout=_ASK_SECONDS + wait_seconds))
        return answer.ready, answer.restored_records, answer.records_to_restore

    def release(self, run: Run, state: str, groups: Sequence[int], version: int, timeout: float) -> None:
        request = pb.ReleaseRequest(run=run_to_proto(run), state=state, key_groups=groups, assignment_version=version)
        self._call(lambda: self._stub.Release(request, timeout=timeout))

    def commit(self, request: pb.CommitRequest, timeout: float) -> pb.CommitResponse:
        return self._call(lambda: self._stub.Commit(request, timeout=timeout))

    def confirm(
        self,
        run: Run,
        version: int,
        complete: CompleteRecord | None,
        *,
        alone: bool,
        epochs: Sequence[state_pb2.EpochTimes],
    ) -> Confirmed:
        """Renews the lease.

        Args:
            alone: No other server could take its key groups over.
            epochs: What the last ones took, for who asks the server.
        """
        request = pb.ConfirmRequest(
            run=run_to_proto(run),
            assignment_version=version,
            alone=alone,
            epochs=epochs,
        )
        put_complete_stamp(complete, request)
        answer = self._call(lambda: self._stub.Confirm(request, timeout=_ASK_SECONDS))
        return Confirmed(answer.incarnation, {of.state: frozenset(of.key_groups) for of in answer.warm})

    def close(self) -> None:
        self._channel.close()

    def _call(self, call: Callable[[], _Result]) -> _Result:
        try:
            answer = call()
        except grpc.RpcError as error:
            cause = from_rpc_error(error, self.address)
            self.responsive = not isinstance(cause, DeadlineExceeded)
            raise cause from error
        except ValueError as error:  # what gRPC says of a closed channel
            raise ServerLost(f"the link to server {self.address} was closed: it is gone") from error
        self.responsive = True
        return answer
