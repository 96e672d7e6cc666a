"""Readers of several tempers, through the proxy; each records every answer and every refusal."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from keyhole import AsyncClient
from keyhole.errors import EpochGone
from keyhole.rpc.channels import aio_channel
from keyhole.rpc.status import from_rpc_error
from keyhole.v1 import query_pb2_grpc
from tests.fault.asked_where import KnownEntry
from tests.fault.direct_readers import DirectReader
from tests.fault.history import Asked, Claim, Counted, FailedRead, Read, Scanned, Watched
from tests.fault.mirroring_readers import MirroringReader, mirrored_states
from tests.fault.questions import claim, drawn, entries_of, get_many, row_of, scan
from tests.fault.readers_of_one import TIMEOUT_SECONDS, Shared
from tests.fault.recount import Question, ScanOf, Shown
from tests.fault.tempers import LOOKUP_SECONDS, TEMPERS, Temper
from tests.fault.watching_readers import SelectingReader, WatchingReader, watched_states
from tests.fault.whole_readers import WholeReader

Note = Callable[[Read | Scanned | Counted | FailedRead | Watched], None]


_ShownAndClaims = tuple[tuple[Shown, ...], tuple[Claim, ...]]


class Readers:
    """One of each temper, one of all of them that goes to the servers itself, one of whole states, and one that watches
    by predicates; and for each state one that watches it and one that mirrors it. They are on an event loop in a thread
    of its own, from `__init__` to `close`.

    Args:
        note: Called on that thread.
        pause_seconds: Each waits up to so long between two reads.
        selected: Which of the states the reader by predicates watches; empty: all that can be.
    """

    def __init__(
        self,
        target: str,
        application: str,
        states: Sequence[str],
        seed: int,
        note: Note,
        pause_seconds: float,
        selected: Sequence[str] = (),
    ) -> None:
        self._target = target
        self._states = states
        self._selected = selected
        self._shared = Shared(application, seed, note, threading.Event(), pause_seconds)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="fault-readers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Waits for the reads that are under way."""
        self._shared.closed.set()
        self._thread.join()

    async def _run(self) -> None:
        async with (
            aio_channel(self._target) as channel,
            AsyncClient(self._target, timeout=TIMEOUT_SECONDS) as client,
            AsyncClient(self._target, timeout=TIMEOUT_SECONDS, routing="direct") as directly,
        ):
            stub: Any = query_pb2_grpc.QueryStub(channel)
            shared = self._shared
            watching = [WatchingReader(client, state, shared) for state in watched_states(self._states)]
            mirroring = [MirroringReader(client, state, shared) for state in mirrored_states(self._states)]
            known: dict[str, Sequence[KnownEntry]] = {}
            whole = WholeReader(client, self._states, shared, known)
            watched = watched_states(self._selected or self._states)
            selecting = [SelectingReader(client, watched, shared, known)] if watched else []
            direct = DirectReader(directly, self._states, shared)
            await asyncio.gather(
                whole.follow(),
                direct.follow(),
                *(reader.follow() for reader in selecting),
                *(self._read(stub, temper) for temper in TEMPERS),
                *(reader.follow() for reader in watching),
                *(reader.follow() for reader in mirroring),
            )

    async def _read(self, stub: Any, temper: Temper) -> None:
        draw = self._shared.draw(temper.name)
        states = temper.of(self._states)
        seen = dict.fromkeys(states, 0)
        while states and not self._shared.closed.is_set():
            state = draw.choice(states)
            event = await self._ask(stub, temper.name, state, drawn(draw, state), temper.asked(seen[state]))
            if isinstance(event, Read):
                # All states are fed by one query, or else by queries that are each at an epoch of their own.
                lacks = [claim.epoch + (claim.lag_epochs if temper.earlier else 0) for claim in event.claims]
                seen[state] = max(seen[state], *lacks)
            elif event.reason == EpochGone.reason:
                seen[state] = 0  # begins again with the last one
            self._shared.note(event)
            await self._shared.pause(draw)

    async def _ask(
        self, stub: Any, reader: str, state: str, questions: tuple[Question, ...], asked: Asked
    ) -> Read | FailedRead:
        """Args: questions: Gets, or one scan."""
        began = time.monotonic()
        try:
            if isinstance(questions[0], ScanOf):
                answers, claims = await self._scan(stub, state, questions[0], asked)
            else:
                answers, claims = await self._get(stub, state, questions, asked)
        except grpc.RpcError as error:
            cause = from_rpc_error(error, self._target)
            message = cause.message[:200]
            return FailedRead(reader, began, time.monotonic(), state, asked, type(cause).reason, message)
        ended = time.monotonic()
        return Read(reader, began, ended, state, asked, questions * (len(claims) // len(questions)), answers, claims)

    async def _get(self, stub: Any, state: str, keys: Sequence[Any], asked: Asked) -> _ShownAndClaims:
        response = await stub.GetMany(get_many(self._shared.application, state, keys, asked), timeout=LOOKUP_SECONDS)
        return tuple(map(row_of, response.answers)), tuple(claim(answer.source) for answer in response.answers)

    async def _scan(self, stub: Any, state: str, of: ScanOf, asked: Asked) -> _ShownAndClaims:
        call = stub.Scan(scan(self._shared.application, state, of, asked), timeout=LOOKUP_SECONDS)
        pages = [page async for page in call]
        claims = tuple(dict.fromkeys(claim(page.source) for page in pages if page.HasField("source")))
        return (entries_of(state, pages),) * len(claims), claims
