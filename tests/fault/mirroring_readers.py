"""Readers that mirror: each has a copy of one state in this process, and reads it as others read servers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from keyhole import AsyncClient, Entries, Source
from keyhole.client import AsyncMirror
from keyhole.errors import KeyholeError
from tests.fault.history import Asked, Claim, Read
from tests.fault.questions import drawn
from tests.fault.readers_of_one import TIMEOUT_SECONDS, ReaderOfOne, Shared
from tests.fault.recount import EntryOf, Question, ScanOf, Shown
from tests.fault.workload import BY_CLOCK, OPERATORS

MIRRORING = "mirroring"
_ANY = Asked(0)


def mirrored_states(states: Sequence[str]) -> list[str]:
    """Those whose entries don't expire by clocks, which the harness sets."""
    return [of for of in states if of not in BY_CLOCK and of not in OPERATORS]


class MirroringReader(ReaderOfOne):
    """By a client of others, too."""

    def __init__(self, client: AsyncClient, state: str, shared: Shared) -> None:
        super().__init__(MIRRORING, client, state, shared)
        self._path = f"{shared.application}/{state}"
        self._begun = 0

    async def follow(self) -> None:
        """Until it is closed. A mirror that can't begin, or has ended, is followed by another one."""
        while not self._shared.closed.is_set():
            began = time.monotonic()
            self._begun += 1
            try:
                async with self._client.mirror(self._path, timeout=TIMEOUT_SECONDS) as mirror:
                    while not self._shared.closed.is_set():
                        began = time.monotonic()
                        self._shared.note(self._read(mirror, began, drawn(self._draw, self._state)))
                        await self._pause()
            except KeyholeError as error:
                self._failed(self._name, began, error.reason, error)
                await self._pause()

    @property
    def _name(self) -> str:
        """Of one mirror, and so of one that never goes backwards."""
        return f"{MIRRORING} {self._begun}"

    def _read(self, mirror: AsyncMirror[Any], began: float, questions: tuple[Question, ...]) -> Read:
        rows: tuple[Shown, ...]
        if isinstance(questions[0], ScanOf):
            entries = _scanned(mirror, questions[0])
            rows, claims = (_entries(entries),), (_claim(entries.source),)
        else:
            keys = [(of.key, of.map_key) if isinstance(of, EntryOf) else of for of in questions]
            answers = mirror.get_many(keys)  # type: ignore[arg-type]  # no scan is among them
            rows = tuple(_fields(answer.value) if answer.found else None for answer in answers)
            claims = tuple(_claim(answer.source) for answer in answers)
        return Read(self._name, began, time.monotonic(), self._state, _ANY, questions, rows, claims)


def _scanned(mirror: AsyncMirror[Any], of: ScanOf) -> Entries:
    return mirror.scan(of.key or (), start=of.start, stop=of.stop, descending=of.descending, limit=of.limit or None)


def _entries(entries: Entries) -> Shown:
    return tuple((map_key, *_fields(value)) for map_key, value in entries)


def _fields(value: Any) -> tuple[int, ...]:
    return tuple(dict(value).values())


def _claim(source: Source) -> Claim:
    as_of_ms = 0 if source.as_of is None else round(source.as_of.timestamp() * 1000)
    return Claim(source.server, source.role, source.epoch, 0, 0, source.unconfirmed, as_of_ms, source.lag_epochs)
