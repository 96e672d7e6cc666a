"""What a watch gives: changes, or rows, of one key group, and how far it is behind them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from keyhole.model.epoch import EpochStamp


@dataclass
class Sent:
    """Changes of one epoch and key group, as columns.

    Attributes:
        rows: None: deleted.
        befores: None: not known, or not asked for.
        numbers: Which changes of the epoch they are; none: that can't be gone on behind.
        begins: The changelog's offset where the epoch begins.
        expires: When each expires, in milliseconds; 0: not known, or there is no row. None: nothing expires.
    """

    key_group: int
    stamp: EpochStamp
    snapshot: bool
    keys: list[bytes] = field(default_factory=list)
    rows: list[bytes | None] = field(default_factory=list)
    befores: list[bytes | None] | None = None
    numbers: list[int] = field(default_factory=list)
    begins: int = 0
    expires: list[int] | None = None
    size: int = 0

    def add(self, key: bytes, row: bytes | None, before: bytes | None = None, expires_ms: int = 0) -> None:
        """One more change, or row."""
        self.keys.append(key)
        self.rows.append(row)
        self.size += len(key) + len(row or b"") + len(before or b"")
        if self.befores is not None:
            self.befores.append(before)
        if self.expires is not None:
            self.expires.append(0 if row is None else expires_ms)


class Message(NamedTuple):
    """One message of a watch.

    Attributes:
        token: Empty: what it has is a part of something, after which one can't go on.
        as_of_ms: All that was committed by then was sent.
        stamp: Of the last epoch that is sent to its end.
    """

    sent: Sent | None
    token: str
    as_of_ms: int
    stamp: EpochStamp
    snapshot_done: bool = False
