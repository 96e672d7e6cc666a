"""Changes that wait to become one write: sorted, as bytes, and merged when they are written. Pure.

    given   b=1 d=1 a=1 | c=2 a=None | b=3         in changelog order
    held    [a=1 b=1 d=1] [a=None c=2] [b=3]       runs: each is sorted, and cut into blocks of bytes
    merged  a=None b=3 c=2 d=1                     ascending, each key once: what came last

A change is some 250 bytes of Python objects, and less than half of that packed. And what is unpacked block by block
lies together in memory, which saves more in merging and writing than packing takes.
"""

from __future__ import annotations

import marshal
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import eq, itemgetter
from typing import NamedTuple, cast, overload

from keyhole.stores.base import BatchPart

KeyChange = tuple[bytes, bytes | None]
"""A storage key and its row; None: deleted."""

RUN_CHANGES = 16_384
"""Sorted together, at most. Smaller runs are more, so that more is unpacked of all of them at a time."""
BLOCK_CHANGES = 64
"""Unpacked together. While runs are merged, less than this is held of each, beside as many that are merged: what a
processor's cache holds. Twice this took a quarter longer (docs/benchmarks.md)."""

# What a run takes beside its bytes: two deques and their lists; and the piece of a changelog that it is of.
_RUN_BYTES = 2_000
# Merged together at least: what is done once for all of them shall not count.
_MERGED_BLOCKS = 64
_key = itemgetter(0)
# Of marshal's formats the one that looks for nothing that occurs twice.
_FORMAT = 2


class _SortedRun(NamedTuple):
    """Ascending by key; of changes with one key, the last one counts.

    Attributes:
        firsts: The first key of each block.
        blocks: What marshal makes of a list of changes.
    """

    firsts: deque[bytes]
    blocks: deque[bytes]


class PackedChanges(Sequence[KeyChange]):
    """Changes in an order in which the last one of a key counts, as those that it was made of.

    Attributes:
        packed_bytes: What it takes in memory.
    """

    __slots__ = ("_changes", "_runs", "packed_bytes")

    def __init__(self, changes: Sequence[KeyChange]) -> None:
        self._changes = len(changes)
        self._runs: list[_SortedRun] = []
        self.packed_bytes = _RUN_BYTES
        runs = -(-len(changes) // RUN_CHANGES)
        for number in range(runs):
            run = sorted(changes[len(changes) * number // runs : len(changes) * (number + 1) // runs], key=_key)
            blocks = [run[at : at + BLOCK_CHANGES] for at in range(0, len(run), BLOCK_CHANGES)]
            packed = deque([marshal.dumps(block, _FORMAT) for block in blocks])
            self._runs.append(_SortedRun(deque([block[0][0] for block in blocks]), packed))
            self.packed_bytes += _RUN_BYTES + sum(map(len, packed))

    def __len__(self) -> int:
        return self._changes

    def __iter__(self) -> Iterator[KeyChange]:
        for run in self._runs:
            for block in run.blocks:
                yield from _unpacked(block)

    @overload
    def __getitem__(self, index: int) -> KeyChange: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[KeyChange]: ...

    def __getitem__(self, index: int | slice) -> KeyChange | Sequence[KeyChange]:
        return list(self)[index]

    def taken(self) -> list[_SortedRun]:
        """What it holds, and from then on no more."""
        runs, self._runs, self._changes, self.packed_bytes = self._runs, [], 0, 0
        return runs


def merged(packed: Iterable[PackedChanges]) -> Iterator[BatchPart]:
    """What all of them change, in their order: ascending by key, each key once, some thousand changes at a time.

    They are empty from then on: each block is given up once it was merged.
    """
    runs = [run for changes in packed for run in changes.taken()]
    left: list[list[KeyChange]] = [[] for _ in runs]
    # A bound for as many blocks as there are runs: then about as much is left of them as was merged.
    blocks = max(len(runs), _MERGED_BLOCKS)
    bounds = iter(sorted(first for run in runs for first in run.firsts)[blocks::blocks])
    while True:
        bound = next(bounds, None)
        together: list[KeyChange] = []
        for at, run in enumerate(runs):
            of_run = left[at]
            while run.firsts and (bound is None or run.firsts[0] < bound):
                run.firsts.popleft()
                of_run += _unpacked(run.blocks.popleft())
            cut = len(of_run) if bound is None else bisect_left(of_run, bound, key=_key)
            together += of_run[:cut]
            del of_run[:cut]
        if together:
            # Stable: of one key's changes, the last run's is the last.
            together.sort(key=_key)
            yield _part(together)
        if bound is None:
            return


def _unpacked(block: bytes) -> list[KeyChange]:
    return cast("list[KeyChange]", marshal.loads(block))  # noqa: S302 - of this process's own making


def _part(changes: list[KeyChange]) -> BatchPart:
    """Of sorted changes, the last one of each key."""
    keys, rows = zip(*changes, strict=True)
    if any(map(eq, keys, keys[1:])):
        changes = list(dict(changes).items())
        keys, rows = zip(*changes, strict=True)
    if all(rows):  # none is deleted, and none is empty
        return cast("list[tuple[bytes, bytes]]", changes), ()
    deletes = [key for key, row in zip(keys, rows, strict=True) if row is None]
    return cast("list[tuple[bytes, bytes]]", [change for change in changes if change[1] is not None]), deletes
