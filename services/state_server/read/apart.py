"""A lookup key group by key group, where its keys can't all be answered alike: those that can't be read fail alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from keyhole.encoding.storage_key import GROUP_BYTES
from keyhole.errors import EpochGone, KeyholeError, UnavailableError, ValueMismatch
from keyhole.model.read import ReadBounds
from keyhole.rpc.frames import FRAME_BYTES
from keyhole.v1 import state_pb2
from services.state_server.read.copy_answers import CopyAnswers
from services.state_server.read.table import Table


def lookup_apart(table: Table, keys: Sequence[bytes], bounds: ReadBounds) -> CopyAnswers:
    """Rows by storage key. All of them are as of one moment: nothing is published meanwhile.

    Raises:
        MalformedRequest: Not storage keys of this state.
    """
    failures: dict[int, KeyholeError] = {}
    groups: dict[bytes, list[int]] = {}
    for index, key in enumerate(keys):
        if len(key) > table.keys.most_bytes:
            failures[index] = table.keys.too_long(len(key))
        else:
            groups.setdefault(key[:GROUP_BYTES], []).append(index)
    rows: list[bytes | None] = [None] * len(keys)
    source_of = [0] * len(keys)
    sources: list[state_pb2.Source] = []
    unread: list[int] = []
    room = FRAME_BYTES
    parts = deque(groups.values())
    while parts:
        indexes = parts.popleft()
        if room < 0:
            unread += indexes
            continue
        try:
            part = table.lookup([keys[index] for index in indexes], bounds, room)
        except (UnavailableError, EpochGone) as error:
            failures |= dict.fromkeys(indexes, error)
            continue
        except ValueMismatch as error:
            # What is staged of one of these keys can't be merged; the others' rows may be.
            if len(indexes) == 1:
                failures[indexes[0]] = error
            else:
                parts.extend([index] for index in indexes)
            continue
        for index, row in zip(indexes, part.rows, strict=False):
            rows[index], source_of[index] = row, len(sources)
        unread += indexes[len(part.rows) :]
        room -= sum(map(len, filter(None, part.rows)))
        # One key group of one copy stands for one thing.
        sources.append(part.sources[0])
    return CopyAnswers(rows, sources, source_of, large=True, failures=failures, unread=unread)
