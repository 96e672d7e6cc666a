"""Brings key groups up to the end of their changelog. Blocking; host thread only."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from keyhole.changelog.base import Changelog, Partition, RestoredEpochs
from keyhole.clock import Clock
from keyhole.errors import NotReady
from keyhole.model.epoch import START, Position
from services.state_server.replica.hosted import StateReplica

_log = logging.getLogger(__name__)


class AtOnce(NamedTuple):
    """What is held in memory, to become one write, until it has reached either.

    A store that is much larger than a write rewrites a page for nearly every record of it, so large writes are what
    makes a restore fast.
    """

    records: int = 200_000
    bytes: int = 48 << 20


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
        for pieces in _gathered(reader.read(positions, ends, deadline_seconds), stop, at_once):
            for name, of_state in pieces.items():
                state = states[name]
                touched = {piece.partition.key_group for piece in of_state}
                before = sum(state.position(group).offset for group in touched)
                state.apply_pieces(of_state)
                state.table.progress.restored += sum(state.position(group).offset for group in touched) - before
    finally:
        reader.close()
    for name, groups in missing.items():
        states[name].groups.restored(groups)
        if (sweeper := states[name].sweeper) is not None and groups:
            sweeper.begin_anew()
        # Offsets that hold no record of ours (Kafka's own, compacted ones) were passed over without being counted.
        states[name].table.progress.restored = states[name].table.progress.total


def _gathered(
    pieces: Iterable[RestoredEpochs], stop: threading.Event, at_once: AtOnce
) -> Iterator[Mapping[str, Sequence[RestoredEpochs]]]:
    """Some pieces at a time, by state, in their order."""
    gathered: defaultdict[str, list[RestoredEpochs]] = defaultdict(list)
    records, taken_bytes = 0, 0
    for piece in pieces:
        if stop.is_set():
            raise NotReady("the restore was given up: another assignment is coming, or the server is stopping")
        gathered[piece.partition.state].append(piece)
        records += piece.records
        taken_bytes += piece.bytes
        if records >= at_once.records or taken_bytes >= at_once.bytes:
            yield gathered
            gathered, records, taken_bytes = defaultdict(list), 0, 0
    if gathered:
        yield gathered


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
