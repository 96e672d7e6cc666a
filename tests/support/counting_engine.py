"""Stores that know how many of their snapshots are open, and how many rows were asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from keyhole.model.epoch import Position
from keyhole.stores.base import Batch, Snapshot, Store, StoreEngine, StoreSize


class CountingEngine:
    """Around another engine; see stores.base.StoreEngine."""

    def __init__(self, inner: StoreEngine) -> None:
        self._inner = inner
        self.snapshots = 0
        """Open ones, of all its stores."""
        self.asked_keys = 0
        """By get_many, of all its stores."""
        self.read_rows = 0
        """By items, of all its stores."""

    def open(self, application: str, state: str, topic_id: str) -> Store:
        return _Store(self, self._inner.open(application, state, topic_id))

    def destroy(self, application: str, state: str) -> None:
        self._inner.destroy(application, state)

    def close(self) -> None:
        self._inner.close()


class _Store:
    def __init__(self, engine: CountingEngine, inner: Store) -> None:
        self._engine, self._inner = engine, inner

    @property
    def max_key_bytes(self) -> int:
        return self._inner.max_key_bytes

    def snapshot(self) -> Snapshot:
        return _Snapshot(self._engine, self._inner.snapshot())

    def apply(self, batch: Batch) -> None:
        self._inner.apply(batch)

    def drop_key_group(self, key_group: int) -> None:
        self._inner.drop_key_group(key_group)

    def size(self) -> StoreSize:
        return self._inner.size()

    def close(self) -> None:
        self._inner.close()


class _Snapshot:
    def __init__(self, engine: CountingEngine, inner: Snapshot) -> None:
        self._engine, self._inner = engine, inner
        self._open = True
        engine.snapshots += 1

    def get(self, storage_key: bytes) -> bytes | None:
        return self._inner.get(storage_key)

    def get_many(self, storage_keys: Sequence[bytes]) -> list[bytes | None]:
        self._engine.asked_keys += len(storage_keys)
        return self._inner.get_many(storage_keys)

    def get_first(self, storage_keys: Sequence[bytes], most_bytes: int) -> tuple[list[bytes | None], bool]:
        return self._inner.get_first(storage_keys, most_bytes)

    def items(
        self, key_group: int, start: bytes = b"", stop: bytes | None = None, *, descending: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for item in self._inner.items(key_group, start, stop, descending=descending):
            self._engine.read_rows += 1
            yield item

    def positions(self) -> Mapping[int, Position]:
        return self._inner.positions()

    def close(self) -> None:
        self._engine.snapshots -= self._open
        self._open = False
        self._inner.close()
