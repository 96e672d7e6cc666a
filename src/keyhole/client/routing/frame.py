"""One frame on its way: to copies of its keys, to others where these fail or are silent, and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from keyhole.backoff import Backoff
from keyhole.client.routing.asked import Asked
from keyhole.client.routing.frame_attempts import FrameAttempts
from keyhole.client.routing.gathering import Gathering
from keyhole.client.routing.key_attempts import MENDABLE, KeyAttempts
from keyhole.client.routing.known_servers import KnownServers
from keyhole.client.routing.routes import FirstCopies, LaneRoutes, Trouble
from keyhole.client.routing.timed_asked import TimedAsked
from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.segments import Answers
from keyhole.errors import KeyholeError, Overloaded
from keyhole.model.read import Stale
from keyhole.rpc.frames import FRAME_BYTES, AskAgain, as_error, failed_together, frame_is_full

_PATIENCE_SECONDS = 0.05
_FIRST_RETRY_SECONDS = 0.01
_MOST_RETRY_SECONDS = 0.25


class Forwarding:
    """Forwards storage keys of one state, and calls back once, from the event loop, when every key has an answer.

    Which copy a key goes to first is the reader's policy for stale reads. Where that copy is lost, restoring or not
    what the reader asks for, the key goes to the next copy at once. Where it is silent for the hop deadline, or, where
    lookups are hedged, only slow, the key goes to the next one as well, and the first answer counts. When all copies
    have failed, all are begun with again, a moment later and along the routes as they are then, until the deadline;
    then the error names the cause.

    Args:
        lane: Whose keys these are, and what the reader asks for.
        deadline: On the event loop's clock.
        done: Gets the answers of all keys. Keys that have none are among the failures.
        in_parts: Keys of a server that does not answer must not hold up the others of the frame. A moment after the
            first of these are answered, the rest stands as AskAgain, for the client to send apart.
        room: For the values, in bytes. Once there is none left, the rest stands as AskAgain, full.
        refused: Of one who has somebody else to ask. It gets the address of each server that fails keys for a reason
            that no other copy can mend, and the reason. Each copy is asked once. Keys that none has answered, and that
            another time may mend, stand as AskAgain.
    """

    def __init__(
        self,
        servers: KnownServers,
        lane: Lane,
        keys: Sequence[bytes],
        deadline: float,
        done: Callable[[Answers], None],
        *,
        in_parts: bool = False,
        room: int = FRAME_BYTES,
        refused: Callable[[str, KeyholeError], None] | None = None,
    ) -> None:
        self._servers = servers
        self._name = (lane.application, lane.state)
        self._lane = lane
        self._keys = keys
        self._deadline = deadline
        self._done = done
        self._in_parts = in_parts
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._routes = LaneRoutes(servers, lane)
        self._hedging = servers.hedging
        self._finished = False
        self._attempts = FrameAttempts()
        self._asked: list[Asked] = []
        self._gathered = Gathering(len(keys), room)
        self._impatience: asyncio.TimerHandle | None = None
        self._backoff = Backoff(_FIRST_RETRY_SECONDS, _MOST_RETRY_SECONDS)
        self._retry: asyncio.TimerHandle | None = None

    @property
    def missed(self) -> int:
        """How many keys had trouble: the first copy was not enough for them, or there was none."""
        return self._attempts.missed

    def start(self, first: FirstCopies | None = None) -> None:
        """Sends the keys. `done` may be called from within.

        Args:
            first: Where they go first; None: by the routes as they are now.
        """
        self._attempts.number = 1
        if self._hedging is not None:
            self._hedging.read(len(self._keys))
        first = first or self._routes.first(self._keys)
        for address, places in first.by_server.items():
            self._ask(address, places)
        for trouble, places in first.nowhere:
            self._refuse(places, trouble)

    def answered(self, asked: Asked, start: int, answers: Answers) -> None:
        """Takes a server's answers for some of the keys that it was asked for."""
        if self._finished:
            return
        count = len(answers.values)
        gathered = self._gathered
        if gathered.untouched and count == len(self._keys) and not answers.failures:
            self._finish(answers)
            return
        before = len(gathered.open)
        failed = gathered.put(asked.part(start, count), answers)
        if asked.is_hedge and self._hedging is not None:
            self._hedging.answered_keys += before - len(gathered.open)
        if self._in_parts and self._impatience is None and gathered.begun:
            self._impatience = self._loop.call_later(_PATIENCE_SECONDS, self._answer_in_part)
        for failure, places in failed_together(failed):
            self._fail(places, as_error(failure), asked)
        if gathered.full and not self._finished:
            self._finish(gathered.answers(frame_is_full("/".join(self._name))))
        self._finish_if_complete()

    def failed(self, asked: Asked, start: int, count: int, error: KeyholeError) -> None:
        """Sends these keys to other copies, or ends them: the server has no answer for them."""
        if self._finished:
            return
        self._fail(self._open(asked.part(start, count)), error, asked)

    def overdue(self, asked: Asked) -> None:
        """A server has been silent for the hop deadline: asks the next copies, and does not wait for it alone."""
        if self._finished:
            # Of a frame that was answered in part; the frames after this one should know better.
            self._servers.suspect(asked.address)
            return
        stuck = self._open(asked.part(0, len(self._keys)))
        self._attempts.overdue(stuck, asked.address)
        if self._go_on(stuck) or asked.is_hedged or self._refused is not None:
            self._servers.suspect(asked.address)

    def slow(self, asked: Asked) -> None:
        """A server takes longer than nearly always: asks the next copies, too, if there are any and that is allowed."""
        bounds, hedging = self._lane.bounds, self._hedging
        # What is staged, the owner alone has.
        if self._finished or hedging is None or bounds.stale is Stale.NEVER or bounds.latest:
            return
        stuck = self._open(asked.part(0, len(self._keys)))
        if not hedging.allows(len(stuck), self._loop.time()):
            return
        by_server = self._attempts.hedged(stuck, asked.address, self._next_copy)
        self._attempts.number += bool(by_server)
        for address, places in by_server.items():
            asked.is_hedged = True
            hedging.hedged(len(places))
            self._ask(address, places, is_hedge=True)

    def _open(self, places: Iterable[int]) -> list[int]:
        """Those that have neither an answer nor a final failure."""
        open_places = self._gathered.open
        return [place for place in places if place in open_places]

    def _ask(self, address: str, places: Sequence[int] | None, *, is_hedge: bool = False) -> None:
        keys = self._keys if places is None else [self._keys[place] for place in places]
        share = Asked if self._hedging is None else TimedAsked
        asked = share(self, address, places, keys, self._deadline, is_hedge=is_hedge)
        if asked.send(self._servers, self._lane, self._loop):
            self._asked.append(asked)

    def _fail(self, places: Sequence[int], error: KeyholeError, asked: Asked | None = None) -> None:
        if self._hedging is not None and isinstance(error, Overloaded):
            self._hedging.overloaded(self._loop.time())
        if not isinstance(error, MENDABLE):
            if self._refused is not None and asked is not None:
                self._refused(asked.address, error)
            # Without the hedge nobody would know of it, and the server that was only slow may have the answer.
            if asked is None or not asked.is_hedge:
                self._end_with(self._attempts.last_words(places, error))
                return
        address, was_overdue = (asked.address, asked.overdue) if asked else ("", True)
        self._attempts.refused(places, address, error, was_overdue=was_overdue)
        self._go_on(places)

    def _go_on(self, places: Iterable[int], *, again: bool = False) -> bool:
        """Sends those that have no hope left to their next copy. Those that have none wait. False: all of them do.

        Args:
            again: All copies are begun with again: an attempt also where there is nobody to ask.
        """
        onward = self._attempts.onward(places, self._next_copy)
        # Before they are sent: that may fail at once, and be the end.
        self._attempts.number += again or bool(onward)
        for address, of in onward.items():
            self._ask(address, of)
        if self._attempts.idle and self._retry is None and not self._finished:
            self._wait()
        return bool(onward)

    def _next_copy(self, place: int, tried: KeyAttempts) -> str:
        return self._routes.next(self._keys[place], tried.asked)

    def _wait(self) -> None:
        if self._refused is not None:
            idle = self._attempts.idle
            cause = self._attempts.reason(idle)
            self._gathered.fail(idle, AskAgain(cause.message if cause else "no copy has answered yet"))
            idle.clear()
            self._finish_if_complete()
            return
        delay = self._backoff.next()
        if self._loop.time() + delay < self._deadline:
            self._retry = self._loop.call_later(delay, self._try_again)
            return
        # What a silent server may still answer is left to the deadline.
        self._end_with(self._attempts.too_late(self._attempts.take_lost()))

    def _try_again(self) -> None:
        self._retry = None
        if self._finished:
            return
        idle = self._attempts.idle
        again = sorted(idle & self._gathered.open)
        idle.clear()
        if not again:
            return
        if trouble := self._routes.trouble([self._keys[place] for place in again]):
            self._refuse(again, trouble)
            return
        self._attempts.begin_again(again, self._next_copy, self._routes.no_server)
        self._go_on(again, again=True)

    def _refuse(self, places: Sequence[int], trouble: Trouble) -> None:
        if trouble.final:
            self._end_with(self._attempts.last_words(places, trouble.error))
        else:
            self._fail(places, trouble.error)

    def _end_with(self, errors: Iterable[tuple[Sequence[int], KeyholeError]]) -> None:
        for places, error in errors:
            self._gathered.fail(places, error)
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        if self._gathered.complete and not self._finished:
            self._finish(self._gathered.answers())

    def _finish(self, answers: Answers) -> None:
        self._finished = True
        for asked in self._asked:
            if asked.is_hedged:
                continue  # how long it takes is to be learned, and whether it is silent
            asked.forget()
            # What waits to be sent to a slow server, or is more than there is room for.
            asked.segment.dropped = True
        self._end(answers)

    def _end(self, answers: Answers) -> None:
        for timer in (self._impatience, self._retry):
            if timer is not None:
                timer.cancel()
        self._done(answers)

    def _answer_in_part(self) -> None:
        if self._finished:
            return
        gathered = self._gathered
        cause = self._attempts.reason(gathered.open)
        why = cause.message if cause else "their servers have not answered yet"
        pending = AskAgain(f"the other keys of the frame are answered, these are not: {why}")
        # Whoever is still silent goes on being watched.
        self._finished = True
        self._end(gathered.answers(pending))
