"""A reader who goes to the servers itself, by their lookup ports where they have one, and hedges as the proxy does."""

from __future__ import annotations

import time
from collections.abc import Sequence

from keyhole import AsyncClient
from keyhole.client.options import ManyOptions
from keyhole.errors import EpochGone, KeyholeError
from tests.fault.history import Asked, FailedRead, Read
from tests.fault.questions import claim_of, drawn
from tests.fault.readers_of_one import Shared
from tests.fault.recount import SHAPES, EntryOf, Question, ScanOf
from tests.fault.tempers import LOOKUP_SECONDS, TEMPERS
from tests.fault.workload import OPERATORS

DIRECT = "direct"


class DirectReader:
    """Of all states whose keys or entries are looked up: in each read with the options of another temper.

    Args:
        client: With `routing="direct"`, on the event loop that this is used on.
    """

    def __init__(self, client: AsyncClient, states: Sequence[str], shared: Shared) -> None:
        self._client = client
        self._shared = shared
        self._states = [of for of in states if SHAPES[of].gets and of not in OPERATORS]
        self._draw = shared.draw(DIRECT)
        self._seen = dict.fromkeys(self._states, 0)

    async def follow(self) -> None:
        """Until it is closed."""
        while self._states and not self._shared.closed.is_set():
            temper = self._draw.choice(TEMPERS)
            state = self._draw.choice(temper.of(self._states))
            asked, began = temper.asked(self._seen[state]), time.monotonic()
            questions = self._questions(state)
            try:
                read = await self._read(state, questions, asked, began)
            except KeyholeError as error:
                if isinstance(error, EpochGone):
                    self._seen[state] = 0
                ended = time.monotonic()
                self._shared.note(FailedRead(DIRECT, began, ended, state, asked, error.reason, str(error)[:200]))
            else:
                self._seen[state] = max(self._seen[state], *(claim.epoch for claim in read.claims))
                self._shared.note(read)
            await self._shared.pause(self._draw)

    def _questions(self, state: str) -> tuple[Question, ...]:
        """Some keys or entries: scans don't go to servers directly."""
        while isinstance((questions := drawn(self._draw, state))[0], ScanOf):
            pass
        return questions

    async def _read(self, state: str, questions: Sequence[Question], asked: Asked, began: float) -> Read:
        keys = [(of.key, of.map_key) if isinstance(of, EntryOf) else of for of in questions]
        consistency = "latest" if asked.latest else "snapshot" if asked.snapshot else "committed"
        options: ManyOptions = {
            "stale": asked.stale,  # type: ignore[typeddict-item]  # one of the policies
            "min_epoch": asked.min_epoch,
            "max_staleness": asked.max_staleness_ms / 1000 or None,
            "as_of": asked.as_of_epoch or None,
            "consistency": consistency,  # type: ignore[typeddict-item]  # one of those that there are
            "timeout": LOOKUP_SECONDS,
        }
        answers = await self._client.get_many(self._shared.application, state, keys, **options)  # type: ignore[arg-type]
        rows = tuple(tuple(dict(answer.value).values()) if answer.found else None for answer in answers)
        claims = tuple(claim_of(answer.source) for answer in answers)
        return Read(DIRECT, began, time.monotonic(), state, asked, tuple(questions), rows, claims)
