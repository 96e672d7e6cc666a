"""One frame on its way through the proxy: to the owners of its keys, again where they moved, and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from keyhole.client.coalescing import ASK_AGAIN, Answers, Lane, Segment
from keyhole.errors import (
    DeadlineExceeded,
    Draining,
    KeyholeError,
    KeyTooLong,
    MalformedRequest,
    NoServer,
    NotOwner,
    NotReady,
    ServerLost,
    StaleDescriptor,
)
from keyhole.routing import RouteTable, StateName
from keyhole.v1 import state_pb2
from services.client_proxy.backoff import Backoff
from services.client_proxy.directory import Directory

# What another server, or the same one in a moment, can mend. Overloaded is not among them: trying again makes it worse.
_MENDABLE = (NotOwner, NotReady, ServerLost, NoServer, Draining, StaleDescriptor)

_PATIENCE_SECONDS = 0.05

_FIRST_RETRY_SECONDS = 0.01
_MOST_RETRY_SECONDS = 0.25


class Forwarding:
    """Forwards storage keys of one state, and calls back once, from the event loop, when every key has an answer.

    Keys whose server is lost, restoring or not the owner any more are sent again, along the routes as they are then,
    until the deadline; then the error names the last cause.

    Args:
        topic_id: Whose keys these are.
        deadline: On the event loop's clock.
        done: Gets the answers of all keys. Keys that have none are among the failures.
        in_parts: Keys of a server that does not answer must not hold up the others of the frame: a moment after the
            first of these are answered, the rest fails with the fact ASK_AGAIN, for the client to send apart.
    """

    def __init__(
        self,
        directory: Directory,
        name: StateName,
        topic_id: str,
        keys: Sequence[bytes],
        min_epoch: int,
        deadline: float,
        done: Callable[[Answers], None],
        *,
        in_parts: bool = False,
    ) -> None:
        self._directory = directory
        self._name = name
        self._lane = Lane(name[0], name[1], topic_id, min_epoch)
        self._keys = keys
        self._deadline = deadline
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(_FIRST_RETRY_SECONDS, _MOST_RETRY_SECONDS)
        self._in_parts = in_parts
        self._impatience: asyncio.TimerHandle | None = None
        self._finished = False
        self._attempts = 0
        self._unanswered = len(keys)
        self._again: list[int] = []
        self._cause: KeyholeError | None = None
        # Filled only where the keys are not answered all at once.
        self._values: list[bytes] = []
        self._sources: list[state_pb2.Source] = []
        self._source_of: list[int] = []
        self._failures: dict[int, KeyholeError] = {}
        self._answered_places: set[int] = set()

    def start(self) -> None:
        """Sends the keys. `done` may be called from within."""
        self._send(None)

    def answered(self, indexes: Sequence[int] | None, start: int, answers: Answers) -> None:
        """From a sink: `indexes` are its keys' places in the frame; None: it has them all."""
        count = len(answers.values)
        if indexes is None and count == len(self._keys) and not answers.failures:
            self._unanswered = 0
            self._finish(answers)
            return
        if self._finished:
            return
        self._prepare()
        if self._in_parts and self._impatience is None:
            self._impatience = self._loop.call_later(_PATIENCE_SECONDS, self._answer_in_part)
        places = range(start, start + count) if indexes is None else indexes[start : start + count]
        first_source = len(self._sources)
        self._sources += answers.sources
        for offset, place in enumerate(places):
            failure = answers.failures.get(offset)
            if failure is not None:
                self._fail(place, failure)
            else:
                self._answered_places.add(place)
                self._values[place] = answers.values[offset]
                self._source_of[place] = first_source + (answers.source_of[offset] if answers.source_of else 0)
        self._count(count)

    def failed(self, indexes: Sequence[int] | None, start: int, count: int, error: KeyholeError) -> None:
        """From a sink: these keys have no answer."""
        if self._finished:
            return
        self._prepare()
        for place in range(start, start + count) if indexes is None else indexes[start : start + count]:
            self._fail(place, error)
        self._count(count)

    def _send(self, indexes: Sequence[int] | None) -> None:
        if self._finished:
            return
        self._attempts += 1
        keys = self._keys if indexes is None else [self._keys[index] for index in indexes]
        try:
            table = self._directory.table(self._name)
            self._check(table, keys)
        except KeyholeError as error:
            # Before every server was tried once, nobody can say that a state does not exist.
            known = self._directory.settled.is_set() or isinstance(
                error, (StaleDescriptor, MalformedRequest, KeyTooLong)
            )
            self._refuse(indexes, error, final=known)
            return
        if table.sole:
            self._submit(table.sole, keys, indexes)
            return
        for address, places in table.split(keys).items():
            mine = places if indexes is None else [indexes[place] for place in places]
            if address:
                self._submit(address, [keys[place] for place in places], mine)
            else:
                missing = NoServer(f"no server answers for a key group of {'/'.join(self._name)}: {table.missing}")
                self.failed(mine, 0, len(mine), missing)

    def _check(self, table: RouteTable, keys: Sequence[bytes]) -> None:
        """A bad key must not spoil the frames it would travel in. One call in C each: there are hundreds of keys."""
        state = "/".join(self._name)
        if table.descriptor.topic_id != self._lane.topic_id:
            raise StaleDescriptor(f"state {state} was made anew; describe it again", topic_id=table.descriptor.topic_id)
        if min(map(len, keys)) <= 2 or int.from_bytes(max(keys)[:2], "big") >= table.descriptor.key_groups:
            raise MalformedRequest(f"not storage keys of state {state}: 2 bytes of key group, then the encoded key")
        if table.max_key_bytes and max(map(len, keys)) > table.max_key_bytes:
            raise KeyTooLong(
                f"a key of state {state} is longer than its servers take: {table.max_key_bytes} bytes, encoded",
                max_key_bytes=table.max_key_bytes,
            )

    def _submit(self, address: str, keys: Sequence[bytes], indexes: Sequence[int] | None) -> None:
        link = self._directory.link(address)
        try:
            if link is None:
                raise NoServer(f"server {address} is no longer among the discovered ones")
            link.stream.submit(self._lane, Segment(keys, _Sink(self, indexes), self._deadline))
        except KeyholeError as error:
            self.failed(indexes, 0, len(keys), error)

    def _refuse(self, indexes: Sequence[int] | None, error: KeyholeError, *, final: bool) -> None:
        count = len(self._keys) if indexes is None else len(indexes)
        if final:
            self._prepare()
            places = range(count) if indexes is None else indexes
            self._failures.update(dict.fromkeys(places, error))
            self._count(count)
        else:
            self.failed(indexes, 0, count, NoServer(error.message))

    def _prepare(self) -> None:
        if not self._values:
            self._values = [b""] * len(self._keys)
            self._source_of = [0] * len(self._keys)

    def _fail(self, place: int, error: KeyholeError) -> None:
        if isinstance(error, _MENDABLE):
            self._again.append(place)
            self._cause = error
        else:
            self._failures[place] = error

    def _count(self, count: int) -> None:
        self._unanswered -= count
        if self._unanswered:
            return
        if not self._again:
            self._finish(Answers(self._values, self._sources, self._source_of, self._failures))
            return
        again, self._again = sorted(self._again), []
        self._unanswered = len(again)
        delay = self._backoff.next()
        if self._loop.time() + delay < self._deadline:
            self._loop.call_later(delay, self._send, again)
            return
        error = self._too_late()
        self._failures.update(dict.fromkeys(again, error))
        self._count(len(again))

    def _finish(self, answers: Answers) -> None:
        self._finished = True
        if self._impatience is not None:
            self._impatience.cancel()
        self._done(answers)

    def _answer_in_part(self) -> None:
        under_way = set(range(len(self._keys))) - self._answered_places - self._failures.keys()
        if self._finished or not self._answered_places:
            return
        why = self._cause.message if self._cause else "their servers have not answered yet"
        pending = NotReady(f"the other keys of the frame are answered, these are not: {why}", **{ASK_AGAIN: "true"})
        failures = self._failures | dict.fromkeys(under_way, pending)
        self._finish(Answers(self._values, self._sources, self._source_of, failures))

    def _too_late(self) -> KeyholeError:
        assert self._cause is not None
        return DeadlineExceeded(
            f"no answer within the deadline, after {self._attempts} attempts; the last failed because "
            f"{self._cause.message}",
            cause=self._cause.reason,
            attempts=self._attempts,
        )


class _Sink:
    """One server's share of a frame."""

    __slots__ = ("_forwarding", "_indexes")

    def __init__(self, forwarding: Forwarding, indexes: Sequence[int] | None) -> None:
        self._forwarding = forwarding
        self._indexes = indexes

    def answered(self, start: int, answers: Answers) -> None:
        self._forwarding.answered(self._indexes, start, answers)

    def failed(self, start: int, count: int, error: KeyholeError) -> None:
        self._forwarding.failed(self._indexes, start, count, error)
