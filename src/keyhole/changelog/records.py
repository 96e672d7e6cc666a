"""The records of a changelog partition: their layout, and how they come together to epochs again. Pure.

    a change     key = storage key (3 bytes or more), value = row, or null: deleted
    a marker     key = MARKER_KEY (1 byte), value = JSON

docs/changelog.md has the same for those who read a changelog in another language.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard, cast

import msgspec

from keyhole.changelog.base import Marker, Partition, RestoredEpochs
from keyhole.encoding.envelope import PLAIN, WITH_VERSIONS
from keyhole.encoding.storage_key import GROUP_BYTES, prefix_of
from keyhole.errors import TopicMismatch
from keyhole.hints import ready
from keyhole.model.epoch import EpochStamp, Position
from keyhole.protocol.seen import FeedPosition

MARKER_KEY = b"\x00"
"""No storage key is as short: they begin with two bytes of key group. Compaction keeps each partition's last marker."""


@ready
class _MarkerRecord(EpochStamp, frozen=True):
    """JSON, with the fields of the epoch's stamp beside these.

    64-bit hashes are hexadecimal text: many JSON readers have only doubles.
    """

    layout: int
    checksum: str
    offsets_hash: str
    feed: FeedPosition | None = None


@ready
class _LayoutAlone(msgspec.Struct):
    layout: int


def encode_marker(marker: Marker) -> bytes:
    """The value of a marker's record."""
    fields = {
        "layout": marker.layout,
        **msgspec.structs.asdict(marker.stamp),
        "checksum": f"{marker.checksum:016x}",
        "offsets_hash": f"{marker.offsets_hash:016x}",
    }
    return msgspec.json.encode(fields if marker.feed is None else fields | {"feed": marker.feed})


def decode_marker(value: bytes | None, partition: Partition, offset: int) -> Marker:
    """The marker in a record's value. Fields that are not known are ignored.

    Raises:
        TopicMismatch: Another layout, or not a marker at all.
    """
    try:
        layout = msgspec.json.decode(value or b"", type=_LayoutAlone).layout
        if not PLAIN <= layout <= WITH_VERSIONS:
            raise TopicMismatch(
                f"{_where(partition, offset)} has layout {layout}; this version reads layouts {PLAIN} to "
                f"{WITH_VERSIONS}: use the version of Keyhole that wrote it, or a later one",
                state=partition.state,
                layout=layout,
            )
        read = msgspec.json.decode(value or b"", type=_MarkerRecord)
        return Marker(
            stamp=EpochStamp(read.epoch, read.generation, read.commit_time_ms, read.watermark_ms),
            checksum=int(read.checksum, 16),
            offsets_hash=int(read.offsets_hash, 16),
            layout=layout,
            feed=read.feed,
        )
    except (msgspec.MsgspecError, ValueError) as error:
        raise _foreign(partition, offset) from error


def position_after(marker: Marker, offset: int) -> Position:
    """Where a copy stands that has applied everything up to the marker at this offset."""
    return Position.after(offset, marker.stamp, marker.checksum)


class Records(NamedTuple):
    """Records of one partition, in their order, as columns: keys and values of equal number.

    Attributes:
        offset_at: Index -> offset; asked only of markers, and of the last.
    """

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    offset_at: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class PieceLimits:
    """When an EpochAssembler hands out what it has.

    Attributes:
        records, bytes: At the first marker after this many records, or bytes.
        unmarked_records, unmarked_bytes: Without waiting for a marker.
    """

    records: int = 20_000
    bytes: int = 16 << 20
    unmarked_records: int = 50_000
    unmarked_bytes: int = 64 << 20


EACH_EPOCH = PieceLimits(records=1, bytes=1, unmarked_records=1 << 62, unmarked_bytes=1 << 62)
"""Each epoch is a piece of its own, whole."""


class EpochAssembler:
    """Puts the records of one partition, in their order, together to pieces that end at markers.

    Two things are handed out in pieces without a marker: an epoch that is too large to be held, and the part of a log
    whose inner markers were compacted away. What has been applied between them is no state that ever existed.

    Args:
        position: Where reading starts.
    """

    def __init__(self, partition: Partition, position: Position, limits: PieceLimits) -> None:
        self._partition = partition
        self._prefix = prefix_of(partition.key_group)
        self._limits = limits
        self._position = position
        self._changes: list[tuple[bytes, bytes | None]] = []
        self._bytes = 0
        # What the last marker covers of them, and the markers among the records so far.
        self._marker: Marker | None = None
        self._covered = 0
        self._covered_bytes = 0
        self._markers = 0

    def add(self, records: Records) -> list[RestoredEpochs]:
        """Takes the next records; returns the pieces that are full.

        Raises:
            TopicMismatch: Not a record of ours.
        """
        keys, values, offset_at = records
        pieces: list[RestoredEpochs] = []
        start = 0
        for _ in range(keys.count(MARKER_KEY)):
            at = keys.index(MARKER_KEY, start)
            pieces += self._take(records, start, at)
            offset = offset_at(at)
            self._marker = decode_marker(values[at], self._partition, offset)
            self._position = position_after(self._marker, offset)
            self._covered, self._covered_bytes = len(self._changes), self._bytes
            self._markers += 1
            if self._covered + self._markers >= self._limits.records or self._bytes >= self._limits.bytes:
                pieces += self.cut()
            start = at + 1
        pieces += self._take(records, start, len(keys))
        return pieces

    def end(self, offset: int) -> list[RestoredEpochs]:
        """What is left when the partition's end is reached: nothing, one piece, or one and a piece without a marker.

        Args:
            offset: The next offset to read.
        """
        return [*self.cut(), *self._torn(offset)]

    def _take(self, records: Records, start: int, end: int) -> list[RestoredEpochs]:
        """Changes, without a marker among them."""
        pieces: list[RestoredEpochs] = []
        while start < end:
            room = self._limits.unmarked_records - (len(self._changes) - self._covered)
            stop = min(end, start + room)
            self._append(records, start, stop)
            if stop - start == room or self._bytes - self._covered_bytes >= self._limits.unmarked_bytes:
                pieces += self.end(records.offset_at(stop - 1) + 1)
            start = stop
        return pieces

    def _append(self, records: Records, start: int, end: int) -> None:
        keys, values = records.keys[start:end], records.values[start:end]
        if not self._are_ours(keys):
            ours = [self._are_ours([key]) for key in keys]
            raise _foreign(self._partition, records.offset_at(start + ours.index(False)))
        self._changes.extend(zip(keys, values, strict=True))
        self._bytes += sum(map(len, keys)) + sum(map(len, filter(None, values)))

    def _are_ours(self, keys: Sequence[bytes | None]) -> TypeGuard[Sequence[bytes]]:
        present = cast("Sequence[bytes]", keys)
        try:
            least, greatest = min(present), max(present)
        except TypeError:
            return False  # None among others
        # What is between two keys of a key group is of it, too; and the prefix alone would be the least of all.
        return (
            keys[0] is not None
            and least.startswith(self._prefix)
            and greatest.startswith(self._prefix)
            and len(least) > GROUP_BYTES
        )

    def cut(self) -> list[RestoredEpochs]:
        """All up to the last marker, full or not: a follower does not wait for more."""
        if self._marker is None:
            return []
        if self._covered == len(self._changes):
            covered, self._changes = self._changes, []
        else:
            covered, self._changes = self._changes[: self._covered], self._changes[self._covered :]
        records = len(covered) + self._markers
        piece = RestoredEpochs(self._partition, covered, self._position, self._marker, records, self._covered_bytes)
        self._bytes -= self._covered_bytes
        self._marker, self._covered, self._covered_bytes, self._markers = None, 0, 0, 0
        return [piece]

    def _torn(self, offset: int) -> list[RestoredEpochs]:
        """What no marker covers. Comes after `cut`."""
        if not self._changes:
            return []
        torn, torn_bytes = self._changes, self._bytes
        self._changes, self._bytes = [], 0
        self._position = self._position._replace(offset=offset)
        return [RestoredEpochs(self._partition, torn, self._position, None, len(torn), torn_bytes)]


def _where(partition: Partition, offset: int) -> str:
    return f"the changelog record of state {partition.state!r}, partition {partition.key_group}, offset {offset}"


def _foreign(partition: Partition, offset: int) -> TopicMismatch:
    return TopicMismatch(
        f"{_where(partition, offset)} was not written by Keyhole: something else writes to this topic, or it has "
        "another number of partitions than the state has key groups",
        state=partition.state,
        partition=partition.key_group,
        offset=offset,
    )
