"""All that this server's copies of a state hold, for `keyhole verify`. Blocking; reads one snapshot of the store."""

from __future__ import annotations

from collections.abc import Iterator

from keyhole.model.epoch import START
from keyhole.rpc.frames import MAX_VALUE_BYTES, value_too_large
from keyhole.stores.base import Snapshot
from keyhole.stores.index_entries import index_group
from keyhole.v1 import state_pb2
from keyhole.v1 import state_server_pb2 as pb
from services.state_server.read.table import Table

_CHUNK_BYTES = 1 << 20


def dump(table: Table, key_groups: frozenset[int]) -> Iterator[pb.DumpChunk]:
    """Chunk by chunk, one key group after the other; of each its rows, then the entries of its indexes.

    Args:
        key_groups: Of these, those that it can answer for; empty: all of them.

    Raises:
        TooLarge: A row that no message can carry.
    """
    owned, shown = table.owned.groups, table.standby.groups
    roles = dict.fromkeys(shown, state_pb2.ROLE_STANDBY) | dict.fromkeys(owned, state_pb2.ROLE_OWNER)
    snapshot = table.store.snapshot()
    try:
        positions = snapshot.positions()
        for group in sorted(roles.keys() & key_groups if key_groups else roles):
            position = positions.get(group, START)
            chunk, size = pb.DumpChunk(), 0
            for key, value, of_row in _entries(table, snapshot, group):
                if len(value) > MAX_VALUE_BYTES:
                    raise value_too_large(table.name, len(value), "a row")
                if size and size + len(key) + len(value) > _CHUNK_BYTES:
                    yield _with_place(chunk, group, roles[group], position.offset, position.epoch)
                    chunk, size = pb.DumpChunk(), 0
                (chunk.storage_keys if of_row else chunk.index_keys).append(key)
                (chunk.rows if of_row else chunk.index_values).append(value)
                size += len(key) + len(value)
            chunk.last = True
            yield _with_place(chunk, group, roles[group], position.offset, position.epoch)
    finally:
        snapshot.close()


def _entries(table: Table, snapshot: Snapshot, key_group: int) -> Iterator[tuple[bytes, bytes, bool]]:
    """Key and value, and whether they are of a row."""
    for key, row in snapshot.items(key_group):
        yield key, row, True
    if table.descriptor.index:
        for key, value in snapshot.items(index_group(key_group)):
            yield key, value, False


def _with_place(
    chunk: pb.DumpChunk, key_group: int, role: state_pb2.Role.ValueType, offset: int, epoch: int
) -> pb.DumpChunk:
    chunk.key_group, chunk.role, chunk.offset, chunk.epoch = key_group, role, offset, epoch
    return chunk
