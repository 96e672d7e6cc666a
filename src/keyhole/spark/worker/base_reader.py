"""What the owners of keys held before an epoch, for tasks that add to it: an aggregator's, or an operator's."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from keyhole.coordinator.task_stream import Connect, NotTaken
from keyhole.encoding.envelope import Base
from keyhole.encoding.storage_key import group_of
from keyhole.errors import ConflictError, RequestError
from keyhole.protocol.receipts import StageOrder, Target
from keyhole.rpc.convert_stamps import put_written_stamp
from keyhole.rpc.convert_writes import base_from_proto, run_to_proto
from keyhole.rpc.frames import portions
from keyhole.rpc.status import from_rpc_error
from keyhole.v1 import state_server_pb2, state_server_pb2_grpc


class BaseReader:
    """Asks the owners for the accumulators before the epoch."""

    def __init__(self, order: StageOrder, state: str, connect: Connect) -> None:
        self._order = order
        self._state = state
        self._connect = connect

    def bases(self, keys: Sequence[bytes]) -> dict[bytes, Base]:
        """The bases by storage key; keys that had none are missing, as are all where the epoch empties the state.

        Raises:
            NotTaken: An owner did not answer.
        """
        if self._order.empties:
            return {}
        routes = self._order.routes[self._state]
        by_target: dict[int, list[bytes]] = {}
        for key in keys:
            by_target.setdefault(routes[group_of(key)], []).append(key)
        found: dict[bytes, Base] = {}
        for index, of_target in by_target.items():
            target = self._order.targets[index]
            for part in portions(map(len, of_target)):
                asked = of_target[part]
                while asked:
                    bases = self._ask(target, asked)
                    found |= {
                        key: base
                        for key, message in zip(asked, bases, strict=False)
                        if (base := base_from_proto(message)) is not None
                    }
                    asked = asked[len(bases) :]
        return found

    def _ask(self, target: Target, keys: Sequence[bytes]) -> Sequence[state_server_pb2.Base]:
        order = self._order
        request = state_server_pb2.ReadBaseRequest(
            run=run_to_proto(order.run),
            incarnation=target.incarnation,
            assignment_version=order.assignment_version,
            state=self._state,
            storage_keys=keys,
        )
        put_written_stamp(order.stamp, request)
        stub = state_server_pb2_grpc.StateServerStub(self._connect(target.address))
        try:
            return stub.ReadBase(request, timeout=order.deadline_seconds).bases
        except grpc.RpcError as error:
            cause = from_rpc_error(error)
            if isinstance(cause, (RequestError, ConflictError)):
                raise cause from error
            raise NotTaken.by(target, cause) from error
