"""The records of a changelog partition: their layout, and how they come together to epochs again. Pure.

    a change     key = storage key (3 bytes or more), value = row, or null: deleted
    a marker     key = MARKER_KEY (1 byte), value = JSON

docs/changelog.md tells the same to those who read a changelog in another language.
"""

from __future__ import annotations

import msgspec

from keyhole.changelog.base import Marker, Partition, RestoredEpochs
from keyhole.errors import TopicMismatch
from keyhole.types import Position

LAYOUT_VERSION = 1

MARKER_KEY = b"\x00"
"""No storage key is as short: they begin with two bytes of key group. Compaction keeps each partition's last marker."""


class _MarkerRecord(msgspec.Struct):
    """JSON. 64-bit hashes are hexadecimal text: many JSON readers have only doubles."""

    layout: int
    epoch: int
    generation: int
    commit_time_ms: int
    watermark_ms: int
    checksum: str
    offsets_hash: str


class _Layout(msgspec.Struct):
    layout: int


def encode_marker(marker: Marker) -> bytes:
    """The value of a marker's record."""
    return msgspec.json.encode(
        _MarkerRecord(
            layout=LAYOUT_VERSION,
            epoch=marker.epoch,
            generation=marker.generation,
            commit_time_ms=marker.commit_time_ms,
            watermark_ms=marker.watermark_ms,
            checksum=f"{marker.checksum:016x}",
            offsets_hash=f"{marker.offsets_hash:016x}",
        )
    )


def decode_marker(value: bytes | None, partition: Partition, offset: int) -> Marker:
    """The marker in a record's value. Fields that are not known are ignored.

    Raises:
        TopicMismatch: Another layout, or not a marker at all.
    """
    try:
        layout = msgspec.json.decode(value or b"", type=_Layout).layout
        if layout != LAYOUT_VERSION:
            raise TopicMismatch(
                f"{_where(partition, offset)} has layout {layout}; this version reads layout {LAYOUT_VERSION}: use the "
                "version of Keyhole that wrote it, or a later one",
                state=partition.state,
                layout=layout,
            )
        read = msgspec.json.decode(value or b"", type=_MarkerRecord)
        return Marker(
            epoch=read.epoch,
            generation=read.generation,
            commit_time_ms=read.commit_time_ms,
            watermark_ms=read.watermark_ms,
            checksum=int(read.checksum, 16),
            offsets_hash=int(read.offsets_hash, 16),
        )
    except (msgspec.MsgspecError, ValueError) as error:
        raise _foreign(partition, offset) from error


def position_after(marker: Marker, offset: int) -> Position:
    """Where a copy stands that has applied everything up to the marker at this offset."""
    return Position(
        offset=offset + 1,
        epoch=marker.epoch,
        generation=marker.generation,
        checksum=marker.checksum,
        commit_time_ms=marker.commit_time_ms,
        watermark_ms=marker.watermark_ms,
    )


class EpochAssembler:
    """Puts the records of one partition, in their order, together to pieces that end at markers.

    Args:
        position: Where reading starts.
        piece_records: A piece is handed out at the first marker after this many records, or `piece_bytes`. One epoch,
            and the part of the log whose inner markers were compacted away, is one piece whatever its size.
    """

    def __init__(
        self, partition: Partition, position: Position, piece_records: int, piece_bytes: int = 16 << 20
    ) -> None:
        self._partition = partition
        self._prefix = partition.key_group.to_bytes(2, "big")
        self._piece_records = piece_records
        self._piece_bytes = piece_bytes
        self._position = position
        self._changes: list[tuple[bytes, bytes | None]] = []
        self._marker: Marker | None = None
        # Of `_changes`, those that the last marker covers, and the markers among the records so far.
        self._covered = 0
        self._markers = 0
        self._bytes = 0

    def add(self, key: bytes | None, value: bytes | None, offset: int) -> RestoredEpochs | None:
        """Takes the next record; returns a piece when one is full.

        Raises:
            TopicMismatch: Not a record of ours.
        """
        if key == MARKER_KEY:
            self._marker = decode_marker(value, self._partition, offset)
            self._position = position_after(self._marker, offset)
            self._covered = len(self._changes)
            self._markers += 1
            full = self._covered + self._markers >= self._piece_records or self._bytes >= self._piece_bytes
            return self.cut() if full else None
        if key is None or len(key) < 3 or not key.startswith(self._prefix):
            raise _foreign(self._partition, offset)
        self._changes.append((key, value))
        self._bytes += len(key) + len(value or b"")
        return None

    def end(self, offset: int) -> list[RestoredEpochs]:
        """What is left when the partition's end is reached: nothing, one piece, or one and a piece without a marker.

        Args:
            offset: The next offset to read.
        """
        whole = self.cut()
        left = [whole] if whole is not None else []
        if self._changes:
            self._position = self._position._replace(offset=offset)
            left.append(RestoredEpochs(self._partition, self._changes, self._position, None, len(self._changes)))
        return left

    def cut(self) -> RestoredEpochs | None:
        """All up to the last marker, full or not: a follower does not wait for more. None: no marker since the last."""
        if self._marker is None:
            return None
        covered = self._changes[: self._covered]
        piece = RestoredEpochs(self._partition, covered, self._position, self._marker, len(covered) + self._markers)
        self._changes = self._changes[self._covered :]
        self._marker, self._covered, self._markers, self._bytes = None, 0, 0, 0
        return piece


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
