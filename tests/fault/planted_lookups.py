"""A bug of lookup ports that is planted into a state server: by gRPC it answers rightly."""

from __future__ import annotations

from typing import Any

from keyhole.rpc.lookup_port import LookupPort
from keyhole.rpc.port_calls import AnswerFrame
from keyhole.rpc.read_admission import ReadCall
from keyhole.security.authentication import Caller
from keyhole.v1 import query_pb2
from tests.fault.workload import SPANS


def answer_as_before() -> None:
    """Who asks a lookup port for a committed entry of spans gets the row that it has given first."""
    begin = LookupPort.__init__
    first: dict[bytes, bytes] = {}

    def beginning(self: LookupPort, *of: Any, **more: Any) -> None:
        begin(self, *of, **more)
        self.answer = late(self.answer)

    def late(answer: AnswerFrame) -> AnswerFrame:
        def answering(request: query_pb2.LookupRequest, caller: Caller, call: ReadCall) -> Any:
            response = answer(request, caller, call)
            latest = request.options.consistency == query_pb2.CONSISTENCY_LATEST
            if request.state.state == SPANS and not latest and isinstance(response, query_pb2.LookupResponse):
                for place, (key, row) in enumerate(zip(request.storage_keys, list(response.values), strict=False)):
                    if row:
                        response.values[place] = first.setdefault(key, row)
            return response

        return answering

    LookupPort.__init__ = beginning  # type: ignore[method-assign]
