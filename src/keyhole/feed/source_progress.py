"""What of a source was sent and is not acknowledged yet, and up to where all is. Pure.

read 5, 6, 7    acknowledged 5, 7    ->  the end is 6
read 5, 6, 7    acknowledged 5, 7, 6 ->  the end is 8
"""

from __future__ import annotations

from collections.abc import Mapping


class SourceProgress:
    """By partition of a source. Not thread-safe.

    Args:
        positions: By partition, up to where all was acknowledged before.
    """

    def __init__(self, positions: Mapping[int, int]) -> None:
        self._next = dict(positions)
        # By partition: of each offset that waits, for how many acknowledgements. In the order of the offsets.
        self._waiting: dict[int, dict[int, int]] = {partition: {} for partition in positions}
        self._count = 0

    def add(self, positions: Mapping[int, int]) -> None:
        """Partitions that there are from now on."""
        for partition, position in positions.items():
            self._next[partition] = position
            self._waiting[partition] = {}

    def begin(self, partition: int, offset: int, sends: int) -> None:
        """A record was read, which so many sends are made of; with none it is done.

        Offsets of a partition grow. Some may be missing: compaction takes records, and transactions need offsets.
        """
        assert offset >= self._next[partition]
        self._next[partition] = offset + 1
        if sends:
            self._waiting[partition][offset] = sends
            self._count += sends

    def acknowledged(self, partition: int, offset: int) -> None:
        """One of the sends of a record is in its topic for good."""
        waiting = self._waiting[partition]
        waiting[offset] -= 1
        self._count -= 1
        if not waiting[offset]:
            del waiting[offset]

    @property
    def waiting(self) -> int:
        """How many sends wait for their acknowledgement."""
        return self._count

    def ends(self) -> dict[int, int]:
        """By partition, the first offset of which not all is acknowledged, or that was not read yet."""
        return {
            partition: next(iter(self._waiting[partition]), following) for partition, following in self._next.items()
        }
