"""Readers of several tempers, through the proxy; each records every answer and every refusal."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import msgspec

from keyhole.rpc.channels import aio_channel
from keyhole.rpc.status import from_rpc_error
from keyhole.v1 import query_pb2, query_pb2_grpc, state_pb2
from tests.fault.history import OWNER, STANDBY, Asked, Claim, FailedRead, Read
from tests.fault.workload import Row, names

_TIMEOUT_SECONDS = 2.0
_PAUSE_SECONDS = (0.0, 0.06)
_MOST_KEYS = 6

_STALE = {
    "never": query_pb2.STALE_NEVER,
    "when_needed": query_pb2.STALE_WHEN_NEEDED,
    "always": query_pb2.STALE_ALWAYS,
}
_ROLES = {state_pb2.ROLE_OWNER: OWNER, state_pb2.ROLE_STANDBY: STANDBY}

Note = Callable[[Read | FailedRead], None]


@dataclass(frozen=True)
class Temper:
    """What a reader asks for. `monotonic`: it passes the highest epoch that it has seen."""

    name: str
    stale: str = "when_needed"
    monotonic: bool = False
    max_staleness_ms: int = 0


TEMPERS = (
    Temper("plain"),
    Temper("monotonic", monotonic=True),
    Temper("always", "always"),
    Temper("always-monotonic", "always", monotonic=True),
    Temper("never", "never"),
    Temper("never-monotonic", "never", monotonic=True),
    Temper("bounded", max_staleness_ms=3000),
    Temper("always-bounded", "always", max_staleness_ms=1500),
)


def get_many(application: str, state: str, keys: Sequence[str], asked: Asked) -> query_pb2.GetManyRequest:
    """As a message."""
    return query_pb2.GetManyRequest(
        state=query_pb2.StateRef(application=application, state=state),
        keys=[query_pb2.Key(parts=[query_pb2.KeyPart(string=key)]) for key in keys],
        options=query_pb2.ReadOptions(
            min_epoch=asked.min_epoch, stale=_STALE[asked.stale], max_staleness_ms=asked.max_staleness_ms
        ),
    )


def claim(source: state_pb2.Source) -> Claim:
    return Claim(
        source.server,
        _ROLES[source.role],
        source.epoch,
        source.generation,
        source.assignment_version,
        source.unconfirmed,
        source.as_of_ms,
        source.lag_epochs,
    )


def row(answer: query_pb2.Answer) -> Row:
    """The fields, as stored; at position 0 stands the schema's version."""
    return tuple(msgspec.msgpack.decode(answer.value)[1:]) if answer.found else None


class Readers:
    """One of each temper, on an event loop in a thread of its own, from `__init__` to `close`.

    Args:
        note: Called on that thread.
    """

    def __init__(self, target: str, application: str, states: Sequence[str], seed: int, note: Note) -> None:
        self._target = target
        self._application = application
        self._states = states
        self._note = note
        self._seed = seed
        self._closed = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="fault-readers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Waits for the reads that are under way."""
        self._closed.set()
        self._thread.join()

    async def _run(self) -> None:
        async with aio_channel(self._target) as channel:
            stub: Any = query_pb2_grpc.QueryStub(channel)
            await asyncio.gather(*(self._read(stub, temper) for temper in TEMPERS))

    async def _read(self, stub: Any, temper: Temper) -> None:
        draw = random.Random(f"{self._seed} {temper.name}")
        seen = dict.fromkeys(self._states, 0)
        while not self._closed.is_set():
            state = draw.choice(self._states)
            keys = tuple(draw.sample(names(), draw.randint(1, _MOST_KEYS)))
            asked = Asked(seen[state] if temper.monotonic else 0, temper.stale, temper.max_staleness_ms)
            event = await self._ask(stub, temper.name, state, keys, asked)
            if isinstance(event, Read):
                # All states are fed by one query, or else by queries that are each at an epoch of their own.
                seen[state] = max(seen[state], *(claim.epoch for claim in event.claims))
            self._note(event)
            await asyncio.sleep(draw.uniform(*_PAUSE_SECONDS))

    async def _ask(self, stub: Any, reader: str, state: str, keys: tuple[str, ...], asked: Asked) -> Read | FailedRead:
        began = time.monotonic()
        try:
            request = get_many(self._application, state, keys, asked)
            response = await stub.GetMany(request, timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            cause = from_rpc_error(error, self._target)
            message = cause.message[:200]
            return FailedRead(reader, began, time.monotonic(), state, asked, type(cause).reason, message)
        ended = time.monotonic()
        rows = tuple(map(row, response.answers))
        claims = tuple(claim(answer.source) for answer in response.answers)
        return Read(reader, began, ended, state, asked, keys, rows, claims)
