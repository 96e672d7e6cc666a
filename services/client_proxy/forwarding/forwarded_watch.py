"""How far a watch was forwarded: what the tokens of its parts say, put together to the one that its reader gets."""

from __future__ import annotations

from collections.abc import Set

from keyhole.encoding.watch_token import NOT_BEGUN, WatchMark, WatchPlace, watch_place
from keyhole.model.epoch import NO_EPOCH, EpochStamp
from keyhole.model.state import StateDescriptor
from keyhole.rpc.watch_requests import WatchAsked


class ForwardedWatch:
    """Of one watch. Event loop.

    Attributes:
        as_of_ms: All that was committed by then was forwarded: milliseconds since 1970; 0: not known.
        stamp: All up to this epoch was forwarded.
        told_done: Its reader knows that all rows were forwarded.
    """

    def __init__(self, asked: WatchAsked, descriptor: StateDescriptor) -> None:
        self._asked = asked
        self._descriptor = descriptor
        self._marks: dict[int, WatchMark] = {}
        if asked.place is not None:
            self._marks = {group: asked.place.marks[group] for group in asked.key_groups}
        elif asked.snapshot:
            self._marks = dict.fromkeys(asked.key_groups, NOT_BEGUN)
        self.as_of_ms = 0 if asked.place is None else asked.place.as_of_ms
        self.stamp = NO_EPOCH
        self.told_done = asked.place is not None and self._rows_done

    @property
    def _rows_done(self) -> bool:
        """All rows that were there were forwarded."""
        marks = self._marks
        return len(marks) == len(self._asked.key_groups) and all(mark.below is None for mark in marks.values())

    def take(self, token: str) -> None:
        """What a part has said behind this token was forwarded."""
        self._marks |= watch_place(token, self._descriptor, self._asked.digest).marks

    def reach(self, as_of_ms: int) -> None:
        """All that was committed by then was forwarded, also where it was more before."""
        self.as_of_ms = max(self.as_of_ms, as_of_ms)

    def complete(self, stamp: EpochStamp) -> EpochStamp:
        """All up to this epoch was forwarded, also where it was more before: a part that is asked anew says of none
        yet. Returns the last of them.
        """
        self.stamp = max(self.stamp, stamp)
        return self.stamp

    def take_done(self) -> bool:
        """Whether its reader is to hear now that all rows were forwarded, which is said once."""
        if self.told_done:
            return False
        self.told_done = self._rows_done
        return self.told_done

    def has_place(self, key_groups: Set[int]) -> bool:
        """Whether these have a place: one can go on there, or where none was given, at the first row."""
        return key_groups <= self._marks.keys()

    def token(self) -> str:
        """Where the whole watch goes on."""
        return WatchPlace(self._marks, self.as_of_ms).token(self._descriptor, self._asked.digest)

    def token_of(self, key_groups: Set[int]) -> str:
        """Where these go on; empty: at the first row. All must have a place.

        A token by which nothing was given says no more than none, and a server may not know what it is bound to.
        """
        if not any(self._marks[group].begun for group in key_groups):
            return ""
        place = WatchPlace({group: self._marks[group] for group in key_groups}, self.as_of_ms)
        return place.token(self._descriptor, self._asked.digest)
