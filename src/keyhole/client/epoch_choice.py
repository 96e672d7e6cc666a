"""Which epoch a snapshot of several states is of: the last one of all copies, one that is named, or that of a moment.

epoch            5      6      7      8
committed at  12:01  12:02  12:03  12:04      as of 12:02:30: epoch 6, while servers keep it
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from keyhole.client.wire.connection import Connection
from keyhole.errors import EpochGone, EpochNotReached, MalformedRequest
from keyhole.model.given import whole_of
from keyhole.model.read import Source
from keyhole.model.state import StateDescriptor

# Until copies are asked again whether they know of all that was complete at a moment.
_AGAIN_SECONDS = 0.05
# So many earlier epochs are looked at together.
_AT_ONCE = 16


class EpochChoice:
    """Of the states of one query. Used from the event loop's thread only.

    Args:
        described: The states, by application and name.
        until: When the answer is no longer wanted, on the event loop's clock.
    """

    def __init__(
        self, connection: Connection, described: Mapping[tuple[str, str], StateDescriptor], until: float
    ) -> None:
        self._connection = connection
        self._described = described
        self._until = until
        self._names = " and ".join(map("/".join, described))

    async def last(self) -> Source:
        """The last one that all copies have.

        Raises:
            EpochNotReached: One has none yet.
            KeyholeError: As AsyncClient.get, here and below.
        """
        return self._earliest(await self._sources())

    async def named(self, epoch: int) -> Source:
        """This one. Raises EpochGone, EpochNotReached: it is not kept of all key groups, or not there yet."""
        return self._earliest(await self._sources(epoch))

    async def at(self, moment: datetime) -> Source:
        """The last one that was committed at a moment, or before it.

        Raises:
            EpochNotReached: No copy knows yet what was complete then, or all epochs are later.
            EpochGone: It is kept no more.
        """
        while True:
            sources = await self._sources()
            last = self._earliest(sources)
            known = min(source.as_of or datetime.min.replace(tzinfo=UTC) for source in sources)
            if known >= moment:
                break
            if (moment - known).total_seconds() > self._left():
                raise EpochNotReached(
                    f"as_of is {moment.isoformat()}, and of {self._names} it is known what was complete at "
                    f"{known.isoformat()}; ask again later",
                    epoch=last.epoch,
                )
            await asyncio.sleep(_AGAIN_SECONDS)
        return last if _is_of(last, moment) else await self._before(last, moment)

    async def _before(self, last: Source, moment: datetime) -> Source:
        for behind in range(last.epoch, 1, -_AT_ONCE):
            asked = range(behind - 1, max(0, behind - 1 - _AT_ONCE), -1)
            # Of one key group: of all of them, the one that is chosen is asked for.
            found = await asyncio.gather(*map(self._of_first, asked))
            for epoch, one in zip(asked, found, strict=True):
                if isinstance(one, Source):
                    if _is_of(one, moment):
                        return await self.named(epoch)
                elif epoch < int(one.facts.get("oldest", 0)):
                    raise EpochGone(
                        f"as_of is {moment.isoformat()}, and of {self._names} no epoch is kept that was committed by "
                        "then; give the state more keep_epochs",
                        **one.facts,
                    )
        raise EpochNotReached(f"no epoch of {self._names} was committed by {moment.isoformat()}", epoch=0)

    async def _of_first(self, epoch: int) -> Source | EpochGone:
        try:
            (source,) = await self._connection.epochs(next(iter(self._described)), 1, self._left(), epoch)
        except EpochGone as gone:  # or one that never was: a new checkpoint may pass some over
            return gone
        return source

    async def _sources(self, as_of: int = 0) -> Sequence[Source]:
        reads = [
            self._connection.epochs(name, of.key_groups, self._left(), as_of) for name, of in self._described.items()
        ]
        return [source for of in await asyncio.gather(*reads) for source in of]

    def _earliest(self, sources: Iterable[Source]) -> Source:
        first = min(sources, key=lambda source: source.epoch)
        if not first.epoch:
            raise EpochNotReached(
                f"server {first.server} has no epoch of {self._names} yet: the job has committed none; ask again",
                epoch=0,
            )
        return first

    def _left(self) -> float:
        return self._until - self._connection.loop.time()


def _is_of(source: Source, moment: datetime) -> bool:
    return source.commit_time is not None and source.commit_time <= moment


def moment_or_epoch(given: object) -> datetime | int:
    """What a snapshot is asked to be as of; 0: the last epoch.

    Raises:
        MalformedRequest: It is neither an epoch nor a moment.
    """
    if given is None:
        return 0
    if isinstance(given, datetime):
        if given.utcoffset() is None:
            raise MalformedRequest(f"as_of is {given!r}, without a time zone; give one, as datetime.now(UTC)")
        return given
    if (epoch := whole_of(given)) is None or epoch < 1:
        raise MalformedRequest(f"as_of is {given!r}; give an epoch, from 1 on, or a datetime with a time zone")
    return epoch
