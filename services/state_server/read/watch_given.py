"""How far one watch is: what was given of each key group, by when, and what its reader was sent of that."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from keyhole.clock import Clock
from keyhole.encoding.watch_token import NOT_BEGUN, WatchMark, WatchPlace
from keyhole.errors import KeyholeError, MalformedRequest, NotReady
from keyhole.model.epoch import NO_EPOCH, EpochStamp, Position
from keyhole.rpc.watch_requests import WatchAsked
from services.state_server.read.table import Table
from services.state_server.read.watch_messages import Message, Sent
from services.state_server.read.watch_times import GivenTimes


class GivenSoFar:
    """Of one watch. Those who give it something move the marks, and make its messages here. Event loop.

    Args:
        ended: Why the watch ends where nothing of its state is here any more.

    Attributes:
        marks: How far it is with each of its key groups.
        times: By when all was given of each.
        stamp: Of the last epoch of which all was given.
        refreshed_ms: When what has changed of the rows that were given was last given: milliseconds since 1970, UTC.
    """

    def __init__(self, table: Table, asked: WatchAsked, clock: Clock, ended: Callable[[], KeyholeError | None]) -> None:
        self.marks: dict[int, WatchMark] = {}
        self.times = GivenTimes()
        self.stamp = NO_EPOCH
        self.refreshed_ms = 0
        self._table = table
        self._changes = table.changes
        self._asked = asked
        self._clock = clock
        self._ended = ended
        self._descriptor = table.descriptor
        # When its reader was sent something last, and up to which epoch it had all then.
        self._sent_at, self._sent_epoch = clock.monotonic(), 0

    def begin(self) -> None:
        """Stands where its token says; without one, at the first row or at what is published.

        Raises:
            MalformedRequest: Its token names what no watch can have given.
        """
        asked = self._asked
        self.times.given_all(self._table.complete_ms)
        if asked.place is not None:
            self.marks = {group: asked.place.marks[group] for group in asked.key_groups}
            if any(mark.begun for mark in self.marks.values()):
                # By a clock that was ahead of this one, or made up: nothing was committed later than now.
                self.times.all_ms = min(asked.place.as_of_ms, self._clock.now_ms())
                self._check_place(asked.place)
        elif asked.snapshot:
            self.marks = dict.fromkeys(asked.key_groups, NOT_BEGUN)
        else:
            self.marks = {group: WatchMark.at(self._changes.positions[group]) for group in asked.key_groups}
        self.refreshed_ms = self.times.all_ms

    def _check_place(self, place: WatchPlace) -> None:
        most = self._table.keys.most_bytes
        if any(len(mark.below or b"") > most for mark in place.marks.values()):
            raise MalformedRequest(
                f"the token names no place of state {self._table.name}: a key of it takes {most} bytes at most. Begin "
                "its watch without it"
            )

    def check_here(self) -> None:
        """Passes where its key groups are this server's. Raises NotOwner, NotReady, and what `ended` gives."""
        if (ended := self._ended()) is not None:
            raise ended
        if not self._asked.key_groups <= self._table.groups:
            raise self._table.refusal()

    def check_reached(self) -> None:
        """Passes where all that was given is published here. Raises NotReady."""
        positions = self._changes.positions
        for group, mark in self.marks.items():
            self.check_not_ahead(group, mark, positions[group])

    def check_not_ahead(self, group: int, mark: WatchMark, position: Position) -> None:
        """Passes where a key group was given up to this position at most. Raises NotReady."""
        if mark.begun and mark.offset > position.offset:
            raise NotReady(
                f"this server's copy of key group {group} of state {self._table.name} is behind the watch's token",
                server=self._table.server,
            )

    def check_age(self, key_groups: Iterable[int]) -> None:
        """Passes where the changelog has all that these lack. Raises ResumeGone."""
        self.times.check(key_groups, self._clock.now_ms(), self._table.name)

    def message(self, *sent: Sent, snapshot_done: bool = False) -> Message:
        """What its reader is sent now, with the token behind it. No message has none: what another server sends in
        between has one, which would be before what this one has sent.
        """
        self._sent_at, self._sent_epoch = self._clock.monotonic(), self.stamp.epoch
        begun = [group for group, mark in self.marks.items() if mark.begun]
        as_of_ms = self.times.least(begun)
        token = WatchPlace(self.marks, as_of_ms).token(self._descriptor, self._asked.digest)
        feed = self._table.feed
        told_ms = as_of_ms if feed is None else feed.all_ms(begun, as_of_ms)
        return Message(sent, token, told_ms, self.stamp, snapshot_done)

    @property
    def progress_left(self) -> float:
        """In how many seconds a message is due, also where nothing has come."""
        return self._sent_at + self._asked.progress_seconds - self._clock.monotonic()

    def is_due(self) -> bool:
        """Whether a message is due, also where nothing has come."""
        return self.progress_left < 0

    @property
    def epoch_is_news(self) -> bool:
        """Its reader was not sent yet up to which epoch it has all."""
        return not self.stamp.epoch or self._sent_epoch != self.stamp.epoch

    @property
    def published(self) -> EpochStamp:
        """Of the last epoch that readers see; of a state that is fed by updates there is none."""
        return NO_EPOCH if self._table.feed is not None else self._table.standing.stamp

    def reach_published(self) -> None:
        """All that was published has been given."""
        if not self._asked.key_groups <= self._table.groups:  # whose next owner may have written since
            return
        positions = self._changes.positions
        for group, mark in self.marks.items():
            if mark.offset < positions[group].offset:
                self.marks[group] = WatchMark.at(positions[group])
        self.times.given_all(self._table.complete_ms)
        self.stamp = self.published
