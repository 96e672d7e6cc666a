"""A chunk: one second of one signal of one patient, as the monitor sends it. Raw bytes in, physical units out. Pure.

A sample is 12 bytes, little-endian: its time (int64, microseconds since 1970) and what the converter counted (int32). A
second at 200 Hz, the default of the source, is 2,400 bytes; 2 to 6 kB are 167 to 500 Hz.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

SECOND_US = 1_000_000
CHUNK_US = SECOND_US

LOWEST_HZ, HIGHEST_HZ = 1, 500
SAMPLE = np.dtype([("time_us", "<i8"), ("count", "<i4")])
MAX_CHUNK_BYTES = HIGHEST_HZ * SAMPLE.itemsize

# A patient, or a signal: it becomes a folder's name, too. JSON's other words are no names.
NAME = r"[A-Za-z][A-Za-z0-9_-]{0,63}"
NO_NAMES = ("true", "false", "null")


class Chunk(NamedTuple):
    """One second of a signal.

    Attributes:
        start_us: When it begins, microseconds since 1970; it ends CHUNK_US later.
        samples: SAMPLE after SAMPLE.
    """

    start_us: int
    samples: bytes


class Calibration(NamedTuple):
    """What a count of the converter means: value = count * gain + offset, in `unit`."""

    unit: str
    gain: float
    offset: float


# The pulse wave and the oxygen saturation, of which more is computed than that they are there.
PULSE, SATURATION = "pleth", "spo2"

# The recordings are of a converter of 10 bits and don't say of what range: 5 V, that of the usual board, is assumed.
CALIBRATIONS: Mapping[str, Calibration] = {
    PULSE: Calibration("V", 5.0 / 1024, 0.0),
    SATURATION: Calibration("%", 0.1, 0.0),
}
COUNTS = Calibration("counts", 1.0, 0.0)
"""Of any other signal, of which nobody has said what a count means."""


class Series(NamedTuple):
    """Samples in physical units, in the order of time.

    Attributes:
        times_us: int64, microseconds since 1970.
        values: In the unit of the signal's calibration.
    """

    times_us: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]


def is_name(text: str) -> bool:
    """Whether a patient or a signal may be called so."""
    return re.fullmatch(NAME, text) is not None and text not in NO_NAMES


def encode(start_us: int, counts: npt.NDArray[np.int32]) -> Chunk:
    """A second of counts, evenly spaced from its beginning on."""
    samples = np.empty(len(counts), SAMPLE)
    samples["time_us"] = start_us + np.arange(len(counts)) * CHUNK_US // max(1, len(counts))
    samples["count"] = counts
    return Chunk(start_us, samples.tobytes())


def decode(chunks: Iterable[Chunk], calibration: Calibration) -> Series:
    """The chunks' samples in physical units, chunk after chunk.

    Raises:
        ValueError: A chunk's bytes are no whole samples.
    """
    samples = np.frombuffer(b"".join(chunk.samples for chunk in chunks), SAMPLE)
    values = samples["count"] * calibration.gain + calibration.offset
    return Series(samples["time_us"].astype(np.int64), values)
