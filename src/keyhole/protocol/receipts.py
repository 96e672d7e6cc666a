"""What passes between the driver and its tasks: the order of a round, and each partition's receipt. Picklable."""

from __future__ import annotations

import msgspec

from keyhole.hints import ready
from keyhole.model.epoch import EpochStamp, Run
from keyhole.model.state import StateDescriptor
from keyhole.security.credentials import PLAIN, Credentials


class Target(msgspec.Struct, frozen=True):
    """A state server as the coordinator knows it."""

    server: str
    address: str
    incarnation: str


class StageOrder(msgspec.Struct, frozen=True):
    """One round of one epoch: who stages what, and where it goes.

    Attributes:
        routes: By state, one index into `targets` per key group.
        deadline_seconds: How long one partition may take to stage.
        descriptors: By state, as it was settled at the run's start: what the rows are encoded by.
        stamp: Of the epoch: what has expired by then is not merged with.
        credentials: What tasks show to the servers: names of files, which each executor has for itself.
        empties: The epoch takes the place of all that its states hold: nothing is merged with that.
        replaced: The states whose rows are all that they hold from then on, in each epoch (complete mode).
    """

    run: Run
    stamp: EpochStamp
    round: int
    assignment_version: int
    targets: tuple[Target, ...]
    routes: dict[str, tuple[int, ...]]
    deadline_seconds: float
    descriptors: dict[str, StateDescriptor]
    credentials: Credentials = PLAIN
    empties: bool = False
    replaced: frozenset[str] = frozenset()

    def replaces(self, state: str) -> bool:
        """Whether the rows of a state are all that it holds from then on, or are merged with what it holds."""
        return self.empties or state in self.replaced


class GroupReceipt(msgspec.Struct, frozen=True):
    """What a server holds of one key group: rows, bytes, and the sum of crc32(storage key, value) modulo 2^64."""

    key_group: int
    rows: int
    bytes: int
    checksum: int


class ServerReceipt(msgspec.Struct, frozen=True):
    """One server's answer to one partition. `error` is a reason and a message where it took nothing."""

    server: str
    incarnation: str
    groups: tuple[GroupReceipt, ...] = ()
    error: tuple[str, str] | None = None


@ready
class PartitionReceipt(msgspec.Struct, frozen=True):
    """What became of one partition of one state.

    Attributes:
        failure: Reason, message and facts of an error in the data itself: no other round can help.
    """

    state: str
    partition: int
    attempt_id: int
    servers: tuple[ServerReceipt, ...] = ()
    failure: tuple[str, str, dict[str, str]] | None = None

    def to_row(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_row(cls, row: bytes) -> PartitionReceipt:
        return msgspec.msgpack.decode(row, type=cls)
