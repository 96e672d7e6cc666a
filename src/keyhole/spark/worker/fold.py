"""What the rows of a task amount to, where they count in the order in which they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.columnar import STORAGE_KEY, VALUE
from keyhole.model.state import StateDescriptor

_BATCH_ROWS = 10_000


def folded(batches: Iterable[pa.RecordBatch], descriptor: StateDescriptor) -> Iterator[pa.RecordBatch]:
    """At most one row per entry, and one that clears per key: the last row of an entry, since its key was cleared.

    Holds in memory what the rows of the partition amount to.

    Args:
        batches: As keyhole.encoding.columnar.encode makes them.
    """
    fold = _Fold(StateCodec(descriptor))
    for batch in batches:
        for key, row in zip(batch.column(STORAGE_KEY).to_pylist(), batch.column(VALUE).to_pylist(), strict=True):
            fold.add(key, row)
    changes = list(fold.changes())
    for start in range(0, len(changes), _BATCH_ROWS):
        keys, rows = zip(*changes[start : start + _BATCH_ROWS], strict=True)
        yield pa.record_batch({STORAGE_KEY: pa.array(keys, pa.binary()), VALUE: pa.array(rows, pa.binary())})


class _Fold:
    """By key, then by storage key: the last row. A row of a whole key that deletes begins the key anew."""

    def __init__(self, codec: StateCodec) -> None:
        self._codec = codec
        self._has_entries = bool(codec.entries.columns)
        self._keys: dict[bytes, dict[bytes, bytes | None]] = {}

    def add(self, key: bytes, row: bytes | None) -> None:
        prefix = key[: self._codec.prefix_length(key)] if self._has_entries else key
        if key == prefix:
            self._keys[prefix] = {key: row}
        else:
            self._keys.setdefault(prefix, {})[key] = row

    def changes(self) -> Iterator[tuple[bytes, bytes | None]]:
        for entries in self._keys.values():
            yield from entries.items()
