"""Copies a Spark checkpoint as it was when a batch was complete, while the query runs on.

Batch n reads version n of each state store and writes version n + 1. What belongs to later batches is left out, and
from before only what is needed: the newest whole snapshot, and the changes since.

    HDFS-backed     <version>.snapshot, and <version>.delta for the changes
    RocksDB         <version>.zip, which names files in SSTs/ and logs/, and <version>.changelog for the changes
                    checkpoint format 2: <version>_<id>.zip and so on; the commit log says which id is the right one
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from posixpath import basename, dirname

from keyhole.clock import Clock
from keyhole.errors import SavepointMismatch
from keyhole.protocol.batch_decisions import PINNED, pin_of
from keyhole.savepoint.folder import Folder, SavedFile, copy_file
from keyhole.savepoint.manifest import SavedCheckpoint
from keyhole.savepoint.spark_log import query_id, source_offsets, unique_ids

_WHOLE, _CHANGES = frozenset({"snapshot", "zip"}), frozenset({"delta", "changelog"})
_VERSIONED = re.compile(r"(\d+)(?:_([0-9a-f-]{36}))?\.(snapshot|zip|delta|changelog)(?:\.crc)?")
_PARTS = frozenset({"SSTs", "logs"})
_POLL_SECONDS = 0.05


def copy_checkpoint(
    source: Folder,
    target: Folder,
    prefix: str,
    *,
    query: str,
    spark_query_id: str,
    batch: int,
    entry: str,
    clock: Clock,
    wait_seconds: float,
) -> SavedCheckpoint:
    """Copies it below `prefix`.

    Args:
        entry: The batch's entry in the offset log, as Keyhole recorded it; empty: not known.
        wait_seconds: How long to wait until Spark has recorded that the batch is done, which it does a moment later
            than Keyhole.

    Raises:
        SavepointMismatch: It is another query's, or the batch is not, or no longer, in it.
    """
    where = f"query {query!r} is at batch {batch}, and the checkpoint at {source.path}"
    _check_identity(source, spark_query_id, where)
    _await_commit(source, batch, where, clock, wait_seconds)
    _check_entry(source, batch, entry, where)
    names = [name for name in source.files() if not basename(name).startswith(".")]
    wanted = [
        "metadata",
        *_log_entries(names, "offsets", batch),
        *_log_entries(names, "commits", batch),
        *(name for name in names if name.startswith("sources/")),
    ]
    try:
        wanted += _pinned(source, names, batch)
        ids = frozenset[str]().union(
            *(unique_ids(source.read(name).decode()) for name in _log_entries(names, "commits", batch))
        )
        state = state_files([name for name in names if name.startswith("state/")], batch + 1, ids, where)
        wanted += [*state, *_parts_of(source, state)]
        files = tuple(_copied(source, name, target, prefix) for name in sorted(set(wanted)))
    except FileNotFoundError as error:
        raise _past(where, f"has lost {error.filename or error} meanwhile") from error
    return SavedCheckpoint(batch, prefix, files)


def _check_identity(source: Folder, spark_query_id: str, where: str) -> None:
    try:
        found = query_id(source.read("metadata"))
    except FileNotFoundError:
        raise SavepointMismatch(f"{where} is none: it has no file `metadata`", path=source.path) from None
    if found != spark_query_id:
        raise SavepointMismatch(
            f"{where} is that of another query: Spark query {found}, not {spark_query_id}", path=source.path
        )


def _await_commit(source: Folder, batch: int, where: str, clock: Clock, wait_seconds: float) -> None:
    until = clock.monotonic() + wait_seconds
    while not source.exists(f"commits/{batch}"):
        if clock.monotonic() > until:
            raise SavepointMismatch(
                f"{where} does not say that this batch is done: it was set back, its batch is no longer kept, or the "
                "driver ended at this very moment. Let the query run one batch more, and try again",
                path=source.path,
                batch=batch,
            )
        clock.sleep(_POLL_SECONDS)


def _check_entry(source: Folder, batch: int, entry: str, where: str) -> None:
    try:
        found = source.read(f"offsets/{batch}").decode()
    except FileNotFoundError as error:
        raise _past(where, "has no offsets of this batch any more") from error
    if entry and source_offsets(found) != source_offsets(entry):
        raise SavepointMismatch(
            f"{where} has other source offsets for this batch: it is not the one that the epoch came from",
            path=source.path,
            batch=batch,
        )


def _log_entries(names: Iterable[str], folder: str, batch: int) -> list[str]:
    return [
        name
        for name in names
        if dirname(name) == folder and basename(name).isdecimal() and int(basename(name)) <= batch
    ]


def _pinned(source: Folder, names: Iterable[str], batch: int) -> list[str]:
    """What was last settled of each thing (spark.driver.pins), and the file that has its content, if another. Of a
    broadcast state, that is what the next batch's updates are compared with; of an operator state, how many subtasks
    there have been.
    """
    last: dict[str, int] = {}
    for name in names:
        if name.startswith(f"{PINNED}/") and basename(name).isdecimal() and int(basename(name)) <= batch:
            last[dirname(name)] = max(last.get(dirname(name), 0), int(basename(name)))
    pins = {folder: pin_of(number, source.read(f"{folder}/{number}")) for folder, number in last.items()}
    return [f"{folder}/{number}" for folder, pin in pins.items() for number in {pin.batch, pin.contents[-1]}]


def state_files(names: Sequence[str], version: int, ids: frozenset[str], where: str = "the checkpoint") -> list[str]:
    """Of all files below `state/`, those that are needed to load each store at the version; parts of snapshots aside.

    Args:
        ids: The ids that the commit log gives; files with another one come from attempts that failed.

    Raises:
        SavepointMismatch: A store can't be loaded at that version any more.
    """
    stores: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    wanted = []
    for name in names:
        found = _VERSIONED.fullmatch(basename(name))
        if found is None:
            if basename(dirname(name)) not in _PARTS:
                wanted.append(name)
            continue
        number, unique_id, kind = found.groups()
        if int(number) <= version and (unique_id is None or unique_id in ids):
            stores[dirname(name)].append((int(number), kind, name))
        else:
            stores[dirname(name)] += []
    for store, files in sorted(stores.items()):
        first = max((number for number, kind, _ in files if kind in _WHOLE), default=0)
        changes = {number for number, kind, _ in files if kind in _CHANGES}
        gone = [number for number in range(first + 1, version + 1) if number not in changes]
        if gone:
            raise _past(where, f"can't give version {version} of {store}: the changes of version {gone[0]} are gone")
        wanted += [name for number, _, name in files if number >= first]
    return wanted


def _parts_of(source: Folder, names: Iterable[str]) -> list[str]:
    """The files that RocksDB snapshots refer to."""
    return [
        f"{dirname(name)}/{part}"
        for name in names
        if name.endswith(".zip")
        for part in parts_of_snapshot(source.read(name))
    ]


def parts_of_snapshot(archive: bytes) -> list[str]:
    """Relative to the snapshot. Its file `metadata` is a line with the version, then JSON."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        _, _, text = opened.read("metadata").decode().partition("\n")
    metadata: Mapping[str, list[Mapping[str, str]]] = json.loads(text)
    return [
        *(f"SSTs/{file['dfsSstFileName']}" for file in metadata.get("sstFiles", [])),
        *(f"logs/{file['dfsLogFileName']}" for file in metadata.get("logFiles", [])),
    ]


def _copied(source: Folder, name: str, target: Folder, prefix: str) -> SavedFile:
    return copy_file(source, name, target, f"{prefix}/{name}")


def _past(where: str, what: str) -> SavepointMismatch:
    return SavepointMismatch(
        f"{where} {what}: Spark keeps the last spark.sql.streaming.minBatchesToRetain batches. Try again, or keep more"
    )
