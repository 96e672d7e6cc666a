"""Readers that watch: each keeps what one state holds by its changes, leaves now and then, and goes on by its token.
Another one watches a state by a predicate, and then another state by another one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

import pyarrow as pa

from keyhole import AsyncClient, StateChange
from keyhole.client.state_watches import AsyncWatch
from keyhole.encoding.columnar_keys import key_groups
from keyhole.encoding.watch_token import marks_of
from keyhole.errors import KeyholeError, ResumeGone, StaleDescriptor
from keyhole.model.state import KeyType
from tests.fault.asked_where import KnownEntry, Where, drawn_where
from tests.fault.history import Seen, Watched
from tests.fault.questions import predicate
from tests.fault.readers_of_one import TIMEOUT_SECONDS, ReaderOfOne, Shared
from tests.fault.recount import SHAPES
from tests.fault.states import INDEXED
from tests.fault.workload import BY_CLOCK, OPERATORS, names

WATCHING = "watching"
SELECTING = "selecting"
"""The reader that watches by predicates."""

# For how long nothing may come before it looks again.
_SILENT_SECONDS = 15.0
_MOST_AT_ONCE = 25
# There may be few changes.
_MOST_MESSAGES = 20
# By a predicate it watches for less long, and as often at the most before it takes another one: where an epoch takes
# seconds, one that hardly anything meets would take minutes.
_MOST_SELECTED = 6
_MOST_OF_ONE = 3


def watched_states(states: Sequence[str]) -> list[str]:
    """Those whose changes epochs tell: an entry that expires comes as a deletion later than a recount has it."""
    return [of for of in states if of not in BY_CLOCK and of not in OPERATORS and not SHAPES[of].ttl_ms]


class WatchingReader(ReaderOfOne):
    """It stays away for up to ten pauses of others, each time that it leaves."""

    kind = WATCHING
    most_messages = _MOST_MESSAGES

    def __init__(self, client: AsyncClient, state: str, shared: Shared) -> None:
        super().__init__(self.kind, client, state, shared)
        self._token: str | None = None
        self._chain = 0
        self._where: Where | None = None

    async def follow(self) -> None:
        """Until it is closed."""
        while not self._shared.closed.is_set():
            began = time.monotonic()
            if self._token is None:
                self._chain += 1
                self._begin()
            where = predicate(self._state, self._where)
            try:
                name = self._shared.application, self._state
                async with self._client.watch(
                    *name, after=self._token, where=where, timeout=TIMEOUT_SECONDS
                ) as changes:
                    await self._take(changes, self._draw.randint(1, _MOST_AT_ONCE))
            except (KeyholeError, TimeoutError) as error:
                reason = error.reason if isinstance(error, KeyholeError) else "SILENT"
                if isinstance(error, (ResumeGone, StaleDescriptor)):
                    self._token = None
                self._failed(self.kind, began, reason, error)
            self._left()
            await self._pause(10)

    def _begin(self) -> None:
        """Before a watch that goes on behind no token."""

    def _left(self) -> None:
        """Each time that a watch is left."""

    async def _take(self, changes: AsyncWatch, most: int) -> None:
        for _ in range(self.most_messages):
            if self._shared.closed.is_set():
                return
            began = time.monotonic()
            async with asyncio.timeout(_SILENT_SECONDS):
                if not await changes.more():
                    return
            seen, left = [], most
            for change in changes.given():
                seen.append(_seen(change))
                left -= 1
                if not left:
                    # In the middle of a message, mostly.
                    break
            most = left
            self._token = changes.token
            complete = changes.epoch if most else 0
            ended = time.monotonic()
            further = _further(self._state, self._token, complete) if complete else ()
            told = (tuple(seen), complete, further, self._where)
            self._shared.note(Watched(self.kind, self._chain, began, ended, self._state, *told))
            if not most:
                return


class SelectingReader(WatchingReader):
    """Of all states that are watched, one after the other; every other time of one that has an index.

    Args:
        known: By state, entries that it has had: what predicates are made of.
    """

    kind = SELECTING
    most_messages = _MOST_SELECTED

    def __init__(
        self,
        client: AsyncClient,
        states: Sequence[str],
        shared: Shared,
        known: Mapping[str, Sequence[KnownEntry]],
    ) -> None:
        super().__init__(client, states[0], shared)
        self._states = states
        self._known = known
        self._times = 0

    def _begin(self) -> None:
        indexed = [state for state in self._states if state in INDEXED]
        self._state = self._draw.choice(indexed if indexed and self._draw.random() < 0.5 else self._states)
        known = self._known.get(self._state)
        self._where = drawn_where(self._draw, self._state, known) if known else None
        self._times = self._draw.randint(1, _MOST_OF_ONE)

    def _left(self) -> None:
        self._times -= 1
        if self._times <= 0:
            self._token = None


def _further(state: str, token: str | None, complete: int) -> tuple[tuple[str, int], ...]:
    """The rows of a key group are of the epoch that it is at as they are read, which may not be complete."""
    marks = marks_of(token or "")
    if all(mark.epoch <= complete for mark in marks.values()):
        return ()
    keys = names(state)
    groups = key_groups([pa.array(keys)], [KeyType.STRING], len(marks)) if len(marks) > 1 else [0] * len(keys)
    at = [marks[int(group)].epoch for group in groups]
    return tuple((key, epoch) for key, epoch in zip(keys, at, strict=True) if epoch > complete)


def _seen(change: StateChange) -> Seen:
    # The entries of a broadcast state are its keys.
    key, map_key = (change.key, change.map_key) if change.key != () else (change.map_key, None)
    fields = None if change.value is None else tuple(dict(change.value).values())
    return Seen(key, map_key, fields, change.epoch, change.snapshot)
