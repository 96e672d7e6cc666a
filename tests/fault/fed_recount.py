"""The right answers of the real-time lane: what the updates topic comes to at each offset, and the source at its end.
Pure: nothing here is Keyhole's own code.

An epoch of a key group is the offset of the last update that was applied, and one. Which updates count is said by their
numbers alone: the first of each, behind the first rules. So the model knows of no boundary.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

Row = tuple[int, ...]


class Logged(msgspec.Struct, frozen=True, array_like=True):
    """A record of a topic: where it stands, when the broker took it, and what it is."""

    offset: int
    timestamp_ms: int
    value: bytes


class Named(msgspec.Struct, frozen=True, array_like=True):
    """A row by its numbers: partition and offset of the source."""

    partition: int
    offset: int


def merged(before: Row | None, row: Row) -> Row:
    """Sum, number and highest."""
    if before is None:
        return row
    return before[0] + row[0], before[1] + row[1], max(before[2], row[2])


class FedRecount:
    """What the updates topic comes to.

    Args:
        logs: Its records, by key group, from the first offset on.

    Attributes:
        group_of: By key, in which key group its updates stand.
        counted: By its numbers, the key and the row of each update that counts.
        ends: By key group, the last epoch.
    """

    def __init__(self, logs: Mapping[int, Sequence[Logged]]) -> None:
        self.group_of: dict[str, int] = {}
        self.counted: dict[Named, tuple[str, Row]] = {}
        self.ends = {group: log[-1].offset + 1 for group, log in logs.items() if log}
        self._logs = logs
        self._rows: dict[str, list[Row]] = {}
        self._epochs: dict[str, list[int]] = {}
        for group, log in logs.items():
            self._fold(group, log)

    def _fold(self, group: int, log: Sequence[Logged]) -> None:
        ruled = False
        for logged in log:
            record = json.loads(logged.value)
            ruled |= record[0] == 3
            if record[0] != 1 or not ruled:
                continue
            _, _, partition, offset, _, _, _, (key,), _, row = record
            name = Named(partition, offset)
            if name in self.counted:
                continue
            self.counted[name] = key, tuple(row)
            self.group_of[key] = group
            rows = self._rows.setdefault(key, [])
            rows.append(merged(rows[-1] if rows else None, tuple(row)))
            self._epochs.setdefault(key, []).append(logged.offset + 1)

    def answer(self, key: str, epoch: int) -> Row | None:
        """The key's row, once its key group is at the epoch; None: it has none."""
        at = bisect_right(self._epochs.get(key, ()), epoch)
        return self._rows[key][at - 1] if at else None

    def epochs(self, key: str, row: object) -> tuple[int, int] | None:
        """From which epoch on, and until which, the key has the row; None: it never has."""
        rows = self._rows.get(key, [])
        if row not in rows:
            return None
        at = rows.index(row)  # type: ignore[arg-type]  # a row of none of them is not found
        epochs = self._epochs[key]
        return epochs[at], epochs[at + 1] - 1 if at + 1 < len(epochs) else self.ends[self.group_of[key]]

    def shown_by(self, group: int, wall_ms: float) -> int:
        """The epoch of all that Kafka had shown of a key group by that time, at the least.

        A broker gives a batch one timestamp, and shows it once it is written: on a busy machine a batch of hundreds was
        shown more than 20 ms later. The batch of a producer before it was shown by then. So what has the last timestamp
        by that time does not count.
        """
        log = self._logs[group]
        at = bisect_right(log, wall_ms, key=_stamped)
        if not at:
            return 0
        first = bisect_left(log, log[at - 1].timestamp_ms, key=_stamped)
        return log[first - 1].offset + 1 if first else 0


def _stamped(logged: Logged) -> int:
    return logged.timestamp_ms


def of_source(source: Mapping[int, Sequence[Logged]]) -> dict[Named, tuple[str, Row]]:
    """By its numbers, the key and the row that each record of the source stands for."""
    return {name: (key, (amount, 1, amount)) for name, key, amount in _records(source)}


def _records(source: Mapping[int, Sequence[Logged]]) -> Iterator[tuple[Named, str, int]]:
    for partition, log in source.items():
        for logged in log:
            record = json.loads(logged.value)
            yield Named(partition, logged.offset), record["k"], record["amount"]


def summed(rows: Iterable[tuple[str, Row]]) -> dict[str, Row]:
    """By key, what its rows come to."""
    found: dict[str, Row] = {}
    for key, row in rows:
        found[key] = merged(found.get(key), row)
    return found
