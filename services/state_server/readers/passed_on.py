"""The server's answers to frames that its readers pass on: whose caller may read, and was let in there."""

from __future__ import annotations

from keyhole.clock import Clock
from keyhole.rpc.frame_ages import LATE
from keyhole.rpc.read_admission import ReadAdmission
from keyhole.security.authentication import ANYBODY
from keyhole.v1 import query_pb2
from services.state_server.servicers.query import QueryServicer


class PassedOnFrames:
    """See the module's text. Event loop's thread only."""

    def __init__(self, queries: QueryServicer, clock: Clock) -> None:
        self._queries = queries
        self._clock = clock

    def answer(self, request: bytes, until: float | None) -> bytes:
        """The LookupResponse to a LookupRequest; its keys are counted here.

        Args:
            until: As in PassedOn. What comes later is dropped unread, as one that a caller sends too late.
        """
        asked = query_pb2.LookupRequest.FromString(request)
        late_seconds = None if until is None else self._clock.monotonic() - until
        call = _LetIn(self._queries.admission, late_seconds)
        return self._queries.frame(asked, ANYBODY, call).SerializeToString()


class _LetIn:
    """A frame that has kept to the limits of callers in the reader. Only how long it has waited since is left to ask.

    Args:
        late_seconds: How long ago its caller has given it up; below 0: it waits still. None: it waits for ever.
    """

    def __init__(self, admission: ReadAdmission, late_seconds: float | None) -> None:
        self._admission = admission
        self._late_seconds = late_seconds

    def begin(self, keys: int, sent_ms: int = 0, timeout_ms: int = 0) -> int:
        if self._late_seconds is None or self._late_seconds < 0:
            return 0
        raise self._admission.dropped(keys, **{LATE: timeout_ms + int(1000 * self._late_seconds)})

    def end(self, keys: int) -> None:
        pass
