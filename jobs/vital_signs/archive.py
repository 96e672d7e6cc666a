"""A signal between two moments, in files or not: what a reader needs beside Keyhole's client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.vital_signs.blobs import stored_chunks, united
from jobs.vital_signs.chunks import CALIBRATIONS, COUNTS, PULSE, Calibration, Chunk, Series, decode
from jobs.vital_signs.files import files_at

if TYPE_CHECKING:  # who reads files alone needs no client
    from keyhole import Client
    from keyhole.client.read_sessions import Session

# As the job has it, which needs Spark.
APPLICATION, OPEN_CHUNKS = "vital-signs", "open_chunks"

OpenChunks = Callable[[str, str], Iterable[Chunk]]
"""(patient, signal) -> the chunks of the blobs that are not closed, as the state has them now."""


def open_chunks_of(client: Client | Session, application: str = APPLICATION) -> OpenChunks:
    """What `Archive` needs of the job's state: a scan of the list of open chunks. Raises as Client.scan.

    Args:
        client: With a session, reads never go backwards, whichever copy answers.
        application: The job's, where it was given another name.
    """

    def scan(patient: str, signal: str) -> Iterable[Chunk]:
        stored = client.scan(application, OPEN_CHUNKS, (patient, signal)).values
        return [Chunk(chunk.start_us, chunk.samples) for chunk in stored]

    return scan


class Archive:
    """Reads a signal, whether it is in files or still in the state.

    Args:
        place: Where the job writes its files: a folder, or s3://bucket/path. Asks an object store whether it is there.
        calibrations: By signal. Of one that is not there the values are what the converter counted (COUNTS).

    Raises:
        InvalidConfiguration: No files can be there, or the object store can't be reached.
    """

    def __init__(
        self, place: str | Path, open_chunks: OpenChunks, calibrations: Mapping[str, Calibration] = CALIBRATIONS
    ) -> None:
        self._files = files_at(place)
        self._files.check_there()
        self._open_chunks = open_chunks
        self._calibrations = calibrations

    def read(self, patient: str, begin_us: int, end_us: int, signal: str = PULSE) -> Series:
        """The samples in [begin_us, end_us), in physical units; no chunk is missing or twice while a blob closes.

        Raises:
            ValueError: The patient or the signal is no name.
            KeyholeError: The open chunks can't be had: as Client.scan. Or the files: as Files.read.
        """
        still_open = list(self._open_chunks(patient, signal))  # before the files: see blobs.py
        closed = stored_chunks(self._files, patient, signal, begin_us, end_us)
        series = decode(united(still_open, closed, begin_us, end_us), self._calibrations.get(signal, COUNTS))
        within = (series.times_us >= begin_us) & (series.times_us < end_us)
        return Series(series.times_us[within], series.values[within])
