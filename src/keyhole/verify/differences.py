"""How a copy of a key group differs from what it should hold. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

EntryStream = Iterator[tuple[bytes, bytes]]
"""(storage key, row), ascending by storage key."""

# A copy in which more differs is beyond listing; and those that were replaced meanwhile are never as many.
_MAX_KEYS = 100_000


@dataclass
class Differences:
    """Storage keys that the copy lacks, that only it has, and that have another row in it; in order.

    Attributes:
        cut: There are more: it was not looked any further.
    """

    missing: list[bytes] = field(default_factory=list)
    extra: list[bytes] = field(default_factory=list)
    different: list[bytes] = field(default_factory=list)
    cut: bool = False

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.different)

    def without(self, keys: Container[bytes]) -> Differences:
        """All but those of these keys."""

        def left(of: list[bytes]) -> list[bytes]:
            return [key for key in of if key not in keys]

        return Differences(left(self.missing), left(self.extra), left(self.different), self.cut)


def compare(expected: EntryStream, held: EntryStream) -> Differences:
    """Walks both once, side by side."""
    found = Differences()
    wanted, had = next(expected, None), next(held, None)
    while (wanted is not None or had is not None) and not found.cut:
        if had is None or (wanted is not None and wanted[0] < had[0]):
            assert wanted is not None
            found.missing.append(wanted[0])
            wanted = next(expected, None)
        elif wanted is None or had[0] < wanted[0]:
            found.extra.append(had[0])
            had = next(held, None)
        else:
            if wanted[1] != had[1]:
                found.different.append(wanted[0])
            wanted, had = next(expected, None), next(held, None)
        found.cut = len(found.missing) + len(found.extra) + len(found.different) >= _MAX_KEYS
    return found
