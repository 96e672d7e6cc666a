"""Chunks gathered into blobs of a minute: files once they are closed, a list in the state until then.

Closing a blob takes two steps: its file is there, and then, with the commit of the epoch, its chunks leave the list.
In between, and where the epoch is run again, a chunk is in both. So who reads the list first, the files afterwards, and
takes each chunk once, misses none: a chunk that the list did not show any more was in a file before.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.vital_signs.chunks import CALIBRATIONS, CHUNK_US, Chunk, Series, decode, is_name

BLOB_US = 60_000_000

_SCHEMA = pa.schema(
    [
        pa.field("patient", pa.string(), nullable=False),
        pa.field("signal", pa.string(), nullable=False),
        pa.field("start_us", pa.int64(), nullable=False),
        pa.field("samples", pa.binary(), nullable=False),
    ]
)

OpenChunks = Callable[[str, str], Iterable[Chunk]]
"""(patient, signal) -> the chunks of the blobs that are not closed, as the state has them now."""


class Blob(NamedTuple):
    """A closed minute of a signal: its chunks in the order of time, each once."""

    patient: str
    signal: str
    start_us: int
    chunks: tuple[Chunk, ...]


def blob_start(start_us: int) -> int:
    """The beginning of the blob that a chunk belongs to, by the chunk's."""
    return start_us - start_us % BLOB_US


def gathered(
    patient: str, signal: str, chunks: Iterable[Chunk], closed_until_us: int
) -> tuple[list[Blob], list[Chunk]]:
    """Splits the open chunks into blobs that are closed, and the chunks that stay open.

    Args:
        closed_until_us: No chunk that begins before it is taken any more (the watermark).
    """
    by_start = {chunk.start_us: chunk for chunk in chunks}
    blobs: dict[int, list[Chunk]] = {}
    for start in sorted(by_start):
        blobs.setdefault(blob_start(start), []).append(by_start[start])
    closed = [Blob(patient, signal, at, tuple(of)) for at, of in blobs.items() if at + BLOB_US <= closed_until_us]
    still_open = [chunk for at, of in blobs.items() if at + BLOB_US > closed_until_us for chunk in of]
    return closed, still_open


def write_blob(folder: Path, blob: Blob) -> Path:
    """Writes the blob's Parquet file, whole or not at all; the same again where it is run again.

    What the file has already stays in it: a job that begins anew in the middle of a minute takes nothing away.

    Raises:
        ValueError: The patient or the signal is no name.
    """
    path = _folder_of(folder, blob.patient, blob.signal) / f"{blob.start_us}.parquet"
    chunks = united(_chunks_in(path), blob.chunks, blob.start_us, blob.start_us + BLOB_US)
    columns = {
        "patient": [blob.patient] * len(chunks),
        "signal": [blob.signal] * len(chunks),
        "start_us": [chunk.start_us for chunk in chunks],
        "samples": [chunk.samples for chunk in chunks],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside the others, so that renaming it is atomic; two attempts of a task must not write the same one.
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".tmp", delete=False) as file:
        try:
            pq.write_table(pa.table(columns, _SCHEMA), file)
            file.close()
            Path(file.name).replace(path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                Path(file.name).unlink()
            raise
    return path


def stored_chunks(folder: Path, patient: str, signal: str, begin_us: int, end_us: int) -> Iterator[Chunk]:
    """The chunks in the files of the blobs that may reach into [begin_us, end_us), each file's in order.

    Raises:
        ValueError: The patient or the signal is no name.
    """
    within = _folder_of(folder, patient, signal)
    first = blob_start(begin_us - CHUNK_US)
    for start_us in range(first, end_us, BLOB_US):
        yield from _chunks_in(within / f"{start_us}.parquet")


def united(open_chunks: Iterable[Chunk], closed_chunks: Iterable[Chunk], begin_us: int, end_us: int) -> list[Chunk]:
    """The chunks that reach into [begin_us, end_us), in the order of time, each once, wherever it is."""
    by_start = {chunk.start_us: chunk for chunks in (open_chunks, closed_chunks) for chunk in chunks}
    return [by_start[start] for start in sorted(by_start) if begin_us - CHUNK_US < start < end_us]


class Archive:
    """Reads a signal, whether it is in files or still in the state."""

    def __init__(self, folder: Path, open_chunks: OpenChunks) -> None:
        self._folder = folder
        self._open_chunks = open_chunks

    def read(self, patient: str, begin_us: int, end_us: int, signal: str = "pleth") -> Series:
        """The samples in [begin_us, end_us), in physical units; no chunk is missing or twice while a blob closes.

        Raises:
            ValueError: The patient or the signal is no name.
            KeyError: Nothing is known of the signal's unit.
        """
        still_open = list(self._open_chunks(patient, signal))  # before the files: see above
        closed = stored_chunks(self._folder, patient, signal, begin_us, end_us)
        series = decode(united(still_open, closed, begin_us, end_us), CALIBRATIONS[signal])
        within = (series.times_us >= begin_us) & (series.times_us < end_us)
        return Series(series.times_us[within], series.values[within])


def _folder_of(folder: Path, patient: str, signal: str) -> Path:
    for name in (patient, signal):
        if not is_name(name):
            raise ValueError("a patient's or a signal's name has characters that no folder's name may have")
    return folder / patient / signal


def _chunks_in(path: Path) -> Iterator[Chunk]:
    if path.exists():  # none is ever deleted
        table = pq.read_table(path, columns=["start_us", "samples"])
        yield from map(Chunk, table["start_us"].to_pylist(), table["samples"].to_pylist())
