"""Puts the answers of one frame together from those of several servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keyhole.client.wire.segments import Answers
from keyhole.rpc.frames import Failure
from keyhole.v1 import state_pb2


class Gathering:
    """Columns that are filled in place by place. The first answer for a place counts, whoever gives it.

    Costs nothing until the first answer or failure: most frames are answered whole, by one server.

    Args:
        room: For the values, in bytes. The first answers always have room: a server's are bounded.

    Attributes:
        begun: Whether any place has an answer.
        full: There was no room for an answer; its place is still open.
    """

    def __init__(self, count: int, room: int) -> None:
        self.begun = self.full = False
        self._count = count
        self._room = room
        self._open: set[int] | None = None
        self._values: list[bytes] = []
        self._sources: list[state_pb2.Source] = []
        self._source_of: list[int] = []
        self._failures: dict[int, Failure] = {}

    @property
    def untouched(self) -> bool:
        """There was no answer yet, and no trouble with any place."""
        return self._open is None

    @property
    def complete(self) -> bool:
        """Each place has an answer, or a final failure."""
        return self._open is not None and not self._open

    @property
    def open(self) -> set[int]:
        """The places without answer or final failure. Not to be changed."""
        if self._open is None:
            self._open = set(range(self._count))
            self._values = [b""] * self._count
            self._source_of = [0] * self._count
        return self._open

    def put(self, places: Sequence[int], answers: Answers) -> dict[int, Failure]:
        """Takes one server's answers for these places; returns the failures of those that are still open."""
        still_open = self.open
        first_source = len(self._sources)
        self._sources += answers.sources
        source_of: Iterable[int] = answers.source_of or (0,) * len(places)
        failed: dict[int, Failure] = {}
        size = sum(map(len, answers.values))
        fits = size <= self._room or not self.begun
        if fits and not answers.failures and still_open.issuperset(places):
            # As nearly always: there are hundreds of keys in a frame.
            still_open.difference_update(places)
            self.begun = True
            self._room -= size
            for place, value, source in zip(places, answers.values, source_of, strict=True):
                self._values[place] = value
                self._source_of[place] = first_source + source
            return failed
        for offset, (place, source) in enumerate(zip(places, source_of, strict=True)):
            if place not in still_open:
                continue
            failure = answers.failures.get(offset)
            if failure is not None:
                failed[place] = failure
                continue
            value = answers.values[offset]
            if value and not fits and len(value) > self._room:
                self.full = True
                continue
            still_open.discard(place)
            self.begun = True
            self._room -= len(value)
            self._values[place] = value
            self._source_of[place] = first_source + source
        return failed

    def fail(self, places: Iterable[int], failure: Failure) -> None:
        """Ends these: they have no answer, and won't get one. What is ended or answered already stays as it is."""
        failed = self.open.intersection(places)
        self.open.difference_update(failed)
        self._failures.update(dict.fromkeys(failed, failure))

    def answers(self, pending: Failure | None = None) -> Answers:
        """Returns all columns; the places that are still open fail with `pending`."""
        failures = self._failures if pending is None else self._failures | dict.fromkeys(self.open, pending)
        return Answers(self._values, self._sources, self._source_of, failures)
