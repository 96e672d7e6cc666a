"""The lookups of one state: encoded by its descriptor, which is asked for once, and again where it turns out stale."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from keyhole.backoff import JITTER
from keyhole.client.routing.direct_reads import DirectReads
from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.cut_off import error_for_caller, is_cut_off
from keyhole.client.wire.link import Link
from keyhole.client.wire.links import Links, pause_seconds
from keyhole.client.wire.lookups import BatchSink, LookupBatch
from keyhole.client.wire.segments import Segment
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of
from keyhole.errors import DeadlineExceeded, InternalError, KeyholeError, StaleDescriptor
from keyhole.model.state import StateDescriptor
from keyhole.rpc import status

_AGAIN_SECONDS = 0.05
# So many keys of a state may wait for the moment that whoever refused them has named; those beyond fail at once.
_MOST_REFUSED_KEYS = 65_536

_log = logging.getLogger(__name__)

Describe = Callable[[str, str, float], Awaitable[StateDescriptor]]


class _Encoded(NamedTuple):
    """The keys of a batch, as they travel; `least` as BatchSink has it."""

    codec: StateCodec
    lane: Lane
    keys: Sequence[bytes]
    least: Sequence[int]


class StateReads:
    """Used from the event loop's thread only.

    Args:
        describe: Asks for the descriptor: application, state, timeout in seconds.
        forget: Called when the state could not be described: whoever asks again asks the server again, too.
        direct: Sends lookups to the servers themselves; None: all go to the links.

    Attributes:
        known: By the last descriptor, also where that has turned out stale; None: there was none yet. Any thread.
    """

    def __init__(
        self,
        links: Links,
        application: str,
        state: str,
        describe: Describe,
        forget: Callable[[], None],
        direct: DirectReads | None = None,
    ) -> None:
        self._links = links
        self._direct = direct
        self._application = application
        self._state = state
        self._ask = describe
        self._forget = forget
        self._codec: StateCodec | None = None
        self.known: StateCodec | None = None
        self._topic_id = ""
        # With what ends their waiting, which would keep all of this alive.
        self._parked: dict[LookupBatch, asyncio.TimerHandle] = {}
        # Those that were cut off, and those that were refused for a while, with what sends them again.
        self._waiting: dict[LookupBatch, asyncio.TimerHandle] = {}
        self._refused: dict[LookupBatch, asyncio.TimerHandle] = {}
        self._refused_keys = 0
        self._looked_at = -_AGAIN_SECONDS
        self._closed: KeyholeError | None = None
        self._describing: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def submit(self, batch: LookupBatch) -> None:
        """Sends a batch, as soon as the descriptor is known. Errors go to its waiters."""
        codec = self._codec
        if codec is None:
            self._park(batch)
            return
        link = self._links.next()
        direct = None if batch.by_proxy else self._direct
        if link is None and direct is None:
            self._wait_for_links(batch)
            return
        keys, refused = batch.encode(codec)
        if refused is not None and refused.keys:
            # The state may have been made anew with another key since it was described.
            self._park(refused)
        if not keys:
            return
        bounds, least = batch.bounds, tuple[int, ...]()
        if bounds.min_epochs:
            groups = [group_of(key) for key in keys]
            bounds, least = bounds.among(set(groups)), bounds.least_of(groups)
        lane = Lane(self._application, self._state, self._topic_id, bounds, batch.patient)
        if direct is not None:
            left = self._send_directly(direct, batch, _Encoded(codec, lane, keys, least))
            if not left:
                return
            if len(left) < len(keys):
                batch, keys = batch.picked(left), [keys[place] for place in left]
                least = tuple(least[place] for place in left) if least else least
            if link is None:
                self._wait_for_links(batch)
                return
        assert link is not None
        asked = link
        sink = self._sink(batch, codec, lambda cut, error: self._submit_again(cut, error, asked), least)
        batch.attempts += 1
        try:
            link.stream.submit(lane, Segment(keys, sink, batch.deadline))
        except KeyholeError as error:
            batch.fail(error)

    def _send_directly(self, direct: DirectReads, batch: LookupBatch, of: _Encoded) -> Sequence[int]:
        """Returns the places of those for which no server can be asked from here."""
        by_server, left = direct.split(of.lane, of.keys)
        for address, places in by_server.items():
            part = batch.picked(places)
            part.attempts += 1
            least = tuple(of.least[place] for place in places) if of.least else of.least
            sink = self._sink(part, of.codec, self._submit_by_proxy_after, least, self._submit_by_proxy)
            keys = [of.keys[place] for place in places]
            direct.send(address, of.lane, keys, batch.deadline, partial(sink.answered, 0))
        return left

    def _sink(
        self,
        batch: LookupBatch,
        codec: StateCodec,
        on_cut_off: Callable[[LookupBatch, KeyholeError], None],
        least: Sequence[int],
        on_pending: Callable[[LookupBatch], None] | None = None,
    ) -> BatchSink:
        return BatchSink(
            batch,
            codec,
            lambda stale: self._submit_stale(stale, codec),
            lambda newer, error: self._submit_newer(newer, error, codec),
            on_pending or self.submit,
            on_cut_off,
            self._submit_later,
            least,
        )

    def _submit_by_proxy(self, batch: LookupBatch) -> None:
        batch.by_proxy, batch.patient = True, False
        self.submit(batch)

    def _submit_by_proxy_after(self, batch: LookupBatch, error: KeyholeError) -> None:
        batch.cut_off = error
        self._submit_by_proxy(batch)

    def _wait_for_links(self, batch: LookupBatch) -> None:
        self._wait(batch, self._links.free_at(), batch.cut_off or self._links.cause)

    async def codec(self, deadline: float) -> StateCodec:
        """The codec of the descriptor that a server sent last. Raises KeyholeError where it can't be had in time."""
        if self._codec is None:
            try:
                descriptor = await self._ask(self._application, self._state, deadline - self._loop.time())
            except KeyholeError:
                self._forget_unless_waiting()
                raise
            self._codec = self.known = StateCodec(descriptor)
            self._topic_id = descriptor.topic_id
        return self._codec

    def outdated(self, codec: StateCodec) -> None:
        """What the codec was made of is no longer so."""
        if self._codec is codec:
            self._codec = None

    def close(self, error: KeyholeError) -> None:
        """Fails what waits for the descriptor, or to be sent again."""
        self._closed = error
        if self._describing is not None:
            self._describing.cancel()
        self._fail_parked(error)
        waiting = self._waiting | self._refused
        self._waiting, self._refused, self._refused_keys = {}, {}, 0
        for batch, timer in waiting.items():
            timer.cancel()
            batch.fail(error)

    def _submit_again(self, batch: LookupBatch, error: KeyholeError, link: Link) -> None:
        if (why := self._links.given_up(error)) is not None:
            batch.fail(error_for_caller(why, batch.attempts, None))
            return
        batch.cut_off, batch.by_proxy = error, False
        # One that lives has named somebody else, and may name the same in a moment.
        self._wait(batch, 0.0 if link.cause is not None else self._loop.time() + pause_seconds(), error)

    def _submit_later(self, batch: LookupBatch, error: KeyholeError, seconds: float) -> None:
        """What is beyond a limit is sent again when whoever refused it has said: not sooner, and not all at once."""
        batch = batch.unanswered()
        keys, now = len(batch.keys), self._loop.time()
        # Who says 0 is not asked again at each round trip.
        until = now + max(seconds * JITTER.uniform(1.0, 1.5), pause_seconds())
        if self._closed is not None:
            batch.fail(self._closed)
        elif until >= batch.deadline or not self._has_room(keys, now):
            batch.fail(error)
        elif keys:
            batch.cut_off, batch.by_proxy = error, False
            self._refused_keys += keys
            self._refused[batch] = self._loop.call_at(until, self._resume_refused, batch)

    def _has_room(self, keys: int, now: float) -> bool:
        if self._refused_keys + keys > _MOST_REFUSED_KEYS and now >= self._looked_at + _AGAIN_SECONDS:
            self._looked_at = now  # not at each of many refusals
            for batch in [of for of in self._refused if all(waiter.done() for waiter in of.waiters)]:
                self._refused.pop(batch).cancel()
                self._refused_keys -= len(batch.keys)
        return self._refused_keys + keys <= _MOST_REFUSED_KEYS

    def _resume_refused(self, batch: LookupBatch) -> None:
        del self._refused[batch]
        self._refused_keys -= len(batch.keys)
        left = batch.unanswered()
        if left.keys:
            self.submit(left)

    def _wait(self, batch: LookupBatch, until: float, why: KeyholeError | None) -> None:
        if self._closed is not None:
            batch.fail(self._closed)
        elif until >= batch.deadline and why is not None:
            batch.fail(error_for_caller(why, batch.attempts, None))
        elif not all(waiter.done() for waiter in batch.waiters):
            # Never from here: whoever loses a stream goes on to fail other reads.
            self._waiting[batch] = self._loop.call_at(until, self._resume, batch)

    def _resume(self, batch: LookupBatch) -> None:
        del self._waiting[batch]
        self.submit(batch)

    def _submit_stale(self, batch: LookupBatch, codec: StateCodec) -> None:
        self.outdated(codec)
        self.submit(batch)

    def _submit_newer(self, batch: LookupBatch, error: StaleDescriptor, codec: StateCodec) -> None:
        """Until the deadline: the one who describes the state may hear of a schema after its first row."""
        self.outdated(codec)
        if not batch.again:
            batch.again = True
            self.submit(batch)
        elif self._loop.time() + _AGAIN_SECONDS < batch.deadline:
            self._loop.call_later(_AGAIN_SECONDS, self.submit, batch)
        else:
            batch.fail(error)

    def _park(self, batch: LookupBatch) -> None:
        if self._closed is not None:
            batch.fail(self._closed)
            return
        self._parked[batch] = self._loop.call_at(batch.deadline, self._expire, batch)
        if self._describing is None:
            self._describing = self._loop.create_task(self._describe())

    async def _describe(self) -> None:
        try:
            descriptor = await self._ask_for_the_patient()
            self._codec = self.known = StateCodec(descriptor)
        except KeyholeError as error:
            self._forget_unless_waiting()
            self._fail_parked(error)
            return
        except Exception:  # noqa: BLE001 - the top of a task: nobody else would end the waits
            self._forget_unless_waiting()
            self._fail_parked(self._bug())
            return
        finally:
            self._describing = None
        self._topic_id = descriptor.topic_id
        for batch in self._unparked():
            try:
                self.submit(batch)
            except Exception:  # noqa: BLE001 - as above
                batch.fail(self._bug())

    def _bug(self) -> InternalError:
        """While what has happened is handled."""
        name = f"{self._application}/{self._state}"
        _log.exception("a lookup of state %s could not be begun", name)
        return InternalError(f"a lookup of state {name} could not be begun, by a bug; the client's log has the cause")

    async def _ask_for_the_patient(self) -> StateDescriptor:
        """Again where batches with more time have come meanwhile."""
        while True:
            deadline = max(batch.deadline for batch in self._parked)
            try:
                return await self._ask(self._application, self._state, deadline - self._loop.time())
            except KeyholeError as error:
                late = isinstance(error, DeadlineExceeded) or (is_cut_off(error) and status.may_pass(error))
                if not late or all(batch.deadline <= deadline for batch in self._parked):
                    raise

    def _forget_unless_waiting(self) -> None:
        """What is to be sent again is known to whoever closes this."""
        if not self._waiting and not self._refused:
            self._forget()

    def _expire(self, batch: LookupBatch) -> None:
        del self._parked[batch]
        cause = self._links.cause
        batch.fail(
            DeadlineExceeded(
                f"state {self._application}/{self._state} could not be described within the deadline; give it more "
                f"time, or check that its server answers{f' ({cause.message})' if cause else ''}"
            )
        )

    def _fail_parked(self, error: KeyholeError) -> None:
        for batch in self._unparked():
            batch.fail(error)

    def _unparked(self) -> list[LookupBatch]:
        parked, self._parked = self._parked, {}
        for expiry in parked.values():
            expiry.cancel()
        return list(parked)
