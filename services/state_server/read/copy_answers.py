"""The answers to one lookup: rows, and who gave which of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from keyhole.errors import KeyholeError
from keyhole.v1 import state_pb2

# A row, and which of its copy's sources it has.
_NOT_READ = (None, -1)


class CopyAnswers(NamedTuple):
    """Rows (None: absent) by key, and who answers: an index into `sources` per key; empty: sources[0] answered all.

    Where the rows of the first keys took as much as was to be read, there are none of the others.

    Attributes:
        large: They may take more than was to be read: one row alone does, or several copies were read.
        failures: Why keys have no row, by place.
        unread: Further places, before the last row, for whose rows there was no room.
    """

    rows: Sequence[bytes | None]
    sources: Sequence[state_pb2.Source]
    source_of: Sequence[int] = ()
    large: bool = False
    failures: Mapping[int, KeyholeError] = {}
    unread: Sequence[int] = ()


def merged(owned: CopyAnswers, followed: CopyAnswers, mine: Sequence[bool]) -> CopyAnswers:
    """Two copies' answers in the order of the keys, as long as both have them; `mine` says which came from the
    owner's.
    """
    first = len(owned.sources)
    owners = iter(zip(owned.rows, owned.source_of or [0] * len(owned.rows), strict=True))
    others = iter(zip(followed.rows, followed.source_of or [0] * len(followed.rows), strict=True))
    rows, source_of = [], []
    for is_mine in mine:
        row, source = next(owners if is_mine else others, _NOT_READ)
        if source < 0:
            break
        rows.append(row)
        source_of.append(source if is_mine else first + source)
    return CopyAnswers(rows, [*owned.sources, *followed.sources], source_of, large=True)
