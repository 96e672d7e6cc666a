"""What a store is: the ordered map of one state on one server, a cache of its changelog.

A store holds, for any set of key groups, `storage key -> row` (storage key = key group, 2 bytes big-endian, then the
encoded key) and a Position per key group. Both change in one atomic step (`apply`), so that after a crash the position
says exactly which changelog records the map holds. A lost store is rebuilt from the changelog; a store must therefore
rather refuse to open than answer wrongly.

Threads: one writer thread calls `apply`, `drop_key_group` and `close`; any thread may take snapshots and read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, TypeGuard, runtime_checkable

from keyhole.model.epoch import Position

BatchPart = tuple[Sequence[tuple[bytes, bytes]], Sequence[bytes]]
"""A part of a batch: its puts, and its deletes."""


@dataclass(frozen=True, slots=True)
class Advance:
    """A key group's step from one position to the next. The store refuses it where it is not at `before`."""

    before: Position
    after: Position


@dataclass(frozen=True, slots=True)
class Batch:
    """One atomic change. A key occurs once, in `puts` or in `deletes`; deleting an absent key is no error.

    Attributes:
        puts: (storage key, row) pairs, ascending by storage key.
        deletes: Storage keys, ascending.
        advances: By key group. Every key group that `puts` or `deletes` touch must be among them.
    """

    puts: Sequence[tuple[bytes, bytes]] = ()
    deletes: Sequence[bytes] = ()
    advances: Mapping[int, Advance] = field(default_factory=dict)

    @classmethod
    def of_parts(cls, parts: Iterable[BatchPart], advances: Mapping[int, Advance]) -> Batch:
        """One batch of all parts, in their order."""
        all_puts: list[tuple[bytes, bytes]] = []
        all_deletes: list[bytes] = []
        for puts, deletes in parts:
            all_puts += puts
            all_deletes += deletes
        return cls(all_puts, all_deletes, advances)


@dataclass(frozen=True, slots=True)
class StoreSize:
    """Entries and bytes used, of all key groups. Bytes as taken on disk (or in memory), not a sum of lengths.

    `entries` may be an estimate where they are many (more than 20,000): not every engine knows it without reading all.
    """

    entries: int
    bytes: int


class Snapshot(Protocol):
    """The store as of one `apply`, unchanged by later ones. Close it soon: an old snapshot keeps old pages alive.

    May be used by one thread at a time. Once it or its store is closed, every read raises NotReady.
    """

    def get(self, storage_key: bytes) -> bytes | None:
        """The row, or None where there is none; also for a key that is longer than the store takes."""

    def get_many(self, storage_keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows of many keys, in the keys' order; None where there is none."""

    def get_first(self, storage_keys: Sequence[bytes], most_bytes: int) -> tuple[list[bytes | None], bool]:
        """The rows of the first keys, as many as take no more than `most_bytes` together; None where there is none.

        The first row that there is may take more by itself. The hot path: one call per frame of lookups.

        Returns:
            The rows, one for each key or fewer, and whether it is one row alone that takes more. Hardly more than that
            is read.
        """

    def items(
        self, key_group: int, start: bytes = b"", stop: bytes | None = None, *, descending: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """(storage key, row) of a key group from `start` (inclusive) to `stop` (exclusive), ascending by storage key.

        Both are whole storage keys, the lower one first in either direction; empty and None mean the key group's own
        ends.

        Args:
            key_group: Whose entries.
            start: No entry is below it.
            stop: Every entry is below it.
            descending: The same entries in reverse.
        """

    def positions(self) -> Mapping[int, Position]:
        """The position of each key group, by its number; those that the store has never seen are missing."""

    def close(self) -> None:
        """Gives the store's old pages up. Reads raise NotReady from then on. Idempotent."""


class Store(Protocol):
    """One state's entries and positions on one server. Threads and guarantees are in the module's docstring."""

    @property
    def max_key_bytes(self) -> int:
        """The longest storage key that the store takes, in bytes; the same for its life."""

    def snapshot(self) -> Snapshot:
        """A view of the last `apply`. Any thread; never waits for a writer."""

    def apply(self, batch: Batch) -> None:
        """Puts, deletes and advances, all or nothing, durable (as far as a cache must be) when it returns. Writer
        thread; blocks.

        Snapshots that are open stay as they are; those that are taken after it have all of it.

        Raises:
            StoreConflict: A key group is not at `before`. Nothing was changed.
            StoreFull: The disk or the store's limit is full. Nothing was changed; later calls may work.
            KeyTooLong: Nothing was changed.
        """

    def drop_key_group(self, key_group: int) -> None:
        """Removes its entries and its position, in one atomic step. Writer thread. An unknown key group is no error."""

    def size(self) -> StoreSize:
        """Entries and bytes used, as StoreSize says. Any thread; may take a look at the disk."""

    def close(self) -> None:
        """Closes the files. Every other call, also of open snapshots, raises NotReady from then on. Idempotent."""


class StoreInParts(Store, Protocol):
    """A store that need not have the whole of a batch in memory. Ask takes_parts whether it is one."""

    @property
    def takes_parts(self) -> bool:
        """Whether `apply_parts` may be called now. Writer thread."""

    def apply_parts(self, parts: Iterable[BatchPart], advances: Mapping[int, Advance]) -> None:
        """As `apply`, of a batch in parts: of none of them a key is greater than one of the next.

        Args:
            parts: Taken one after the other. What they raise is raised, and nothing was changed.
            advances: As those of a Batch.
        """


def takes_parts(store: Store) -> TypeGuard[StoreInParts]:
    """Whether a batch may be given to it in parts: else as a whole, of which it may need a copy, too."""
    return bool(getattr(store, "takes_parts", False))


class StoreFiles(NamedTuple):
    """Where the files of a store are that other processes may open to read, and how large they may become."""

    path: Path
    limit_bytes: int


@runtime_checkable
class SharedStore(Protocol):
    """A store whose files other processes may read while this one writes them. See `shared_store`."""

    @property
    def files(self) -> StoreFiles:
        """What a reader opens. Any thread."""

    def forget_ended_readers(self) -> int:
        """Gives up what readers keep that have ended without closing: old pages. Any thread.

        Returns:
            How many views that was.
        """


def shared_store(store: Store) -> SharedStore | None:
    """The store, or the one beneath it, where other processes may read its files; None: they may not."""
    beneath = getattr(store, "beneath", store)
    return beneath if isinstance(beneath, SharedStore) else None


def commit_of(snapshot: Snapshot) -> int | None:
    """The number of the commit that a snapshot of a shared store sees: the same in all processes; None: of another."""
    return getattr(snapshot, "commit", None)


class StoreEngine(Protocol):
    """Opens and destroys the stores of one kind below one directory. Used by one thread, which may block in it.

    An engine with a directory takes it for its process alone when it is made, and raises StoreLocked, StoreFormat,
    StoreFull or InvalidConfiguration where it can't.
    """

    def open(self, application: str, state: str, topic_id: str) -> Store:
        """The store of a state, made if absent.

        A store that was written for another `topic_id`, or that is damaged, is emptied first (and logged): it is only a
        cache of the changelog.

        Raises:
            StoreFormat: The directory holds another format version, or is not a store of ours. Nothing was touched.
            StoreLocked: It is open already.
            StoreFull: No room to make it.
        """

    def destroy(self, application: str, state: str) -> None:
        """Removes the closed store's files. Unknown ones are no error. Raises StoreLocked where it is open."""

    def close(self) -> None:
        """Closes the stores that are still open, and releases the directory's lock. Idempotent."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Where stores are, and how large each may become.

    Attributes:
        directory: Of all states of the engine; made if absent.
        bytes: The most that one state may take on this server; LMDB's map is made sparse at this size.
    """

    directory: Path
    bytes: int = 1 << 40
