"""A read: its bounds, its answers, and the source that says how fresh they are. Frozen values, pure."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from keyhole.errors import MalformedRequest
from keyhole.model.html_tables import answer_table, entries_table


class Stale(enum.StrEnum):
    """Whether a copy other than the confirmed owner's may answer a read.

    NEVER: the owner alone, while its lease is valid. WHEN_NEEDED: the owner where it answers in time, else any copy
    that meets the caller's bounds. ALWAYS: any copy that meets them.
    """

    NEVER = "never"
    WHEN_NEEDED = "when_needed"
    ALWAYS = "always"


class ReadBounds(NamedTuple):
    """What an answer must meet. One that can't be met is an error that says why.

    Attributes:
        min_epoch: It holds this epoch or a later one; 0: no bound.
        stale: Whether a copy other than the confirmed owner's may give it.
        max_staleness_ms: It holds all that was complete so many milliseconds ago; 0: no bound.
        min_epochs: By key group, ascending, where it is to hold a later one than `min_epoch`.
        as_of: It is as of this very epoch; 0: of the last one. The other bounds of epoch and age are empty then.
        latest: It may hold, beyond that, what is staged and not committed. Without `as_of`, and not of any copy.
    """

    min_epoch: int = 0
    stale: Stale = Stale.WHEN_NEEDED
    max_staleness_ms: int = 0
    min_epochs: tuple[tuple[int, int], ...] = ()
    as_of: int = 0
    latest: bool = False

    def check_latest(self) -> None:
        """Whether they can be met, where the latest is asked for.

        Raises:
            MalformedRequest: It is to be of an epoch that is committed, or of any copy: what is staged, the owner has.
        """
        if self.as_of:
            raise MalformedRequest(
                "as_of asks for an epoch that is committed, and latest for what is not: leave one out"
            )
        if self.stale is Stale.ALWAYS:
            raise MalformedRequest("latest asks for what is staged, which the owner alone has: leave stale=always out")

    def among(self, key_groups: Collection[int]) -> ReadBounds:
        """What they come to where all keys are of these key groups, at least one: with as few that are named as can be.

        So what is asked of one key group names none, and its `min_epoch` says it all.
        """
        if not self.min_epochs:
            return self
        named = dict(self.min_epochs)
        wanted = {group: max(self.min_epoch, named.get(group, 0)) for group in key_groups}
        lowest = min(wanted.values())
        above = tuple(sorted((group, epoch) for group, epoch in wanted.items() if epoch > lowest))
        return self._replace(min_epoch=lowest, min_epochs=above)

    def least_of(self, key_groups: Iterable[int]) -> tuple[int, ...]:
        """The epoch that an answer must hold at least, of each of these key groups."""
        named = dict(self.min_epochs)
        return tuple(max(self.min_epoch, named.get(group, 0)) for group in key_groups)


class Role(enum.StrEnum):
    """What the copy that answers is to a key group.

    OWNER: the server that owns it. STANDBY: one that follows it. MIRROR: no server, but a copy in the reader's process.
    """

    OWNER = "owner"
    STANDBY = "standby"
    MIRROR = "mirror"


class Source(msgspec.Struct, frozen=True):
    """Who answered, and as of when. Every answer has one.

    Attributes:
        server: The id of the state server; empty: a mirror has answered.
        epoch: The epoch whose changes the answer holds; 0: none was committed yet.
        commit_time: When that epoch's rows were all staged and its commit was decided, UTC; None with epoch 0.
        watermark: The event-time watermark of that epoch, UTC; None where the query has none. Beyond the year 9999 it
            is the last moment of that.
        unconfirmed: The owner has not heard of its coordinator for the lease time: a newer owner may exist.
        as_of: The answer holds all that was complete at this time, by the coordinator's clock; None: not known.
        lag_epochs: How many complete epochs this copy is known to lack; an owner lacks none.
        staged_epoch: The answer also holds the rows of this epoch, which are staged and not committed: they may still
            come to nothing. Only where a reader asks for the latest. 0: all of the answer is committed.
    """

    server: str
    role: Role
    epoch: int
    commit_time: datetime | None
    watermark: datetime | None
    generation: int
    assignment_version: int
    unconfirmed: bool
    as_of: datetime | None = None
    lag_epochs: int = 0
    staged_epoch: int = 0


def _in_words(source: Source) -> str:
    when = "" if source.commit_time is None else f", committed {source.commit_time:%Y-%m-%d %H:%M:%S} UTC"
    doubt = "; unconfirmed: a newer owner may exist" if source.unconfirmed else ""
    staged = f", with what is staged of epoch {source.staged_epoch}" if source.staged_epoch else ""
    return f"epoch {source.epoch}{when}{staged}, by {source.role} {source.server}{doubt}"


class Answer(msgspec.Struct, frozen=True):
    """The answer to one lookup. True where the key was found, whatever its value is.

    With `epoch` 0 nothing was committed yet: that a key is not found then says nothing of it.

    Attributes:
        value: An immutable row (keyhole.encoding.row.Row); None where the key is absent.
    """

    found: bool
    value: Any
    source: Source

    def __bool__(self) -> bool:
        return self.found

    if not TYPE_CHECKING:  # a type checker says by itself that there is no such thing

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"an answer has no {name!r}; fields are those of its value: answer.value.{name}")

        def __getitem__(self, name: Any) -> Any:
            raise TypeError(f"an answer has no fields; its value has: answer.value[{name!r}]")

    def value_or(self, default: Any) -> Any:
        """The value; where the key is absent, this one."""
        return self.value if self.found else default

    def _repr_html_(self) -> str:
        """For notebooks: the value by field, and its source."""
        return answer_table(self.found, self.value, _in_words(self.source))

    @property
    def epoch(self) -> int:
        """The epoch whose changes the answer holds; 0: none was committed yet."""
        return self.source.epoch

    @property
    def commit_time(self) -> datetime | None:
        """When the epoch's commit was decided, UTC, by the driver's clock; None with epoch 0."""
        return self.source.commit_time

    @property
    def committed(self) -> bool:
        """All of the answer is committed: always, but where the latest was asked for. See Source.staged_epoch."""
        return not self.source.staged_epoch

    @property
    def server(self) -> str:
        """The id of the state server that answered."""
        return self.source.server

    @property
    def role(self) -> Role:
        """What that server is to the key's key group."""
        return self.source.role


class Entry(NamedTuple):
    """One entry of a key: its map key (one value, or a tuple where there are several columns) and its value.

    Of a list the map key is the element's position, which grows with each append.
    """

    map_key: Any
    value: Any


class KeyedEntry(NamedTuple):
    """One entry of a scan of all keys.

    Attributes:
        key: One value, or a tuple where the key has several columns.
        map_key: As Entry has it; None where the state has one value per key.
        value: An immutable row.
        source: Who gave it, and as of when. Entries of one key group have the same epoch; others may have another one.
    """

    key: Any
    map_key: Any
    value: Any
    source: Source


class Entries(msgspec.Struct, frozen=True):
    """The answer to a scan: entries of one key in order, all as of one epoch; empty where there are none."""

    entries: tuple[Entry, ...]
    source: Source

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __getitem__(self, index: int) -> Entry:
        return self.entries[index]

    def _repr_html_(self) -> str:
        """For notebooks: the entries, and their source."""
        return entries_table(self.entries, _in_words(self.source))

    @property
    def values(self) -> tuple[Any, ...]:
        """The values without the map keys, in order: the elements of a list."""
        return tuple(entry.value for entry in self.entries)

    @property
    def epoch(self) -> int:
        """The epoch of which all entries are; 0: none was committed yet."""
        return self.source.epoch

    @property
    def committed(self) -> bool:
        """All of them are committed: always, but where the latest was asked for. See Source.staged_epoch."""
        return not self.source.staged_epoch
