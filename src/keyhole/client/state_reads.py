"""The lookups of one state: encoded by its descriptor, which is asked for once, and again where it turns out stale."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from keyhole.client.coalescing import Lane
from keyhole.client.lookup_stream import LookupStream
from keyhole.client.lookups import Batch, BatchSink
from keyhole.client.segments import Segment
from keyhole.codec import StateCodec
from keyhole.errors import DeadlineExceeded, KeyholeError, StaleDescriptor
from keyhole.types import StateDescriptor

_AGAIN_SECONDS = 0.05

Describe = Callable[[str, str, float], Awaitable[StateDescriptor]]


class StateReads:
    """Used from the event loop's thread only.

    Args:
        describe: Asks for the descriptor: application, state, timeout in seconds.
        forget: Called when the state could not be described: whoever asks again asks the server again, too.
    """

    def __init__(
        self, stream: LookupStream, application: str, state: str, describe: Describe, forget: Callable[[], None]
    ) -> None:
        self._stream = stream
        self._application = application
        self._state = state
        self._ask = describe
        self._forget = forget
        self._codec: StateCodec | None = None
        self._topic_id = ""
        # With what ends their waiting, which would keep all of this alive.
        self._parked: dict[Batch, asyncio.TimerHandle] = {}
        self._describing: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def submit(self, batch: Batch) -> None:
        """Sends a batch, as soon as the descriptor is known. Errors go to its waiters."""
        codec = self._codec
        if codec is None:
            self._park(batch)
            return
        keys, refused = batch.encode(codec)
        if refused is not None and refused.keys:
            # The state may have been made anew with another key since it was described.
            self._park(refused)
        if not keys:
            return
        sink = BatchSink(
            batch,
            codec,
            lambda stale: self._submit_stale(stale, codec),
            lambda newer, error: self._submit_newer(newer, error, codec),
            self.submit,
        )
        lane = Lane(self._application, self._state, self._topic_id, batch.bounds, batch.patient)
        try:
            self._stream.submit(lane, Segment(keys, sink, batch.deadline))
        except KeyholeError as error:
            batch.fail(error)

    async def codec(self, deadline: float) -> StateCodec:
        """By the descriptor as it was told last. Raises KeyholeError where it can't be had in time."""
        if self._codec is None:
            try:
                descriptor = await self._ask(self._application, self._state, deadline - self._loop.time())
            except KeyholeError:
                self._forget()
                raise
            self._codec, self._topic_id = StateCodec(descriptor), descriptor.topic_id
        return self._codec

    def outdated(self, codec: StateCodec) -> None:
        """What the codec was made of is no longer so."""
        if self._codec is codec:
            self._codec = None

    def close(self, error: KeyholeError) -> None:
        """Fails what waits for the descriptor."""
        if self._describing is not None:
            self._describing.cancel()
        self._fail_parked(error)

    def _submit_stale(self, batch: Batch, codec: StateCodec) -> None:
        self.outdated(codec)
        self.submit(batch)

    def _submit_newer(self, batch: Batch, error: StaleDescriptor, codec: StateCodec) -> None:
        """Until the deadline: the one who describes the state may hear of a schema after its first row."""
        self.outdated(codec)
        if not batch.again:
            batch.again = True
            self.submit(batch)
        elif self._loop.time() + _AGAIN_SECONDS < batch.deadline:
            self._loop.call_later(_AGAIN_SECONDS, self.submit, batch)
        else:
            batch.fail(error)

    def _park(self, batch: Batch) -> None:
        self._parked[batch] = self._loop.call_at(batch.deadline, self._expire, batch)
        if self._describing is None:
            self._describing = self._loop.create_task(self._describe())

    async def _describe(self) -> None:
        try:
            descriptor = await self._ask_for_the_patient()
            self._codec = StateCodec(descriptor)
        except KeyholeError as error:
            self._forget()
            self._fail_parked(error)
            return
        finally:
            self._describing = None
        self._topic_id = descriptor.topic_id
        for batch in self._unparked():
            self.submit(batch)

    async def _ask_for_the_patient(self) -> StateDescriptor:
        """Again where batches with more time have come meanwhile."""
        while True:
            deadline = max(batch.deadline for batch in self._parked)
            try:
                return await self._ask(self._application, self._state, deadline - self._loop.time())
            except DeadlineExceeded:
                if all(batch.deadline <= deadline for batch in self._parked):
                    raise

    def _expire(self, batch: Batch) -> None:
        del self._parked[batch]
        batch.fail(
            DeadlineExceeded(
                f"state {self._application}/{self._state} could not be described within the deadline; give it more "
                "time, or check that its server answers"
            )
        )

    def _fail_parked(self, error: KeyholeError) -> None:
        for batch in self._unparked():
            batch.fail(error)

    def _unparked(self) -> list[Batch]:
        parked, self._parked = self._parked, {}
        for expiry in parked.values():
            expiry.cancel()
        return list(parked)
