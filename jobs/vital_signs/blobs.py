"""Chunks gathered into blobs of so many seconds: files once they are closed, a list in the state until then.

Closing a blob takes two steps: its file is there, and then, with the commit of the epoch, its chunks leave the list.
In between, and where the epoch is run again, a chunk is in both. So who reads the list first, the files afterwards, and
takes each chunk once, misses none: a chunk that the list did not show any more was in a file before.

The seconds may change from one run of the job to the next: each length has a folder of its own, and who reads looks
into all of them. A chunk whose file was written just before the change, and not committed, is in a file of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.vital_signs.chunks import CHUNK_US, SECOND_US, Chunk, is_name
from jobs.vital_signs.files import Files
from keyhole.errors import InvalidConfiguration

_SCHEMA = pa.schema(
    [
        pa.field("patient", pa.string(), nullable=False),
        pa.field("signal", pa.string(), nullable=False),
        pa.field("start_us", pa.int64(), nullable=False),
        pa.field("samples", pa.binary(), nullable=False),
    ]
)


_LENGTH = re.compile("[0-9]+s")
_PARQUET = b"PAR1"
"""What a file of samples ends with."""


class Blob(NamedTuple):
    """A closed stretch of a signal, whole seconds long: its chunks in the order of time, each once."""

    patient: str
    signal: str
    start_us: int
    end_us: int
    chunks: tuple[Chunk, ...]


def blob_start(start_us: int, blob_us: int) -> int:
    """The beginning of the blob that a chunk belongs to, by the chunk's and by how long blobs are."""
    return start_us - start_us % blob_us


def gathered(
    patient: str, signal: str, chunks: Iterable[Chunk], blob_us: int, closed_until_us: int
) -> tuple[list[Blob], list[Chunk]]:
    """Splits the open chunks into blobs that are closed, and the chunks that stay open.

    Args:
        blob_us: How long a blob is: whole seconds.
        closed_until_us: No chunk that begins before it is taken any more (the watermark).
    """
    by_start = {chunk.start_us: chunk for chunk in chunks}
    blobs: dict[int, list[Chunk]] = {}
    for start in sorted(by_start):
        blobs.setdefault(blob_start(start, blob_us), []).append(by_start[start])
    closed: list[Blob] = []
    still_open: list[Chunk] = []
    for start, of in blobs.items():
        if start + blob_us <= closed_until_us:
            closed.append(Blob(patient, signal, start, start + blob_us, tuple(of)))
        else:
            still_open += of
    return closed, still_open


def write_blob(files: Files, blob: Blob) -> str:
    """Writes the blob's Parquet file, whole or not at all; the same again where it is run again. Returns its name.

    What the file has already stays in it: a job that begins anew in the middle of a blob takes nothing away.

    Raises:
        ValueError: The patient or the signal is no name.
        InvalidConfiguration: As Files.write. Or the file is there, and damaged: it stays as it is.
    """
    seconds = (blob.end_us - blob.start_us) // SECOND_US
    name = f"{_folder_of(blob.patient, blob.signal)}/{seconds}s/{blob.start_us}.parquet"
    chunks = united(_chunks_in(files, name), blob.chunks, blob.start_us, blob.end_us)
    columns = {
        "patient": [blob.patient] * len(chunks),
        "signal": [blob.signal] * len(chunks),
        "start_us": [chunk.start_us for chunk in chunks],
        "samples": [chunk.samples for chunk in chunks],
    }
    encoded = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, _SCHEMA), encoded)
    files.write(name, encoded.getvalue().to_pybytes())
    return name


def stored_chunks(files: Files, patient: str, signal: str, begin_us: int, end_us: int) -> Iterator[Chunk]:
    """The chunks in the files of the blobs that may reach into [begin_us, end_us), each file's in order.

    Raises:
        ValueError: The patient or the signal is no name.
        InvalidConfiguration: As Files.read. Or a file is damaged.
    """
    folder = _folder_of(patient, signal)
    for of_length in files.names(folder):
        if not _LENGTH.fullmatch(of_length):
            continue
        blob_us = int(of_length.removesuffix("s")) * SECOND_US
        for start_us in range(blob_start(begin_us - CHUNK_US, blob_us), end_us, blob_us):
            yield from _chunks_in(files, f"{folder}/{of_length}/{start_us}.parquet")


def united(open_chunks: Iterable[Chunk], closed_chunks: Iterable[Chunk], begin_us: int, end_us: int) -> list[Chunk]:
    """The chunks that reach into [begin_us, end_us), in the order of time, each once, wherever it is."""
    by_start = {chunk.start_us: chunk for chunks in (open_chunks, closed_chunks) for chunk in chunks}
    return [by_start[start] for start in sorted(by_start) if begin_us - CHUNK_US < start < end_us]


def _folder_of(patient: str, signal: str) -> str:
    for name in (patient, signal):
        if not is_name(name):
            raise ValueError("a patient's or a signal's name has characters that no folder's name may have")
    return f"{patient}/{signal}"


def _chunks_in(files: Files, name: str) -> Iterator[Chunk]:
    data = files.read(name)
    if data is not None and not data.endswith(_PARQUET):
        # An object store is asked for its size, and then for so many bytes: it was replaced by a longer one meanwhile.
        data = files.read(name)
    if data is None:
        return
    try:
        table = pq.read_table(pa.BufferReader(data), columns=["start_us", "samples"])
    except (pa.ArrowException, OSError) as error:
        # Whoever writes over it would hide that what it had is lost.
        file = "/".join(name.split("/")[-2:])
        raise InvalidConfiguration(
            f"the file {file} of a signal is damaged ({len(data)} bytes, and no whole Parquet file): its disk or store "
            "has lost a part. Move it away, or put a copy of it there; a job that failed by it runs its batch again",
            file=file,
        ) from error
    yield from map(Chunk, table["start_us"].to_pylist(), table["samples"].to_pylist())
