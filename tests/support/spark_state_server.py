"""Spark's state server as its Python workers see it, by the messages of its protocol, with states of value only."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.proto import StateMessage_pb2 as pb

from tests.support.waiting import LONG_SECONDS

_HEAD = struct.Struct("!ii")
_LENGTH = struct.Struct("!i")
REFUSED = b"refused"
"""Part of a value that it does not take."""
NOW = 1000
"""Milliseconds: the batch's time."""

_TIMERS_AT_ONCE = 3


class SparkStateServer:
    """Serves one client after the other on a Unix socket, from a thread; what it holds stays.

    Attributes:
        values: By key and state, as the client pickles them.
        timers: By time and key.
        gets: How often each state was read.
    """

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.values: dict[tuple[bytes, str], bytes] = {}
        self.timers: set[tuple[int, bytes]] = set()
        self._expired: dict[str, list[tuple[int, bytes]]] = {}
        self.gets: Counter[str] = Counter()
        self._key: bytes | None = None
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Returns once its thread has ended."""
        self._socket.shutdown(socket.SHUT_RDWR)  # to close it alone wakes nobody who waits for a connection
        self._thread.join(LONG_SECONDS)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            # A task that fails leaves answers unread.
            with suppress(ConnectionError), connection, connection.makefile("rb") as requests:
                while len(head := requests.read(_HEAD.size)) == _HEAD.size:
                    request = pb.StateRequest.FromString(requests.read(_HEAD.unpack(head)[1]))
                    answer = self._answer(request).SerializeToString()
                    connection.sendall(_LENGTH.pack(len(answer)) + answer)

    def _answer(self, request: pb.StateRequest) -> Any:
        match request.WhichOneof("method"):
            case "implicitGroupingKeyRequest":
                of = request.implicitGroupingKeyRequest
                self._key = of.setImplicitKey.key if of.HasField("setImplicitKey") else None
                return pb.StateResponse()
            case "stateVariableRequest":
                return self._value(request.stateVariableRequest.valueStateCall)
            case "timerRequest" if request.timerRequest.HasField("expiryTimerRequest"):
                return self._some_expired(request.timerRequest.expiryTimerRequest)
            case "timerRequest":
                return pb.StateResponseWithLongTypeVal(value=NOW)
            case "statefulProcessorCall" if request.statefulProcessorCall.HasField("timerStateCall"):
                assert self._key is not None
                timer = request.statefulProcessorCall.timerStateCall
                if timer.HasField("register"):
                    self.timers.add((timer.register.expiryTimestampMs, self._key))
                else:
                    self.timers.discard((timer.delete.expiryTimestampMs, self._key))
        return pb.StateResponse()

    def _some_expired(self, of: pb.ExpiryTimerRequest) -> pb.StateResponseWithTimer:
        """The next of those that there were when they were first asked for."""
        due = sorted(timer for timer in self.timers if timer[0] <= of.expiryTimestampMs)
        left = self._expired.setdefault(of.iteratorId, due)
        some, left[:] = left[:_TIMERS_AT_ONCE], left[_TIMERS_AT_ONCE:]
        timers = [pb.TimerInfo(key=key, timestampMs=time) for time, key in some]
        return pb.StateResponseWithTimer(statusCode=0 if some else 1, timer=timers, requireNextFetch=bool(left))

    def _value(self, call: pb.ValueStateCall) -> pb.StateResponse:
        if self._key is None:
            return pb.StateResponse(statusCode=1, errorMessage="no key is set")
        place = self._key, call.stateName
        match call.WhichOneof("method"):
            case "exists":
                return pb.StateResponse(statusCode=0 if place in self.values else 2)
            case "get":
                self.gets[call.stateName] += 1
                return pb.StateResponse(value=self.values.get(place, b""))
            case "clear":
                self.values.pop(place, None)
            case "valueStateUpdate" if REFUSED in call.valueStateUpdate.value:
                return pb.StateResponse(statusCode=1, errorMessage="not this one")
            case "valueStateUpdate":
                self.values[place] = call.valueStateUpdate.value
        return pb.StateResponse()
