"""What a watch gives: changes, or rows, of one key group, and how far it is behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from keyhole.model.epoch import EpochStamp
from keyhole.v1 import query_pb2 as pb


class SpelledChanges(NamedTuple):
    """Some of the changes as gRPC has them, and about how many bytes they take there."""

    changes: pb.WatchedChanges
    size: int


@dataclass
class Sent:
    """Changes of one epoch and key group, as columns.

    Attributes:
        rows: None: deleted.
        befores: None: not known, or not asked for.
        numbers: Which changes of the epoch they are; none: rows that were there.
        begins: The changelog's offset where the epoch begins.
        expires: When each expires, in milliseconds; 0: not known, or there is no row. None: nothing expires.
        shared: Several watches are sent the same. `spelled`: as gRPC has it, once it was made for one of them.
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
    shared: bool = False
    spelled: Sequence[SpelledChanges] | None = None

    def add(self, key: bytes, row: bytes | None, before: bytes | None = None, expires_ms: int = 0) -> None:
        """One more change, or row."""
        self.keys.append(key)
        self.rows.append(row)
        self.size += len(key) + len(row or b"") + len(before or b"")
        if self.befores is not None:
            self.befores.append(before)
        if self.expires is not None:
            self.expires.append(0 if row is None else expires_ms)


class GatheredChanges:
    """What the next message has. Key groups of an epoch share one: each costs as much as many changes."""

    def __init__(self, most_bytes: int, most_changes: int) -> None:
        self._most_bytes, self._most_changes = most_bytes, most_changes
        self._sent: list[Sent] = []
        self._bytes = self._changes = 0

    def add(self, *sent: Sent) -> bool:
        """Returns whether it is a message's worth now."""
        self._sent += sent
        for of in sent:
            self._bytes += of.size
            self._changes += len(of.keys)
        return self._bytes >= self._most_bytes or self._changes >= self._most_changes

    def taken(self) -> Sequence[Sent]:
        """All of it, which is not here any more."""
        taken, self._sent, self._bytes, self._changes = self._sent, [], 0, 0
        return taken


class Message(NamedTuple):
    """One message of a watch.

    Attributes:
        sent: In the order in which they are to be taken in.
        token: Goes on behind all that was sent until then.
        as_of_ms: All that was committed by then was sent.
        stamp: Of the last epoch that is sent to its end.
    """

    sent: Sequence[Sent]
    token: str
    as_of_ms: int
    stamp: EpochStamp
    snapshot_done: bool = False
