"""A reader of whole states: it scans all keys or a range of them, by a predicate or without, counts, and takes
snapshots of several states.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from keyhole import AsyncClient
from keyhole import aggregates as agg
from keyhole.client.snapshots import AsyncStateSnapshot
from keyhole.errors import KeyholeError
from tests.fault.asked_where import KnownEntry, drawn_where
from tests.fault.history import Asked, Claim, Counted, FailedRead, KeysOf, Read, Scanned
from tests.fault.questions import claim_of, predicate
from tests.fault.readers_of_one import TIMEOUT_SECONDS, Shared
from tests.fault.recount import SHAPES
from tests.fault.states import INDEXED
from tests.fault.workload import BY_CLOCK, OPERATORS, names

WHOLE = "whole"
# Each of its reads costs as much as some ten of keys.
_PAUSES = 4
_MOST_STATES = 2
_MOST_KEYS = 6
_STALE = ("when_needed", "when_needed", "never", "always")


class WholeReader:
    """Of all states that have keys. On the event loop of its client.

    Without a snapshot, half of its reads ask for the highest epoch that it has seen. So it is known of which epochs a
    key group may be that has no entry.

    Args:
        shared: Between two reads it waits for up to four times as long as others.
        known: By state, what a scan has last found: what predicates are made of.
    """

    def __init__(
        self,
        client: AsyncClient,
        states: Sequence[str],
        shared: Shared,
        known: MutableMapping[str, Sequence[KnownEntry]],
    ) -> None:
        self._client = client
        self._shared = shared
        self._states = [of for of in states if of not in OPERATORS]
        self._indexed = [of for of in self._states if of in INDEXED]
        self._draw = shared.draw(WHOLE)
        self._known = known
        self._seen = 0

    async def follow(self) -> None:
        """Until it is closed."""
        while self._states and not self._shared.closed.is_set():
            if self._draw.random() < 0.5:
                await self._snapshot()
            else:
                await self._last()
            await self._shared.pause(self._draw, _PAUSES)

    async def _last(self) -> None:
        """One state as it is: committed, or with what is staged. Every other time one that has an index."""
        state = self._draw.choice(self._indexed if self._indexed and self._draw.random() < 0.5 else self._states)
        latest = state not in BY_CLOCK and self._draw.random() < 0.25
        stale = "when_needed" if latest else self._draw.choice(_STALE)
        # Where that is nowhere yet, the read waits for it: at other times it takes what there is.
        least = self._seen if self._draw.random() < 0.5 else 0
        asked = Asked(least, stale, latest=latest)
        options = {"min_epoch": least, "stale": stale, "consistency": "latest" if latest else "committed"}
        # In order, what is fetched later of a key group may be of a later epoch: it is asked for as of one.
        await self._read(self._client, state, asked, self._keys(state), options)

    async def _snapshot(self) -> None:
        """Several states as of one epoch: each is scanned or counted, and some of its keys are read."""
        states = self._draw.sample(self._states, min(_MOST_STATES, len(self._states)))
        began = time.monotonic()
        try:
            paths = [f"{self._shared.application}/{state}" for state in states]
            snapshot = await self._client.snapshot(*paths, timeout=TIMEOUT_SECONDS)
        except KeyholeError as error:
            self._failed(began, states[0], Asked(0), error)
            return
        asked = Asked(0, as_of_epoch=snapshot.epoch)
        order = self._draw.choice(("", "ascending", "descending"))
        await asyncio.gather(
            *(self._read(snapshot, state, asked, self._keys(state, order), {}) for state in states),
            *(self._keys_of(snapshot, state, asked) for state in states if not SHAPES[state].entries),
        )

    def _keys(self, state: str, order: str = "") -> KeysOf:
        """All keys, or a range of them, and of these all entries, or some. A broadcast state is one key, of which there
        is no range.
        """
        bounds = sorted(self._draw.sample(names(state), 2))
        start = bounds[0] if self._draw.random() < 0.4 and not SHAPES[state].scans_keys else None
        stop = bounds[1] if self._draw.random() < 0.4 and not SHAPES[state].scans_keys else None
        known = self._known.get(state)
        where = drawn_where(self._draw, state, known) if known and self._draw.random() < 0.5 else None
        return KeysOf(start, stop, order, where)

    async def _read(
        self, reads: AsyncClient | AsyncStateSnapshot, state: str, asked: Asked, of: KeysOf, options: Mapping[str, Any]
    ) -> None:
        """A scan, or a count. Of a client, or of a snapshot."""
        where = predicate(state, of.where)
        given = {"start": of.start, "stop": of.stop, "where": where, "timeout": TIMEOUT_SECONDS, **options}
        counts, began = self._draw.random() < 0.3, time.monotonic()
        try:
            if counts:
                noted: Scanned | Counted = await self._count(reads, state, asked, of, given)
            else:
                noted = await self._scan(reads, state, asked, of, given)
        except KeyholeError as error:
            self._failed(began, state, asked, error)
        else:
            self._seen = max(self._seen, *(claim.epoch for claim in noted.claims), 0)
            self._shared.note(noted)

    async def _count(
        self, reads: AsyncClient | AsyncStateSnapshot, state: str, asked: Asked, of: KeysOf, options: Any
    ) -> Counted:
        began = time.monotonic()
        found = await reads.aggregate(self._shared.application, state, {"n": agg.count()}, **options)
        claims = tuple(map(claim_of, found.sources))
        return Counted(WHOLE, began, time.monotonic(), state, asked, of, found["n"], claims)

    async def _scan(
        self, reads: AsyncClient | AsyncStateSnapshot, state: str, asked: Asked, of: KeysOf, options: Any
    ) -> Scanned:
        began = time.monotonic()
        options = {**options, "ordered": of.order == "ascending", "descending": of.order == "descending"}
        claims: dict[Claim, int] = {}
        entries = []
        async with reads.scan_all(self._shared.application, state, **options) as scan:
            async for entry in scan:
                # The entries of a broadcast state are its keys.
                key, map_key = (entry.key, entry.map_key) if entry.key != () else (entry.map_key, None)
                number = claims.setdefault(claim_of(entry.source), len(claims))
                entries.append((key, map_key, tuple(dict(entry.value).values()), number))
        if entries and of.where is None:
            self._known[state] = [entry[:3] for entry in entries]
        return Scanned(WHOLE, began, time.monotonic(), state, asked, of, tuple(entries), tuple(claims))

    async def _keys_of(self, snapshot: AsyncStateSnapshot, state: str, asked: Asked) -> None:
        """Some keys of one value each."""
        keys, began = self._draw.sample(names(state), _MOST_KEYS), time.monotonic()
        try:
            answers = await snapshot.get_many(self._shared.application, state, keys, timeout=TIMEOUT_SECONDS)
        except KeyholeError as error:
            self._failed(began, state, asked, error)
            return
        rows = tuple(tuple(dict(answer.value).values()) if answer.found else None for answer in answers)
        claims = tuple(claim_of(answer.source) for answer in answers)
        self._shared.note(Read(WHOLE, began, time.monotonic(), state, asked, tuple(keys), rows, claims))

    def _failed(self, began: float, state: str, asked: Asked, error: KeyholeError) -> None:
        self._shared.note(FailedRead(WHOLE, began, time.monotonic(), state, asked, error.reason, str(error)[:200]))
