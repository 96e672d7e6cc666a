"""Lookups of many keys in one table: all together, or key group by key group where they can't be answered alike."""

from __future__ import annotations

from collections.abc import Sequence

from keyhole.encoding.storage_key import GROUP_BYTES
from keyhole.errors import UnavailableError
from keyhole.rpc.convert import bounds_from_proto, key_from_proto
from keyhole.rpc.frames import FRAME_BYTES, Failure, frame_is_full
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import state_pb2
from services.state_server.read.answers import CopyAnswers
from services.state_server.read.table import Table


def look_up(table: Table, keys: Sequence[bytes], options: pb.ReadOptions, most_bytes: int = FRAME_BYTES) -> CopyAnswers:
    """The answers of a copy, by a request's options: `Table.lookup`. Raises as that, and MalformedRequest."""
    bounds = bounds_from_proto(options)
    return table.lookup(keys, bounds.min_epoch, bounds.stale, bounds.max_staleness_ms, most_bytes)


def look_up_apart(
    table: Table, keys: Sequence[bytes], options: pb.ReadOptions
) -> tuple[CopyAnswers, dict[int, Failure]]:
    """Key group by key group, each as of the same moment; those that can't be read fail alone, by index."""
    failures: dict[int, Failure] = {}
    groups: dict[bytes, list[int]] = {}
    for index, key in enumerate(keys):
        if len(key) > table.store.max_key_bytes:
            failures[index] = table.key_too_long(len(key))
        else:
            groups.setdefault(key[:GROUP_BYTES], []).append(index)
    rows: list[bytes | None] = [None] * len(keys)
    source_of = [0] * len(keys)
    sources: list[state_pb2.Source] = []
    read = 0
    for indexes in groups.values():
        if read > FRAME_BYTES:
            failures |= dict.fromkeys(indexes, frame_is_full(table.name))
            continue
        try:
            part = look_up(table, [keys[index] for index in indexes], options, FRAME_BYTES - read)
        except UnavailableError as error:
            failures |= dict.fromkeys(indexes, error)
            continue
        for index, row in zip(indexes, part.rows, strict=False):
            rows[index], source_of[index] = row, len(sources)
        failures |= dict.fromkeys(indexes[len(part.rows) :], frame_is_full(table.name))
        read += sum(map(len, filter(None, part.rows)))
        # One key group of one copy stands for one thing.
        sources.append(part.sources[0])
    return CopyAnswers(rows, sources, source_of, large=True), failures


def storage_key(table: Table, key: pb.Key) -> bytes:
    """The storage key of a request's key. Raises KeyMismatch or NullKey where it is no key of the state."""
    values = key_from_proto(key)
    return table.codec.storage_key(values if len(values) != 1 else values[0])
