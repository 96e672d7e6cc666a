"""The rows of a state as files: Arrow IPC streams (lz4) with the columns storage_key and row, both binary."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from keyhole.savepoint.folder import FileRead, Folder, HashingFile, SavedFile, damaged

SavedRows = list[tuple[bytes, bytes]]
"""(storage key, row), ascending."""

_SCHEMA = pa.schema([("storage_key", pa.binary()), ("row", pa.binary())])
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
# What is held in memory at a time, writing and reading.
_BATCH_ROWS, _BATCH_BYTES = 10_000, 4 << 20
_FILE_BYTES = 64 << 20


def write_rows(folder: Folder, prefix: str, rows: Iterable[tuple[bytes, bytes]]) -> tuple[SavedFile, ...]:
    """Writes files `<prefix>/00000.arrow` and on, of about 64 MiB each; none where there are no rows."""
    batches = _batches(rows)
    files: list[SavedFile] = []
    first = next(batches, None)
    while first is not None:
        path = f"{prefix}/{len(files):05}.arrow"
        saved, first = _write_file(folder, path, first, batches)
        files.append(saved)
    return tuple(files)


def _write_file(
    folder: Folder, path: str, batch: pa.RecordBatch, batches: Iterator[pa.RecordBatch]
) -> tuple[SavedFile, pa.RecordBatch | None]:
    """The file, and the first batch that is not in it any more."""
    following: pa.RecordBatch | None = batch
    with folder.writing(path) as file:
        hashing, rows = HashingFile(file), 0
        with pa.ipc.new_stream(pa.PythonFile(hashing, mode="w"), _SCHEMA, options=_OPTIONS) as stream:
            while following is not None and hashing.bytes < _FILE_BYTES:
                stream.write_batch(following)
                rows += following.num_rows
                following = next(batches, None)
    return hashing.saved(path, rows), following


@dataclass
class _RowsOfBatch:
    keys: list[bytes] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    bytes: int = 0


def _batches(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[pa.RecordBatch]:
    gathered = _RowsOfBatch()
    for key, row in rows:
        gathered.keys.append(key)
        gathered.rows.append(row)
        gathered.bytes += len(key) + len(row)
        if len(gathered.keys) >= _BATCH_ROWS or gathered.bytes >= _BATCH_BYTES:
            yield _batch(gathered)
            gathered = _RowsOfBatch()
    if gathered.keys:
        yield _batch(gathered)


def _batch(gathered: _RowsOfBatch) -> pa.RecordBatch:
    return pa.record_batch([pa.array(gathered.keys, pa.binary()), pa.array(gathered.rows, pa.binary())], _SCHEMA)


class _HashedFile(io.RawIOBase):
    """What is read of a file is hashed."""

    def __init__(self, file: FileRead) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        return data

    def digest(self) -> str:
        """Of the whole file, whose rest is read."""
        while self.read(_BATCH_BYTES):
            pass
        return self._hash.hexdigest()


def read_rows(folder: Folder, files: Iterable[SavedFile], *, checksums: bool = False) -> Iterator[SavedRows]:
    """All rows of the files, in pieces of bounded size.

    Args:
        checksums: Compares each file's at its end, when its rows were given.

    Raises:
        SavepointDamaged: A file is missing or no such file, has another number of rows, or another checksum.
        InvalidConfiguration: Its disk or object store doesn't give it.
    """
    for saved in files:
        rows = 0
        try:
            with folder.reading(saved.path) as opened:
                file: Any = _HashedFile(opened) if checksums else opened
                with pa.ipc.open_stream(file) as stream:
                    for batch in stream:
                        rows += batch.num_rows
                        yield list(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
                if checksums and file.digest() != saved.sha256:
                    raise damaged(folder, saved.path, "has another checksum than when it was written")
        except FileNotFoundError:
            raise damaged(folder, saved.path, "is missing") from None
        except (pa.ArrowException, OSError) as error:  # the latter of a file that ends too soon: Arrow's own
            raise damaged(folder, saved.path, "can't be read") from error
        if rows != saved.rows:
            raise damaged(folder, saved.path, f"has {rows} rows, {saved.rows} were written")
