"""One frame on its way through the proxy: to copies of its keys, to others where these fail or are silent, and back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence

from keyhole.backoff import Backoff
from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.segments import Answers, Segment
from keyhole.encoding.storage_key import are_storage_keys, group_of
from keyhole.errors import (
    DeadlineExceeded,
    KeyholeError,
    KeyTooLong,
    MalformedRequest,
    NoServer,
    NotReady,
    StaleDescriptor,
)
from keyhole.model.read import Stale
from keyhole.protocol.routing import Routes, RouteTable
from keyhole.rpc.frames import ASK_AGAIN, FRAME_BYTES, frame_is_full
from services.client_proxy.directory import Directory
from services.client_proxy.forwarding.answers import Gathering
from services.client_proxy.forwarding.asked import Asked
from services.client_proxy.forwarding.key_attempts import MENDABLE, Course

_PATIENCE_SECONDS = 0.05

_FIRST_RETRY_SECONDS = 0.01
_MOST_RETRY_SECONDS = 0.25


class Forwarding:
    """Forwards storage keys of one state, and calls back once, from the event loop, when every key has an answer.

    Which copy a key goes to first is the reader's policy for stale reads. Where that copy is lost, restoring or not
    what the reader asks for, the key goes to the next copy at once; where it is silent for the hop deadline, the key
    goes to the next one as well, and the first answer counts. When all copies have failed, all are begun with again, a
    moment later and along the routes as they are then, until the deadline; then the error names the cause.

    Args:
        lane: Whose keys these are, and what the reader asks for.
        deadline: On the event loop's clock.
        done: Gets the answers of all keys. Keys that have none are among the failures.
        in_parts: Keys of a server that does not answer must not hold up the others of the frame: a moment after the
            first of these are answered, the rest fails with the fact ASK_AGAIN, for the client to send apart.
        room: For the values, in bytes. Once there is none left, the rest fails with the fact FULL.
    """

    def __init__(
        self,
        directory: Directory,
        lane: Lane,
        keys: Sequence[bytes],
        deadline: float,
        done: Callable[[Answers], None],
        *,
        in_parts: bool = False,
        room: int = FRAME_BYTES,
    ) -> None:
        self._directory = directory
        self._name = (lane.application, lane.state)
        self._lane = lane
        self._keys = keys
        self._deadline = deadline
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._in_parts = in_parts
        self._room = room
        self._finished = False
        self._attempts = 0
        self._asked: list[Asked] = []
        # From here on: only where the keys are not answered all at once.
        self._gathered: Gathering | None = None
        self._impatience: asyncio.TimerHandle | None = None
        self._courses: dict[int, Course] = {}
        self._again: set[int] = set()
        self._backoff = Backoff(_FIRST_RETRY_SECONDS, _MOST_RETRY_SECONDS)
        self._retry: asyncio.TimerHandle | None = None

    @property
    def missed(self) -> int:
        """Of how many keys the copy that they were sent to first was not enough."""
        return len(self._courses)

    def start(self) -> None:
        """Sends the keys. `done` may be called from within."""
        self._attempts = 1
        try:
            table = self._table(self._keys)
        except KeyholeError as error:
            self._refuse(range(len(self._keys)), error)
            return
        routes = self._routes(table)
        long = self._too_long(table)
        if routes.sole and not long:
            self._submit(routes.sole, None)
            return
        by_address = routes.split(self._keys)
        if long:
            self._give_up(long, _key_too_long("/".join(self._name), table.max_key_bytes))
            by_address = {of: sorted(set(places).difference(long)) for of, places in by_address.items()}
        unrouted = by_address.pop("", [])
        for address, places in by_address.items():
            if places:
                self._submit(address, places)
        if unrouted:
            self._fail(unrouted, self._no_server(table))

    # --- what comes back --------------------------------------------------------------------------------------------

    def answered(self, asked: Asked, start: int, answers: Answers) -> None:
        """From a server, for some of the keys that it was asked for."""
        if self._finished:
            return
        count = len(answers.values)
        if self._gathered is None and count == len(self._keys) and not answers.failures:
            self._finish(answers)
            return
        gathered = self._gathering()
        failed = gathered.put(asked.part(start, count), answers)
        if self._in_parts and self._impatience is None and gathered.begun:
            self._impatience = self._loop.call_later(_PATIENCE_SECONDS, self._answer_in_part)
        by_error: dict[int, tuple[KeyholeError, list[int]]] = {}
        for place, error in failed.items():
            by_error.setdefault(id(error), (error, []))[1].append(place)
        for error, places in by_error.values():
            self._fail(places, error, asked)
        if gathered.full and not self._finished:
            self._finish(gathered.answers(frame_is_full("/".join(self._name))))
        self._finish_if_complete()

    def failed(self, asked: Asked, start: int, count: int, error: KeyholeError) -> None:
        """From a server: these keys have no answer."""
        if self._finished:
            return
        open_places = self._gathering().open
        self._fail([place for place in asked.part(start, count) if place in open_places], error, asked)

    def overdue(self, asked: Asked) -> None:
        """A server has been silent for the hop deadline: asks the next copies, and does not wait for it alone."""
        if self._finished:
            # Of a frame that was answered in part; the frames after this one should know better.
            self._directory.suspect(asked.address)
            return
        open_places = self._gathering().open
        stuck = [place for place in asked.part(0, len(self._keys)) if place in open_places]
        for place in stuck:
            self._course(place, asked.address).overdue()
        if self._go_on(stuck):
            self._directory.suspect(asked.address)

    def _fail(self, places: Sequence[int], error: KeyholeError, asked: Asked | None = None) -> None:
        if not isinstance(error, MENDABLE):
            self._give_up(places, error)
            return
        address = asked.address if asked else ""
        for place in places:
            course = self._course(place, address)
            course.refused(address, error, was_overdue=asked is None or asked.overdue)
        self._go_on(places)

    # --- the next copy, or the next attempt -------------------------------------------------------------------------

    def _go_on(self, places: Iterable[int], *, again: bool = False) -> bool:
        """Sends those that have no hope left to their next copy. Those that have none wait. False: all of them do.

        Args:
            again: All copies are begun with again: an attempt also where there is nobody to ask.
        """
        onward: dict[str, list[int]] = {}
        for place in places:
            course = self._courses[place]
            if course.hopes:
                continue
            address = self._next(place, course)
            if address:
                course.sent(address)
                onward.setdefault(address, []).append(place)
            else:
                self._again.add(place)
        # Before they are sent: that may fail at once, and be the end.
        self._attempts += again or bool(onward)
        for address, of in onward.items():
            self._submit(address, of)
        if self._again and self._retry is None and not self._finished:
            self._wait()
        return bool(onward)

    def _next(self, place: int, course: Course) -> str:
        table = self._directory.tables.get(self._name)
        if table is None or table.descriptor.topic_id != self._lane.topic_id:
            return ""  # `_try_again` says so.
        key = self._keys[place]
        group = group_of(key)
        if self._lane.bounds.stale is Stale.NEVER:
            owner = table.owners.addresses[group]
            return "" if owner in course.asked else owner
        return next((address for address in table.copies[group] if address not in course.asked), "")

    def _wait(self) -> None:
        delay = self._backoff.next()
        if self._loop.time() + delay < self._deadline:
            self._retry = self._loop.call_later(delay, self._try_again)
            return
        # What a silent server may still answer is left to the deadline.
        late = [place for place in self._again if not self._courses[place].under_way]
        self._again.clear()
        self._fail_late(late)
        self._finish_if_complete()

    def _try_again(self) -> None:
        self._retry = None
        if self._finished:
            return
        again, self._again = sorted(self._again & self._gathering().open), set()
        if not again:
            return
        try:
            table = self._table([self._keys[place] for place in again])
        except KeyholeError as error:
            self._refuse(again, error)
            return
        missing: NoServer | None = None
        for place in again:
            course = self._courses[place]
            course.begin_again()
            if not course.under_way and not self._next(place, course):
                course.cause = missing = missing or self._no_server(table)
        self._go_on(again, again=True)

    # --- the first copy ---------------------------------------------------------------------------------------------

    def _table(self, keys: Sequence[bytes]) -> RouteTable:
        """A bad key must not spoil the frames it would travel in. One call in C each: there are hundreds of keys."""
        table = self._directory.table(self._name)
        state = "/".join(self._name)
        if table.descriptor.topic_id != self._lane.topic_id:
            raise StaleDescriptor(f"state {state} was made anew; describe it again", topic_id=table.descriptor.topic_id)
        if not are_storage_keys(keys, table.descriptor.key_groups):
            raise MalformedRequest(f"not storage keys of state {state}: 2 bytes of key group, then the encoded key")
        return table

    def _too_long(self, table: RouteTable) -> Sequence[int]:
        """The places of keys that are longer than the servers take: others of the frame must not fail with them."""
        most = table.max_key_bytes
        if not most or max(map(len, self._keys)) <= most:
            return ()
        return [place for place, key in enumerate(self._keys) if len(key) > most]

    def _routes(self, table: RouteTable) -> Routes:
        stale = self._lane.bounds.stale
        if stale is Stale.WHEN_NEEDED:
            return table.nearest
        return table.owners if stale is Stale.NEVER else random.choice(table.spread)  # noqa: S311 - no secret

    def _submit(self, address: str, places: Sequence[int] | None) -> None:
        keys = self._keys if places is None else [self._keys[place] for place in places]
        link = self._directory.link(address)
        asked = Asked(self, address, places, len(keys))
        asked.segment = Segment(keys, asked, self._deadline)
        try:
            if link is None:
                raise NoServer(f"server {address} is no longer among the discovered ones")
            link.stream.submit(self._lane, asked.segment)
        except KeyholeError as error:
            self.failed(asked, 0, len(keys), error)
            return
        asked.watch(self._loop, self._directory.hop_seconds)
        self._asked.append(asked)

    def _refuse(self, places: Sequence[int], error: KeyholeError) -> None:
        # Before every server was tried once, nobody can say that a state does not exist.
        if self._directory.settled.is_set() or isinstance(error, (StaleDescriptor, MalformedRequest)):
            self._give_up(places, error)
        else:
            self._fail(places, NoServer(error.message))

    def _no_server(self, table: RouteTable) -> NoServer:
        return NoServer(f"no server answers for a key group of {'/'.join(self._name)}: {table.missing}")

    # --- the end ----------------------------------------------------------------------------------------------------

    def _gathering(self) -> Gathering:
        if self._gathered is None:
            self._gathered = Gathering(len(self._keys), self._room)
        return self._gathered

    def _course(self, place: int, address: str) -> Course:
        course = self._courses.get(place)
        if course is None:
            course = self._courses[place] = Course(address)
        return course

    def _give_up(self, places: Sequence[int], error: KeyholeError) -> None:
        gathered = self._gathering()
        if isinstance(error, DeadlineExceeded):
            # Another copy, or this one a moment ago, may have said what the silent one couldn't.
            told = [place for place in places if place in self._courses and self._courses[place].reason]
            self._fail_late(told, error)
        gathered.fail(places, error)
        self._finish_if_complete()

    def _fail_late(self, places: Iterable[int], silent: KeyholeError | None = None) -> None:
        """There is no time left to try again. One error per reason: there are hundreds of keys."""
        reasons: dict[int, tuple[Course, list[int]]] = {}
        for place in places:
            course = self._courses[place]
            reasons.setdefault(id(course.reason), (course, []))[1].append(place)
        for course, late in reasons.values():
            self._gathering().fail(late, course.too_late(self._attempts, silent))

    def _finish_if_complete(self) -> None:
        if self._gathered is not None and not self._gathered.open and not self._finished:
            self._finish(self._gathered.answers())

    def _finish(self, answers: Answers) -> None:
        self._finished = True
        for asked in self._asked:
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
        gathered = self._gathering()
        causes = [course.reason for place, course in self._courses.items() if place in gathered.open]
        why = next((cause.message for cause in causes if cause), "their servers have not answered yet")
        pending = NotReady(f"the other keys of the frame are answered, these are not: {why}", **{ASK_AGAIN: "true"})
        # Whoever is still silent goes on being watched.
        self._finished = True
        self._end(gathered.answers(pending))


def _key_too_long(state: str, most: int) -> KeyTooLong:
    return KeyTooLong(
        f"a key of state {state} is longer than its servers take: {most} bytes, encoded", max_key_bytes=most
    )
