"""What became of those keys of a frame that had trouble: whom each goes to next, and why it fails in the end. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from keyhole.client.routing.key_attempts import KeyAttempts
from keyhole.errors import DeadlineExceeded, KeyholeError

NextCopy = Callable[[int, KeyAttempts], str]
"""(place, its attempts) -> the server that is to be asked next; empty: there is none."""


class FrameAttempts:
    """The attempts of a frame's keys, by place. A key has some from its first trouble on.

    Attributes:
        number: How often keys of the frame were sent, those of several servers at once as once.
        idle: The places that wait until all copies are begun with again.
    """

    __slots__ = ("_by_place", "idle", "number")

    def __init__(self) -> None:
        self.number = 0
        self.idle: set[int] = set()
        self._by_place: dict[int, KeyAttempts] = {}

    @property
    def missed(self) -> int:
        """How many keys had nobody left to wait for, once or more often. Those that were only hedged are none."""
        return sum(tried.missed for tried in self._by_place.values())

    def refused(self, places: Iterable[int], address: str, error: KeyholeError, *, was_overdue: bool) -> None:
        """A server has said why it doesn't answer these, or was lost; empty address: there was none to ask."""
        for place in places:
            self._of(place, address).refused(address, error, was_overdue=was_overdue)

    def overdue(self, places: Iterable[int], address: str) -> None:
        """A server keeps silent on these."""
        for place in places:
            self._of(place, address).overdue(address)

    def onward(self, places: Iterable[int], next_copy: NextCopy) -> dict[str, list[int]]:
        """Those that have no hope left, by the server that they are sent to next. Those that have none are `idle`."""
        by_server: dict[str, list[int]] = {}
        for place in places:
            tried = self._by_place[place]
            if tried.hopes > 0:
                continue
            tried.missed = True
            address = next_copy(place, tried)
            if address:
                tried.sent(address)
                by_server.setdefault(address, []).append(place)
            else:
                self.idle.add(place)
        return by_server

    def hedged(self, places: Iterable[int], address: str, next_copy: NextCopy) -> dict[str, list[int]]:
        """Those that are under way to `address`, by the server that they are sent to as well. That has no other copy is
        no trouble: then they go on waiting.
        """
        by_server: dict[str, list[int]] = {}
        for place in places:
            tried = self._of(place, address)
            if address in tried.under_way and (other := next_copy(place, tried)):
                tried.sent(other)
                by_server.setdefault(other, []).append(place)
        return by_server

    def begin_again(self, places: Iterable[int], next_copy: NextCopy, missing: Callable[[], KeyholeError]) -> None:
        """All copies of these may be asked once more. `missing` says why there are none; it is called at most once."""
        why: KeyholeError | None = None
        for place in places:
            tried = self._by_place[place]
            tried.begin_again()
            if not tried.under_way and not next_copy(place, tried):
                tried.cause = why = why or missing()

    def take_lost(self) -> list[int]:
        """Those of the idle that nobody may answer yet. None is idle after it."""
        lost = [place for place in self.idle if not self._by_place[place].under_way]
        self.idle.clear()
        return lost

    def reason(self, places: Collection[int]) -> KeyholeError | None:
        """Why one of these isn't answered; None: nobody has said so of any."""
        reasons = (tried.reason for place, tried in self._by_place.items() if place in places)
        return next((reason for reason in reasons if reason), None)

    def last_words(self, places: Sequence[int], error: KeyholeError) -> Iterator[tuple[Sequence[int], KeyholeError]]:
        """What these fail with, which no other copy can mend. The first error for a place counts."""
        if isinstance(error, DeadlineExceeded):
            # Another copy, or this one a moment ago, may have said what the silent one couldn't.
            known = [place for place in places if place in self._by_place and self._by_place[place].reason]
            yield from self.too_late(known, error)
        yield places, error

    def too_late(
        self, places: Iterable[int], silent: KeyholeError | None = None
    ) -> Iterator[tuple[Sequence[int], KeyholeError]]:
        """No time is left to try again. One error per reason: there are hundreds of keys.

        Args:
            silent: See KeyAttempts.too_late.
        """
        reasons: dict[int, tuple[KeyAttempts, list[int]]] = {}
        for place in places:
            tried = self._by_place[place]
            reasons.setdefault(id(tried.reason), (tried, []))[1].append(place)
        for tried, late in reasons.values():
            yield late, tried.too_late(self.number, silent)

    def _of(self, place: int, address: str) -> KeyAttempts:
        tried = self._by_place.get(place)
        if tried is None:
            tried = self._by_place[place] = KeyAttempts(address)
        return tried
