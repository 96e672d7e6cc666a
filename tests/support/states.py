"""Builders for tests of the write path: one small state, its rows, its store, its table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.envelope import Moment
from keyhole.encoding.row_codec import encode_row
from keyhole.model.epoch import EpochStamp
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.protocol.control import AssignmentRecord, CompleteRecord
from keyhole.protocol.receipts import Target
from keyhole.stores.base import Store
from keyhole.stores.memory import MemoryEngine
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka, MemoryWriter
from keyhole.testing.clock import ManualClock
from services.state_server.read.standing import Lease, Standing
from services.state_server.read.table import Table
from services.state_server.replica.hosted import StateReplica
from services.state_server.write.commit import EpochToCommit, StateToCommit
from services.state_server.write.merge import merge_of
from services.state_server.write.merging import CommitContext
from services.state_server.write.staged import StagedAttempt

KEY_GROUPS = 4

_NOW = Moment(time_ms=1_000, watermark_ms=0)
EPOCH = CommitContext(number=1, moment=_NOW, written=_NOW)
"""An epoch that is committed, where nothing depends on which."""


def descriptor(**changes: object) -> StateDescriptor:
    """app/counts, key k: string, value n: double."""
    values: dict[str, object] = {
        "application": "app",
        "state": "counts",
        "query": "main",
        "kind": StateKind.VALUE,
        "key_groups": KEY_GROUPS,
        "key": (KeyColumn("k", KeyType.STRING),),
        "value": ValueSchema(1, (ValueField("n", "double"),)),
        **changes,
    }
    return StateDescriptor(**values)  # type: ignore[arg-type]  # as above


CODEC = StateCodec(descriptor())


def key(name: str) -> bytes:
    return CODEC.storage_key(name)


def group(name: str) -> int:
    return int.from_bytes(key(name)[:2], "big")


def row(n: float | None) -> bytes:
    return encode_row(1, [n])


def names_in(key_group: int, count: int = 3) -> list[str]:
    """Keys of one key group."""
    names = (f"key-{number}" for number in range(1000))
    return list(itertools.islice((name for name in names if group(name) == key_group), count))


def hosted(
    restored: Iterable[int] = range(KEY_GROUPS), of: StateDescriptor | None = None, store: Store | None = None
) -> StateReplica:
    """An empty state that may write the key groups; in memory, if no store is given."""
    of = of or descriptor()
    store = store or MemoryEngine().open(of.application, of.state, "topic")
    state = StateReplica.open(of, store, table(of, store))
    writable = list(restored)
    state.groups.begin_restore(writable)
    state.groups.restored(writable)
    return state


def table(of: StateDescriptor | None = None, store: Store | None = None, clock: ManualClock | None = None) -> Table:
    of = of or descriptor()
    store = store or MemoryEngine().open(of.application, of.state, "topic")
    lease = Lease(clock or ManualClock(), seconds=3.0)
    lease.confirm()
    return Table("server-a", of, store, lease)


def standing(epoch: int) -> Standing:
    return Standing(EpochStamp(epoch, 1, 1000 * epoch, 0), assignment_version=1)


def complete(epoch: int) -> CompleteRecord:
    return CompleteRecord(epoch, 1, 1000 * epoch, 0, 0, {})


def target(name: str, incarnation: str = "1") -> Target:
    return Target(name, f"{name}:7410", incarnation)


def assignment(version: int, owners: list[str], state: str = "counts") -> AssignmentRecord:
    """One owner's name per key group."""
    servers = tuple(sorted(set(owners)))
    return AssignmentRecord(version, servers, {state: tuple(servers.index(owner) for owner in owners)})


def memory_changelog(*of: StateDescriptor) -> tuple[MemoryKafka, MemoryChangelog]:
    """A Kafka that holds the (empty) changelogs of the states; none named: that of app/counts."""
    kafka = MemoryKafka()
    changelog = MemoryChangelog(kafka, "app")
    for state in of or (descriptor(),):
        changelog.admin().ensure(state, 1.0)
    return kafka, changelog


def open_writer(changelog: MemoryChangelog, grant: str = "grant-1") -> MemoryWriter:
    writer = changelog.writer(grant)
    writer.open(1.0)
    return writer


def staged(rows: Mapping[str, float | None], of: StateDescriptor | None = None) -> StagedAttempt:
    """One attempt that holds these rows; None deletes."""
    of = of or descriptor()
    attempt = StagedAttempt(f"app/{of.state}", of.key_groups, 511, merge_of(of))
    attempt.add([key(name) for name in rows], [None if n is None else row(n) for n in rows.values()])
    return attempt


def epoch(
    number: int,
    rows: Mapping[str, float | None],
    *,
    generation: int = 1,
    replace: bool = False,
    of: StateDescriptor | None = None,
) -> EpochToCommit:
    """An epoch of one state, staged in one attempt."""
    of = of or descriptor()
    attempt = staged(rows, of)
    states = {of.state: StateToCommit([attempt], attempt.receipts(), replace)}
    return EpochToCommit(
        EpochStamp(number, generation, 1000 * number, 500 * number), offsets_hash=number, states=states
    )


def content(store: Store) -> dict[bytes, bytes]:
    """All rows by storage key."""
    snapshot = store.snapshot()
    return {k: v for key_group in range(KEY_GROUPS) for k, v in snapshot.items(key_group)}


def encoded(rows: Mapping[str, float | None]) -> dict[bytes, bytes]:
    """Rows as a store has them."""
    return {key(name): row(n) for name, n in rows.items()}
