"""The server's answers to frames that its readers pass on: whose caller may read, and was let in there."""

from __future__ import annotations

from contextlib import ExitStack

from keyhole.clock import Clock
from keyhole.rpc.port_calls import Peer
from keyhole.rpc.read_admission import NO_LIMITS, ReadAdmission
from keyhole.security.authentication import ANYBODY
from keyhole.v1 import query_pb2
from services.state_server.servicers.query import QueryServicer


class PassedOnFrames:
    """See the module's text. Event loop's thread only."""

    def __init__(self, queries: QueryServicer, clock: Clock) -> None:
        self._queries = queries
        # Readers have kept to the limits of callers: to the server they are one call that never ends.
        self._open = ExitStack()
        self._call = self._open.enter_context(ReadAdmission(NO_LIMITS, clock, "this server").call(Peer(None)))

    def answer(self, request: bytes) -> bytes:
        """The LookupResponse to a LookupRequest; its keys are counted here."""
        asked = query_pb2.LookupRequest.FromString(request)
        return self._queries.frame(asked, ANYBODY, self._call).SerializeToString()
