"""What keeps a mirror's copy current: a watch, and what is done where that ends.

nobody answers, for a while    the copy stays, and gets older; the watch goes on behind its token
RESUME_GONE, TOO_SLOW          a new copy is taken, and takes the old one's place once it is whole
all else                       the mirror has ended: whoever reads it gets the reason
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from keyhole.backoff import Backoff
from keyhole.client.mirror_copy import MirrorCopy
from keyhole.client.wire.lookups import own_copy
from keyhole.client.wire.watch_stream import StoredMessage
from keyhole.errors import (
    ClientClosed,
    DeadlineExceeded,
    EpochNotReached,
    InternalError,
    KeyholeError,
    ResumeGone,
    StaleDescriptor,
    TooSlow,
    UnavailableError,
    Unsupported,
)

_FIRST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 0.05, 5.0
# A watch that has lasted so long has not ended because it was begun.
_STEADY_SECONDS = 60.0
# The watch knows why nobody answers, and says so about when its time is over.
_REASON_SECONDS = 1.0

_log = logging.getLogger(__name__)

BeginWatch = Callable[[str], AsyncGenerator[StoredMessage]]
"""Begins a watch behind a token; an empty one: with the rows that are there."""


class MirrorKeeper:
    """See the module's text. Event loop; whoever reads looks at `shown` from any thread.

    Args:
        name: Of the state, for messages: application/state.
        make: Makes an empty copy.
        backoff: How long it waits before it watches again.

    Attributes:
        shown: What is read. None: nothing yet, or it has ended.
        taken: How many whole copies were taken, the first one included.
    """

    def __init__(
        self, name: str, watch: BeginWatch, make: Callable[[], MirrorCopy], backoff: Backoff | None = None
    ) -> None:
        self._name = name
        self._watch = watch
        self._make = make
        self._backoff = backoff or Backoff(_FIRST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS)
        self._filling = make()
        self._ended: KeyholeError | None = None
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._topic_id = ""
        self.shown: MirrorCopy | None = None
        self.taken = 0

    def refusal(self) -> KeyholeError:
        """Why there is nothing to read. An object of its own for each who asks."""
        if (ended := self._ended) is None:
            return Unsupported(
                f"the mirror of {self._name} has not begun: read it inside of `with client.mirror(...)`, or of "
                "`async with`",
                state=self._name,
            )
        return own_copy(ended)

    async def begin(self, seconds: float) -> None:
        """Returns once there is a whole copy.

        Raises:
            DeadlineExceeded: It has not come in so many seconds.
            KeyholeError: What the watch has ended with.
        """
        if self._ended is not None:
            raise self.refusal()
        self._task = asyncio.create_task(self._run())

        def has() -> bool:
            return self.shown is not None

        # Where nothing has come at all, the watch has a better reason.
        if await self._until(has, seconds) or (not self._filling.messages and await self._until(has, _REASON_SECONDS)):
            return
        raise DeadlineExceeded(
            f"the mirror of {self._name} has not got all rows in {seconds:g} s, {self._filling.entries:,} so far; give "
            "it a larger timeout, or mirror fewer keys"
        )

    async def reached(self, epochs: int | Mapping[int, int], seconds: float) -> None:
        """Returns once the copy has these epochs. Raises EpochNotReached, or why the mirror has ended."""

        def has() -> bool:
            return self.shown is not None and self.shown.holds(epochs)

        if not await self._until(has, seconds):
            at = 0 if self.shown is None else self.shown.epoch
            raise EpochNotReached(
                f"the mirror of {self._name} has not reached epoch {epochs} in {seconds:g} s; it is at {at}", epoch=at
            )

    async def _until(self, true: Callable[[], bool], seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while not true():
                    if self._ended is not None:
                        raise self.refusal()
                    await self._moved.wait()
        except TimeoutError:
            return true()
        return True

    async def end(self) -> None:
        """The mirror is read no more. Idempotent."""
        if self._ended is None:
            self._end(ClientClosed(f"the mirror of {self._name} is closed; make another one", state=self._name))
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def abandon(self) -> None:
        """The event loop is closed: what keeps the copy has ended with it, and may have said nothing."""
        self._end(self._loop_ended())

    def _loop_ended(self) -> ClientClosed:
        return ClientClosed(f"the event loop of the mirror of {self._name} has ended", state=self._name)

    async def _run(self) -> None:
        try:
            await self._keep()
        except KeyholeError as error:
            self._end(error)
        except asyncio.CancelledError:
            # By `end`, or by an event loop that ends.
            self._end(self._loop_ended())
            raise
        except Exception:  # noqa: BLE001 - the top of a task: nobody else would tell those who read
            _log.exception("the mirror of %s has ended", self._name)
            self._end(InternalError(f"the mirror of {self._name} has ended, by a bug; the client's log has the cause"))

    def _end(self, error: KeyholeError) -> None:
        self._ended = self._ended or error
        self.shown, self._filling = None, self._make()
        self._tell()

    def _tell(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        token = ""
        while True:
            began = loop.time()
            try:
                async with aclosing(self._watch(token)) as messages:
                    async for message in messages:
                        self._take(message)
                        token = message.whole
            except (ResumeGone, TooSlow) as error:
                _log.warning("the mirror of %s takes its rows anew: %s", self._name, error)
                self._filling, token = self._make(), ""
            except UnavailableError as error:
                if self.shown is None or not _may_pass(error):
                    raise
                _log.warning("the mirror of %s is not kept current for the moment: %s", self._name, error)
            if loop.time() - began > _STEADY_SECONDS:
                self._backoff.reset()
            await asyncio.sleep(self._backoff.next())

    def _take(self, message: StoredMessage) -> None:
        topic_id = message.codec.descriptor.topic_id
        self._topic_id = self._topic_id or topic_id
        if topic_id != self._topic_id:
            raise StaleDescriptor(
                f"state {self._name} was made anew while it was mirrored; make another mirror of it",
                topic_id=topic_id,
            )
        copy = self._filling
        copy.take(message)
        if copy is not self.shown and copy.whole and (self.shown is None or copy.reaches(self.shown)):
            self.shown = copy
            self.taken += 1
        self._tell()


def _may_pass(error: UnavailableError) -> bool:
    """Whether the watch may go on in a while."""
    if isinstance(error, StaleDescriptor):
        # A row of a schema that no descriptor has yet; else the state was made anew.
        return "topic_id" not in error.facts
    return error.retryable or isinstance(error, DeadlineExceeded)
