"""Epochs for the contract of changelogs: what to write, and how to read it back."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from keyhole.changelog.base import Changelog, ChangelogWriter, Marker, Partition, PartitionChanges, RestoredEpochs
from keyhole.model.epoch import START, EpochStamp, Position
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueSchema
from tests.support.waiting import LONG_SECONDS

DEADLINE = LONG_SECONDS
GROUPS = 3


@dataclass(frozen=True)
class Cluster:
    """A Kafka, and an application name that no other test has.

    Attributes:
        delete_topic: (name) Returns when it is gone.
        abort: (topic, partition, records) Takes offsets with a transaction that is aborted.
    """

    application: str
    changelog: Callable[[], Changelog]
    delete_topic: Callable[[str], None]
    abort: Callable[[str, int, int], None]


def descriptor(cluster: Cluster, state: str = "a", key_groups: int = GROUPS, topic_id: str = "") -> StateDescriptor:
    return StateDescriptor(
        application=cluster.application,
        state=state,
        query="q",
        kind=StateKind.VALUE,
        key_groups=key_groups,
        key=(KeyColumn("k", KeyType.STRING),),
        value=ValueSchema(1, ()),
        topic_id=topic_id,
    )


def marker(epoch: int, generation: int = 1) -> Marker:
    return Marker(EpochStamp(epoch, generation, 1_000 + epoch, 500 + epoch), (1 << 63) + epoch, (1 << 64) - epoch)


def key(group: int, name: str) -> bytes:
    return group.to_bytes(2, "big") + name.encode() + b"\x00"


def changes(group: int, epoch: int, rows: dict[str, bytes | None], state: str = "a") -> PartitionChanges:
    return PartitionChanges(
        Partition(state, group), [(key(group, name), row) for name, row in rows.items()], marker(epoch)
    )


def grant() -> str:
    return f"grant-{uuid.uuid4().hex}"


def commit(changelog: Changelog, writer: ChangelogWriter, epoch: Sequence[PartitionChanges]) -> Mapping[Partition, int]:
    """Commits, and waits until readers see it: Kafka answers a little earlier."""
    offsets = writer.commit(epoch, DEADLINE)
    reader = changelog.reader()
    until = time.monotonic() + DEADLINE
    try:
        while any(
            reader.ends({part.state: [part.key_group]}, DEADLINE)[part] <= offset for part, offset in offsets.items()
        ):
            assert time.monotonic() < until
    finally:
        reader.close()
    return offsets


def read_all(changelog: Changelog, positions: dict[Partition, Position] | None = None) -> list[RestoredEpochs]:
    """All pieces of state "a" from the positions (default: the start) to the ends of now."""
    reader = changelog.reader()
    try:
        ends = reader.ends({"a": range(GROUPS)}, DEADLINE)
        starts = {part: (positions or {}).get(part, START) for part in ends}
        return list(reader.read(starts, ends, DEADLINE))
    finally:
        reader.close()


def rows(pieces: Iterable[RestoredEpochs]) -> dict[bytes, bytes]:
    """The state that results, deletions applied."""
    latest = {name: row for piece in pieces for name, row in piece.changes}
    return {name: row for name, row in latest.items() if row is not None}
