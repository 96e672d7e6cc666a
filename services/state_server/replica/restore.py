"""Brings key groups up to the end of their changelog. Blocking; host thread only."""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from keyhole.changelog.base import Changelog, Partition, RestoredEpochs
from keyhole.clock import Clock
from keyhole.errors import NotReady
from keyhole.model.epoch import START, Position
from keyhole.stores.base import takes_parts
from keyhole.stores.packed import PackedChanges
from services.state_server.replica.hosted import StateReplica

_log = logging.getLogger(__name__)

# Of what a write may be: up to here it takes another key group, and so much waits for the next one at most. The reader
# begins the next key group before it has ended one (changelog.kafka.reader), by less than that.
_TAKES_OTHERS = 0.5
_WAITS = 0.125


class AtOnce(NamedTuple):
    """What is held in memory, to become one write, until it has reached any of them.

    A store that is much larger than a write rewrites a page for nearly every record of it, so large writes are what
    makes a restore fast.

    Attributes:
        records, bytes: Of states whose store takes a write as a whole: it is then unpacked.
        part_bytes: Of states whose store takes it in parts (stores.base.StoreInParts), as they are packed.
        part_records: Of such states: those that change nothing, as markers, take no bytes.
    """

    records: int = 200_000
    bytes: int = 48 << 20
    part_bytes: int = 64 << 20
    part_records: int = 2_000_000


def restore(
    states: Mapping[str, StateReplica],
    wanted: Mapping[str, Iterable[int]],
    changelog: Changelog,
    clock: Clock,
    *,
    away_limit_ms: int,
    deadline_seconds: float,
    stop: threading.Event,
    at_once: AtOnce,
) -> None:
    """Reads what the stores lack of the wanted key groups.

    All earlier writers of these key groups must have been fenced: the ends are taken here, and whatever is committed
    after that would be missed.

    Args:
        away_limit_ms: A key group whose last marker is older may have missed deletions that the changelog has already
            forgotten; it is rebuilt.
        stop: Ends it, with NotReady.

    Raises:
        KafkaUnreachable: No progress for `deadline_seconds`.
        StoreFull: What was restored so far is kept.
    """
    missing = {name: sorted(set(groups) - states[name].groups.owned) for name, groups in wanted.items()}
    if not any(missing.values()):
        return
    for name, groups in missing.items():
        states[name].groups.begin_restore(groups)
    reader = changelog.reader()
    try:
        ends = reader.ends(missing, deadline_seconds)
        drop_unusable(states, ends, clock.now_ms() - away_limit_ms)
        positions = {part: states[part.state].position(part.key_group) for part in ends}
        _announce(states, positions, ends)
        check = functools.partial(_check, stop)
        for pieces in _gathered(states, reader.read(positions, ends, deadline_seconds), check, at_once):
            for name, of_state in pieces.items():
                state = states[name]
                touched = {piece.partition.key_group for piece in of_state}
                before = sum(state.position(group).offset for group in touched)
                state.apply_pieces(of_state, check)
                state.table.progress.restored += sum(state.position(group).offset for group in touched) - before
    finally:
        reader.close()
    for name, groups in missing.items():
        states[name].groups.restored(groups)
        if (sweeper := states[name].sweeper) is not None and groups:
            sweeper.begin_anew()
        # Offsets that hold no record of ours (Kafka's own, compacted ones) were passed over without being counted.
        states[name].table.progress.restored = states[name].table.progress.total


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise NotReady("the restore was given up: another assignment is coming, or the server is stopping")


def _gathered(
    states: Mapping[str, StateReplica], pieces: Iterable[RestoredEpochs], check: Callable[[], None], at_once: AtOnce
) -> Iterator[Mapping[str, Sequence[RestoredEpochs]]]:
    """Some pieces at a time, packed, by state, each key group's in their order.

    Where it can be, a key group is not begun in one write and ended in another. The end's keys are among the
    beginning's: nearly all of its pages would be written once more. So what is half full takes no other key group.
    These wait until there is so much of them that the ones before have come to their end.
    """
    write, waiting = _PiecesOfWrite(states, at_once), _PiecesOfWrite(states, at_once)
    for piece in pieces:
        check()
        others = write.full >= _TAKES_OTHERS and piece.partition not in write.partitions
        (waiting if others else write).take(piece)
        if write.full >= 1 or waiting.full >= _WAITS:
            yield write.pieces
            write, waiting = waiting, _PiecesOfWrite(states, at_once)
    for last in (write, waiting):
        if last.pieces:
            yield last.pieces


class _PiecesOfWrite:
    """What is to become one write.

    Attributes:
        pieces: By state.
        partitions: Of which there are some.
        full: 1 or more: it is as large as it may be.
    """

    def __init__(self, states: Mapping[str, StateReplica], at_once: AtOnce) -> None:
        self._states = states
        self._at_once = at_once
        self.pieces: defaultdict[str, list[RestoredEpochs]] = defaultdict(list)
        self.partitions: set[Partition] = set()
        self._records, self._bytes, self._part_records, self._part_bytes = 0, 0, 0, 0

    @property
    def full(self) -> float:
        of = self._at_once
        return max(
            self._records / of.records,
            self._bytes / of.bytes,
            self._part_records / of.part_records,
            self._part_bytes / of.part_bytes,
        )

    def take(self, piece: RestoredEpochs) -> None:
        state = piece.partition.state
        changes = PackedChanges(piece.changes)
        self.pieces[state].append(dataclasses.replace(piece, changes=changes))
        self.partitions.add(piece.partition)
        if takes_parts(self._states[state].store):
            self._part_records += piece.records
            self._part_bytes += changes.packed_bytes
        else:
            self._records += piece.records
            self._bytes += piece.bytes


def drop_unusable(states: Mapping[str, StateReplica], ends: Mapping[Partition, int], oldest_ms: int) -> list[Partition]:
    """Drops the key groups whose copy can't be continued to the changelog's end, and returns them.

    Args:
        oldest_ms: Copies that are behind, and whose last marker is older, may have missed deletions.
    """
    dropped = []
    for partition, end in ends.items():
        state = states[partition.state]
        position = state.position(partition.key_group)
        if position == START:
            continue
        if position.offset > end:
            why = f"it is at offset {position.offset}, the changelog ends at {end}"
        # Less one: Kafka's own note, with which a transaction ends, stands behind the last marker.
        elif position.offset < end - 1 and position.commit_time_ms < oldest_ms:
            why = "it was away longer than the changelog keeps deletions"
        else:
            continue
        state.forget([partition.key_group], why)
        dropped.append(partition)
    return dropped


def _announce(
    states: Mapping[str, StateReplica], positions: Mapping[Partition, Position], ends: Mapping[Partition, int]
) -> None:
    for name, state in states.items():
        progress = state.table.progress
        progress.restored = 0
        # Offsets, not records: compaction has removed some of them, so this is the most there can be.
        progress.total = sum(max(0, end - positions[part].offset) for part, end in ends.items() if part.state == name)
        if progress.total:
            _log.info("restoring", extra={"state": name, "records": progress.total})
