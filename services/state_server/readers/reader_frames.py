"""How a reader process answers the frames of its lookup port: itself where it can, else by the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from keyhole.clock import Clock
from keyhole.errors import KeyholeError
from keyhole.rpc.explanations import micros
from keyhole.rpc.port_calls import FrameAnswer
from keyhole.rpc.read_admission import ReadCall
from keyhole.rpc.read_requests import key_count, lookup_of_frame, refused_count
from keyhole.security.authentication import Caller
from keyhole.security.policy import Verb
from keyhole.v1 import query_pb2 as pb
from services.state_server.readers.counted import ReaderCounts
from services.state_server.readers.read_tables import ReadTables
from services.state_server.servicers.lookup_responses import refused_frame

PassOn = Callable[[pb.LookupRequest, float | None], asyncio.Future[pb.LookupResponse]]
"""Asks the server, to whom the caller is nobody: that it may is known. It has until then; see PassedOn. Raises
Overloaded."""


class ReaderFrames:
    """See the module's text. Event loop's thread only."""

    def __init__(self, tables: ReadTables, counts: ReaderCounts, clock: Clock, pass_on: PassOn) -> None:
        self._tables = tables
        self._counts = counts
        self._clock = clock
        self._pass_on = pass_on

    def frame(self, request: pb.LookupRequest, caller: Caller, call: ReadCall) -> FrameAnswer:
        """The answer to one frame; see QueryServicer.frame."""
        began = self._clock.monotonic()
        count, reads = refused_count(request), self._counts.of(request.state.application, request.state.state)
        try:
            caller.check(Verb.READ, request.state.application, request.state.state)
            late_ms = call.begin(key_count(request) or 1, request.sent_ms, request.timeout_ms)
            try:
                response = self._tables.answer(lookup_of_frame(request), request.frame)
            finally:
                call.end(count or 1)
            if response is None:
                until = began + (request.timeout_ms - late_ms) / 1000 if request.timeout_ms else None
                passed_on = self._pass_on(request, until)
                # Who answers counts the keys.
                self._counts.passed_on += 1
                return passed_on
        except KeyholeError as error:
            reads.failed[error.reason] += count
            response = refused_frame(request, error, count)
        took = self._clock.monotonic() - began
        if request.timed and not response.failures:
            response.server_micros = max(1, micros(took))
        self._counts.counts.looked_up(reads, count, took)
        return response
