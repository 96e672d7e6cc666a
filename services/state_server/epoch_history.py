"""What the last epochs of a query took, as its coordinator tells it: kept for who looks at the query."""

from __future__ import annotations

from collections.abc import Iterable

from keyhole.v1 import state_pb2 as pb

KEPT_EPOCHS = 240


class EpochHistory:
    """The last ones, by generation and epoch. Used from the event loop's thread only."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], pb.EpochTimes] = {}

    def note(self, epochs: Iterable[pb.EpochTimes]) -> None:
        """What is reported again takes the place of what was known: Spark reports later than the coordinator."""
        self._kept |= {(of.generation, of.epoch): of for of in epochs}
        for key in sorted(self._kept)[:-KEPT_EPOCHS]:
            del self._kept[key]

    @property
    def last(self) -> list[pb.EpochTimes]:
        """From the oldest to the newest."""
        return [of for _, of in sorted(self._kept.items())]
