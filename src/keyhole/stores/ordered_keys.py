"""Keys in order, as a frozen value: to add some to 10,000 copies two short lists, not all of them.

    [a c] [m p]   with n      ->  [a c] [m n p]         the first run is shared, the second is new

An overlay keeps one beside its rows, so that a range of them is found without sorting the others.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain

# With 10,000 keys there are 160 runs, and adding one copies about 200 references.
_RUN = 64


class OrderedKeys:
    """Distinct keys, ascending. Immutable, so thread-safe."""

    __slots__ = ("_firsts", "_runs")

    def __init__(self, ascending: Sequence[bytes] = ()) -> None:
        self._runs = [list(ascending[at : at + _RUN]) for at in range(0, len(ascending), _RUN)]
        self._firsts = [run[0] for run in self._runs]

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self._runs)

    def added(self, keys: Sequence[bytes]) -> OrderedKeys:
        """With these, which are ascending, and not among the others."""
        if len(keys) * 4 > len(self._runs):
            return OrderedKeys(sorted([*self, *keys]))
        with_keys = OrderedKeys()
        runs = with_keys._runs = self._runs.copy()
        firsts = with_keys._firsts = self._firsts.copy()
        for key in reversed(keys):
            at = max(0, bisect_right(firsts, key) - 1)
            run = [*runs[at], key] if key > runs[at][-1] else sorted([*runs[at], key])
            # One that has grown is halved, but at the end: keys that come ascending fill runs.
            half = len(run) // 2 if len(run) <= _RUN or key != run[-1] else len(run) - 1
            parts = [run] if len(run) <= _RUN else [run[:half], run[half:]]
            runs[at : at + 1] = parts
            firsts[at : at + 1] = [part[0] for part in parts]
        return with_keys

    def between(self, first: bytes, end: bytes | None, *, descending: bool = False) -> Iterator[bytes]:
        """Those from `first` on, and before `end`; None: to the last."""
        start, stop = self._place(first), (len(self._runs), 0) if end is None else self._place(end)
        runs = range(start[0], min(stop[0], len(self._runs) - 1) + 1)
        for at in reversed(runs) if descending else runs:
            run = self._runs[at]
            part = run[start[1] if at == start[0] else 0 : stop[1] if at == stop[0] else len(run)]
            yield from reversed(part) if descending else part

    def _place(self, key: bytes) -> tuple[int, int]:
        """The run, and the place in it, of the first key that is not below."""
        at = max(0, bisect_right(self._firsts, key) - 1)
        return at, bisect_left(self._runs[at], key) if self._runs else 0
