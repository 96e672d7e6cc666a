"""Real pulse waves, as monitors would send them: HeartPy's three recordings, a chunk per patient and second, endlessly.

The recordings are 25 s at 100 Hz, 128 s at 117 Hz and 682 s at 100 Hz, of a converter of 10 bits: 200 bytes a second.
They are resampled (linearly) to one rate, and each sample gets its own time and 32 bits: 12 bytes a sample. Where a
recording begins again, its wave has a step. Beside the wave each monitor sends an oxygen saturation, a sample a second,
which is made up: HeartPy has recorded none. HeartPy's package is read, never imported: it wants SciPy, matplotlib, and
pkg_resources, which setuptools has given up.

`python -m jobs.vital_signs.source` sends them to a topic; settings: KEYHOLE_CHUNKS_*.
"""

from __future__ import annotations

import base64
import csv
import functools
import heapq
import importlib.util
import itertools
import json
import random
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jobs.vital_signs.chunks import HIGHEST_HZ, LOWEST_HZ, PULSE, SATURATION, SECOND_US, Chunk, encode
from jobs.vital_signs.config import ChunksConfig
from jobs.vital_signs.description import JOB
from keyhole.errors import InvalidConfiguration
from keyhole.installing import with_extra
from keyhole.local.job_sources import Sender, due, run_source

# 2026-11-21: the monitors begin then in every run.
BEGIN_US = 1_795_219_200_000_000
# Which chunks are too late goes by the topic's order: there is one, in one partition.
PARTITIONS = 1
_SEED = 20_190_717
DEFAULT_RATE_HZ = 200

# Tenths of a percent: where a saturation walks; and what is sent in its place now and then, as the sensor has slipped.
_LOWEST_TENTHS, _HIGHEST_TENTHS, _SLIPPED_TENTHS = 800, 1000, 0
_SLIPS = 0.02


class Recording(NamedTuple):
    """A pulse wave as it was recorded: what the converter counted, evenly spaced."""

    name: str
    rate_hz: float
    counts: npt.NDArray[np.float64]


class Sent(NamedTuple):
    """A chunk on its way, with whose it is."""

    patient: str
    signal: str
    chunk: Chunk


@dataclass(frozen=True)
class Shape:
    """What the monitors are like.

    Attributes:
        rate_hz: Samples per second, 1 to 500.
        drops: How probable it is that a monitor falls silent in a second; for `silent_seconds`, at least and most.
        late: Which part of the chunks comes late, by 1 to `late_seconds`: later ones overtake it.
        saturation: Whether they send an oxygen saturation beside the pulse wave.
    """

    patients: int = 20
    rate_hz: int = DEFAULT_RATE_HZ
    drops: float = 0.01
    silent_seconds: tuple[int, int] = (2, 60)
    late: float = 0.05
    late_seconds: int = 5
    saturation: bool = False


def recordings() -> list[Recording]:
    """The three of HeartPy's package.

    Raises:
        InvalidConfiguration: The package isn't installed.
    """
    found = importlib.util.find_spec("heartpy")
    if found is None or not found.submodule_search_locations:
        raise InvalidConfiguration(f"the recordings of HeartPy are not installed; install {with_extra('jobs')}")
    return list(_read(Path(found.submodule_search_locations[0]) / "data"))


@functools.cache
def _read(data: Path) -> tuple[Recording, ...]:
    first = np.loadtxt(data / "data.csv")
    milliseconds, second = _columns(data / "data2.csv")
    times, third = _columns(data / "data3.csv")
    began, ended = datetime.fromisoformat(times[0]), datetime.fromisoformat(times[-1])
    return (
        Recording("data.csv", 100.0, first),
        Recording("data2.csv", (len(second) - 1) * 1000 / (float(milliseconds[-1]) - float(milliseconds[0])), second),
        Recording("data3.csv", (len(third) - 1) / (ended - began).total_seconds(), third),
    )


def _columns(path: Path) -> tuple[list[str], npt.NDArray[np.float64]]:
    with path.open(newline="") as file:
        _, *rows = csv.reader(file)
    times, counts = zip(*rows, strict=True)
    return list(times), np.array(counts, dtype=np.float64)


def resampled(recording: Recording, rate_hz: int) -> npt.NDArray[np.int32]:
    """The recording's whole seconds at another rate: one row per second.

    Raises:
        InvalidConfiguration: The rate is none that a chunk can have.
    """
    if not LOWEST_HZ <= rate_hz <= HIGHEST_HZ:
        raise InvalidConfiguration(f"the rate is {rate_hz} Hz; it must be from {LOWEST_HZ} to {HIGHEST_HZ}")
    seconds = int((len(recording.counts) - 1) / recording.rate_hz)
    at = np.arange(seconds * rate_hz) / rate_hz
    counts = np.interp(at, np.arange(len(recording.counts)) / recording.rate_hz, recording.counts)
    return np.rint(counts).astype(np.int32).reshape(seconds, rate_hz)


def chunks(seed: int, begin_us: int, shape: Shape) -> Iterator[list[Sent]]:
    """What is sent in each second, without end: its chunks, but for those that are late, and late ones of before."""
    draw = random.Random(seed)  # noqa: S311 - made-up faults of monitors, no secrets
    waves = [resampled(recording, shape.rate_hz) for recording in recordings()]
    offsets = [draw.randrange(len(waves[patient % len(waves)])) for patient in range(shape.patients)]
    saturations = [draw.randint(950, 990) if shape.saturation else 0 for _ in range(shape.patients)]
    speaks_at = [0] * shape.patients
    waiting: list[tuple[int, int, int, str, Sent]] = []

    def on_its_way(second: int, patient: int, signal: str, counts: npt.NDArray[np.int32]) -> None:
        behind = draw.randint(1, shape.late_seconds) if draw.random() < shape.late else 0
        sent = Sent(f"patient-{patient}", signal, encode(begin_us + second * SECOND_US, counts))
        heapq.heappush(waiting, (second + behind, second, patient, signal, sent))

    for second in itertools.count():
        for patient in range(shape.patients):
            if second < speaks_at[patient]:
                continue
            if draw.random() < shape.drops:
                speaks_at[patient] = second + draw.randint(*shape.silent_seconds)
                continue
            wave = waves[patient % len(waves)]
            on_its_way(second, patient, PULSE, wave[(second + offsets[patient]) % len(wave)])
            if shape.saturation:
                walked = saturations[patient] + draw.randint(-5, 5)
                saturations[patient] = min(max(walked, _LOWEST_TENTHS), _HIGHEST_TENTHS)
                tenths = _SLIPPED_TENTHS if draw.random() < _SLIPS else saturations[patient]
                on_its_way(second, patient, SATURATION, np.array([tenths], np.int32))
        due: list[Sent] = []
        while waiting and waiting[0][0] <= second:
            due.append(heapq.heappop(waiting)[-1])
        yield due


def record(sent: Sent) -> bytes:
    """The chunk as the job takes it from Kafka."""
    samples = base64.b64encode(sent.chunk.samples).decode()
    fields = {"patient": sent.patient, "signal": sent.signal, "start": sent.chunk.start_us, "samples": samples}
    return json.dumps(fields).encode()


def malformed(sent: Sent) -> bytes:
    """The chunk as it comes out of a broken pipe."""
    return record(sent)[:-2]


def feed(config: ChunksConfig, sender: Sender, stopped: threading.Event) -> None:
    """Sends until it is stopped. Raises KeyholeError."""
    draw = random.Random(_SEED)  # noqa: S311 - made-up faults, no secrets
    coming = chunks(_SEED, BEGIN_US, Shape(config.patients, config.rate, saturation=True))
    for more in due(config.speed, stopped):
        for second in itertools.islice(coming, more):
            for sent in second:
                sender.send(malformed(sent) if draw.random() < config.malformed else record(sent))
        sender.poll()


def topics(config: ChunksConfig) -> dict[str, int]:
    """What it sends to, and how many partitions each has."""
    return {config.topic: PARTITIONS}


if __name__ == "__main__":
    sys.exit(run_source("chunks", ChunksConfig, feed, topics, JOB.kinds))
