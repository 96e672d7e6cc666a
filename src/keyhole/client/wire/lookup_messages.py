"""Frames as messages, and messages as answers: the same whichever way they travel."""

from __future__ import annotations

from keyhole.client.wire.coalescing import Coalescer, Frame, Lane
from keyhole.client.wire.segments import Answers
from keyhole.errors import KeyholeError
from keyhole.rpc import convert, status
from keyhole.rpc.frame_ages import LATE, stamp_of
from keyhole.rpc.frames import Failure, failure_from_proto
from keyhole.v1 import query_pb2


class FrameMessages:
    """Those of one connection. What the requests of a lane have in common is made once."""

    def __init__(self, coalescer: Coalescer) -> None:
        self._coalescer = coalescer
        self._lane_bytes = (Lane("", "", ""), b"")
        # Whether the next frame says when it was sent.
        self._stamps = True

    def request(self, frame: Frame, now: float) -> bytes:
        """The frame's LookupRequest. Bytes of one message may stand behind those of another: together they are one with
        the fields of both.
        """
        lane, encoded = self._lane_bytes
        if lane != frame.lane:
            encoded = _encoded(frame.lane)
            self._lane_bytes = frame.lane, encoded
        timeout_ms = max(1, int((frame.deadline - now) * 1000))
        sent_ms, self._stamps = stamp_of(now) if self._stamps else 0, True
        own = query_pb2.LookupRequest(
            frame=frame.number, storage_keys=frame.keys, timeout_ms=timeout_ms, sent_ms=sent_ms
        )
        return own.SerializeToString() + encoded

    def deliver(self, response: query_pb2.LookupResponse, now: float) -> None:
        """Hands a response out to those who wait for it."""
        failures: dict[int, Failure] = {}
        for failure in response.failures:
            if not failure.indexes:
                self._refused(response.frame, status.from_proto(failure.error), now)
                return
            failures.update(dict.fromkeys(failure.indexes, failure_from_proto(failure.error)))
        answers = Answers(
            list(response.values),
            response.sources,
            list(response.source_of),
            failures,
            response.server_micros,
            response,
        )
        self._coalescer.receive(response.frame, answers)

    def _refused(self, number: int, error: KeyholeError, now: float) -> None:
        if LATE in error.facts:
            # If it has not expired here, one of the clocks stood still: the other side is to measure anew.
            self._stamps = False
            self._coalescer.wait_again(number)
            self._coalescer.expire(now)
        else:
            self._coalescer.frame_failed(number, error)


def _encoded(lane: Lane) -> bytes:
    """What the requests of a lane have in common."""
    return query_pb2.LookupRequest(
        state=query_pb2.StateRef(application=lane.application, state=lane.state),
        topic_id=lane.topic_id,
        options=convert.bounds_to_proto(lane.bounds),
        timed=lane.timed,
    ).SerializeToString()
