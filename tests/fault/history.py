"""What was seen in one episode: a list of frozen records, which the checker judges. Times are of CLOCK_MONOTONIC.

That clock is one for all processes of a machine, so times of readers, drivers and faults compare.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from keyhole.protocol.failpoints import Step
from tests.fault.asked_where import Where
from tests.fault.recount import Question, Shown

OWNER = "owner"
STANDBY = "standby"
CHANGELOG = "changelog"


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """What an answer says of itself: keyhole.v1.Source."""

    server: str
    role: str
    epoch: int
    generation: int
    version: int
    unconfirmed: bool
    as_of_ms: int
    lag_epochs: int
    staged_epoch: int = 0

    @property
    def shown(self) -> int:
        """The epoch whose rows the answer has: one that is staged, where it says so."""
        return self.staged_epoch or self.epoch


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """The options of a read. `stale`, `max_staleness_ms` and `as_of_epoch` as in keyhole.v1.ReadOptions.

    Attributes:
        snapshot: Several keys are asked for as of one epoch, whichever that is.
        latest: Also what is staged and not committed.
    """

    min_epoch: int
    stale: str = "when_needed"
    max_staleness_ms: int = 0
    as_of_epoch: int = 0
    snapshot: bool = False
    latest: bool = False


class Read(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """One request that was answered: what was asked, what was told, and who says so.

    Of a scan that names several sources there is one answer for each: all of it must be true of each.
    """

    reader: str
    began: float
    ended: float
    state: str
    asked: Asked
    keys: tuple[Question, ...]
    rows: tuple[Shown, ...]
    claims: tuple[Claim, ...]


class FailedRead(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """One request that was refused, or not answered."""

    reader: str
    began: float
    ended: float
    state: str
    asked: Asked
    reason: str
    message: str


class KeysOf(msgspec.Struct, frozen=True, array_like=True):
    """Which keys of a state are asked for: from `start` (inclusive) to `stop` (exclusive); None: there is no bound.

    Attributes:
        order: "ascending" or "descending", by key and map key; empty: in any.
        where: What entries are asked for; None: all.
    """

    start: str | None = None
    stop: str | None = None
    order: str = ""
    where: Where | None = None

    def has(self, key: str) -> bool:
        return (self.start is None or key >= self.start) and (self.stop is None or key < self.stop)


class Scanned(msgspec.Struct, frozen=True, array_like=True, tag="scanned"):
    """A scan of all keys of a state, or of a range, that was read to its end. `asked` is true of each key group.

    Attributes:
        entries: As they came: the key, the map key (None: the state has one value per key), the fields, and which of
            the claims the entry had.
    """

    reader: str
    began: float
    ended: float
    state: str
    asked: Asked
    of: KeysOf
    entries: tuple[tuple[str, int | None, tuple[int, ...], int], ...]
    claims: tuple[Claim, ...]


class Counted(msgspec.Struct, frozen=True, array_like=True, tag="counted"):
    """How many entries a state has, or a range of its keys, as the servers have counted them; `claims` are of all key
    groups, and nobody knows which of them has which.
    """

    reader: str
    began: float
    ended: float
    state: str
    asked: Asked
    of: KeysOf
    count: int
    claims: tuple[Claim, ...]


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """A row or a change that a watch has told.

    Attributes:
        map_key: None: the state has one value per key.
        fields: None: deleted.
        snapshot: It was there when the watch began, or came to it.
    """

    key: str
    map_key: int | None
    fields: tuple[int, ...] | None
    epoch: int
    snapshot: bool


class Watched(msgspec.Struct, frozen=True, array_like=True, tag="watched"):
    """What has come of a watch of a whole state, and was taken in.

    Attributes:
        chain: The same from a beginning without a token on, over all that goes on behind one.
        complete: All of this epoch has come; 0: of none, or it was left in the middle.
        further: Keys of key groups of which all of a later epoch has come, and that epoch.
        where: What entries it is of; None: all.
    """

    reader: str
    chain: int
    began: float
    ended: float
    state: str
    changes: tuple[Seen, ...]
    complete: int
    further: tuple[tuple[str, int], ...] = ()
    where: Where | None = None


class EpochStep(msgspec.Struct, frozen=True, array_like=True, tag="epoch"):
    """The driver has reached a step (keyhole.protocol.failpoints) of an epoch.

    Attributes:
        wall_ms: By the driver's own clock.
        states: Those that the query feeds whose epoch it is.
    """

    at: float
    wall_ms: int
    step: str
    epoch: int
    pid: int
    states: tuple[str, ...]


class Pinned(msgspec.Struct, frozen=True, array_like=True, tag="pinned"):
    """A batch has read a broadcast state, as of an epoch, or anew as it was run again."""

    at: float
    batch: int
    epoch: int


class Dealt(msgspec.Struct, frozen=True, array_like=True, tag="dealt"):
    """A batch has so many subtasks of an operator, or anew as it was run again."""

    at: float
    state: str
    batch: int
    subtasks: int


class Injected(msgspec.Struct, frozen=True, array_like=True, tag="fault"):
    """A fault that was carried out. `harmless`: a copy of every key group could be reached throughout."""

    kind: str
    targets: tuple[str, ...]
    began: float
    ended: float
    detail: str = ""
    harmless: bool = False


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """A process ended by itself, neither killed nor asked to."""

    at: float
    name: str
    reason: str
    message: str


class Contradiction(msgspec.Struct, frozen=True, array_like=True, tag="contradiction"):
    """What a server does with a key group does not follow from the state that it is in (observed_groups.py)."""

    at: float
    name: str
    text: str


class Held(msgspec.Struct, frozen=True, array_like=True, tag="held"):
    """At the end, all at rest: what one copy holds of some keys (recount.whole), as of an epoch.

    `role`: OWNER, STANDBY or CHANGELOG. `began`, `ended`: when it was asked.
    """

    where: str
    role: str
    state: str
    epoch: int
    rows: dict[str, Shown]
    began: float = 0.0
    ended: float = 0.0


Answered = Read | Scanned | Counted
Event = Answered | FailedRead | Watched | EpochStep | Pinned | Dealt | Injected | Ended | Contradiction | Held


class History(msgspec.Struct):
    """An episode.

    Attributes:
        final_epoch: The last one that the driver saw complete; -1: the cluster came to no rest.
        states: Those that were fed.
    """

    seed: int
    final_epoch: int
    states: tuple[str, ...]
    events: list[Event]

    @property
    def epochs_under_faults(self) -> int:
        """How many were completed of each state from the first fault's beginning to the last one's end."""
        faults = [event for event in self.events if isinstance(event, Injected)]
        began = min((fault.began for fault in faults), default=0.0)
        ended = max((fault.ended for fault in faults), default=0.0)
        completed: dict[str, set[int]] = {state: set() for state in self.states}
        for event in self.events:
            if isinstance(event, EpochStep) and event.step == Step.DRIVER_COMPLETE and began <= event.at <= ended:
                for state in event.states:
                    completed[state].add(event.epoch)
        return min(map(len, completed.values()))

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.msgpack.encode(self))


def load(path: Path) -> History:
    return msgspec.msgpack.decode(path.read_bytes(), type=History)
