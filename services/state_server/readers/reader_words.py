"""What a state server and its reader processes say to each other, as keyhole.rpc.processes.word_framing has it.

server                    reader
  BeginReader  ─────────►                  once, first
  Shown        ─────────►                  what its tables show, whenever that has changed; first, all of them
               ◄─────────  ReaderStarted   it takes connections
               ◄─────────  PassedOn        a frame that it can't answer
  Answered     ─────────►
  AskReader    ─────────►                  each second
               ◄─────────  ReaderReport      what it has counted since
  Drain        ─────────►                  its callers are to ask by gRPC
  End          ─────────►
               ◄─────────  ReaderReport      the last one
"""

from __future__ import annotations

import msgspec

from keyhole.model.state import StateDescriptor
from services.state_server.read.standing import Standing


class BeginReader(msgspec.Struct, frozen=True, tag=True):
    """Which reader it is, from 1 on, of how many processes; the server itself is one of them, with number 0."""

    number: int
    count: int
    incarnation: str


class CopyShown(msgspec.Struct, frozen=True, array_like=True):
    """What one copy of a table shows.

    Attributes:
        commit: Of the snapshot that is published; None: none is.
        prefixes: Of the key groups that it answers for, one behind the other, ascending.
        apart: By prefix: what does not stand as `standing` says.
    """

    commit: int | None
    prefixes: bytes
    standing: Standing
    apart: dict[bytes, Standing]


class TableShown(msgspec.Struct, frozen=True, array_like=True):
    """All that a reader must know of one table.

    Attributes:
        number: Of the table in this server; another one of the same state has another.
        path, limit_bytes: Of its store; see StoreFiles.
        confirmed_monotonic, confirmed_ms, lease_seconds: Of its Lease. The clock is the machine's, of all processes.
    """

    number: int
    descriptor: StateDescriptor
    path: str
    limit_bytes: int
    confirmed_monotonic: float
    confirmed_ms: int
    lease_seconds: float
    owned: CopyShown
    standby: CopyShown


class Shown(msgspec.Struct, frozen=True, tag=True):
    """These tables are so, and these are gone, by number; all others are as they were said to be.

    Attributes:
        since: The `count` of the word before; -1: this is of all tables, and needs none before it.
        count: Of changes until then: the shared number has it as long as nothing has changed since.
    """

    since: int
    count: int
    tables: tuple[TableShown, ...]
    gone: tuple[int, ...]


class Answered(msgspec.Struct, frozen=True, tag=True):
    """The LookupResponse to the frame that was passed on under this number; empty: it failed unexpectedly."""

    number: int
    response: bytes


class AskReader(msgspec.Struct, frozen=True, tag=True):
    """What have you counted? A reader that answers nothing for too long is ended."""


class Drain(msgspec.Struct, frozen=True, tag=True):
    """The server ends: callers are told to ask by gRPC, and no more connections come."""


class End(msgspec.Struct, frozen=True, tag=True):
    """Connections are cut off, and the process ends."""


class ReaderStarted(msgspec.Struct, frozen=True, tag=True):
    """The reader knows all tables, and takes connections."""


class PassedOn(msgspec.Struct, frozen=True, tag=True):
    """A LookupRequest whose caller may read what it asks for, and which the server itself is to answer.

    Attributes:
        until: When its caller waits no more, on the machine's clock, of all processes; None: it has not said.
    """

    number: int
    request: bytes
    until: float | None = None


class CountedState(msgspec.Struct, frozen=True, array_like=True):
    """Lookups of one state; of states that the server has not, all together, with empty names."""

    application: str
    state: str
    keys: int
    frames: int
    failed: dict[str, int]


class CountedHistogram(msgspec.Struct, frozen=True, array_like=True):
    """What keyhole.metrics.counters.Histogram has, without its bounds."""

    counts: list[int]
    sum: float


class CopiesBehind(msgspec.Struct, frozen=True, array_like=True):
    """Of a table, by number: which of its copies a reader can't show, as the store has gone on behind them."""

    number: int
    owned: bool
    standby: bool


class ReaderReport(msgspec.Struct, frozen=True, tag=True):
    """What a reader has counted since it reported last; and how it is now.

    Attributes:
        passed_on: Frames.
        limited: By limit; see ReadAdmission.refused.
        expired: Keys.
        refusals: By reason; see Refusals.
        calls: Connections whose caller is known, now.
        ended: Of the connections that it was ever given.
        behind: Of what its stores have gone on behind: it can't show that, and asks for later views.
        cpu_seconds: Since it reported last.
        resident_bytes: Now.
    """

    states: tuple[CountedState, ...]
    lookup_seconds: CountedHistogram
    frame_keys: CountedHistogram
    passed_on: int
    limited: dict[str, int]
    expired: int
    refusals: dict[str, int]
    calls: int
    ended: int
    behind: tuple[CopiesBehind, ...]
    cpu_seconds: float
    resident_bytes: int


ToReader = BeginReader | Shown | Answered | AskReader | Drain | End
ToServer = ReaderStarted | PassedOn | ReaderReport
