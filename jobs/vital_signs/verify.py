"""`python -m jobs.vital_signs.verify`: takes the topic's chunks again, and asks for every signal's states and files."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.vital_signs.files import Files, files_at
from jobs.vital_signs.recount import (
    PULSE,
    SATURATION,
    Recorded,
    Segment,
    Signal,
    blob_start,
    chunk_of,
    recount,
    watermark_us,
)
from keyhole import Answer, Client
from keyhole.demo.recount import RecountVerdict, VerifiedJob, entries, main, records_before, unkept

# As the job has it, of which nothing here may know.
APPLICATION, SEGMENTS, OPEN_CHUNKS, VITALS = "vital-signs", "segments", "open_chunks", "vitals"
OXYGEN_SATURATION = "oxygen_saturation"
BLOB_SECONDS, BLOB_SECONDS_DEFAULT = "BLOB_SECONDS", "60"
_SECOND_US, _HOUR_US = 1_000_000, 3_600_000_000

_RATES, _BREATHS = (40.0, 180.0), (6.0, 24.0)
_FEWEST_BEATS = 4
_SHORTEST_SECONDS, _SHORTEST_BREATHING_SECONDS = 5, 30
# A wave may be noise, which has no rates. Of so many that are long enough, at least one is none.
_WAVES = 4

# How long a batch may take that only closes blobs: none of the topic's records waits for it.
_CLOSING_SECONDS = 180.0
_LOOK_SECONDS = 0.2


class Kept(NamedTuple):
    """A signal's chunks, beginnings and samples, as they are kept: in the list, and in the files."""

    still_open: list[tuple[int, bytes]]
    filed: list[tuple[int, bytes]]

    def agrees(self, of: Recorded, blob_us: int, until_us: int) -> bool:
        """Whether each chunk is kept once, and in a file where the watermark, `until_us`, has passed its blob's end.

        Where the watermark is that end itself, the blob may be closed or not.
        """
        filed = {start for start, _ in self.filed}
        once = sorted([*self.still_open, *self.filed]) == sorted(of.chunks.items())
        return once and of.closed(blob_us, until_us) <= filed <= of.closed(blob_us, until_us + 1)


def check(subject: VerifiedJob, client: Client) -> RecountVerdict:
    """Of each signal: its segments and its chunks; the piece that its rates are of, and rates that fit its beats; and
    its oxygen saturation.
    """
    messages = list(records_before(subject.bootstrap_servers, subject.topic, subject.ends))
    recorded = recount(message.value() for message in messages)
    if any(of.doubtful for of in recorded.values()):
        raise TimeoutError("chunks came so late that nobody can tell whether they count; use another source")
    waves, saturations = of_kind(recorded, PULSE), of_kind(recorded, SATURATION)
    vitals = {signal: client.get(APPLICATION, VITALS, signal, min_epoch=subject.epoch) for signal in waves}
    agreed = [
        *(agrees for signal, of in recorded.items() for agrees in segments_agree(subject, client, signal, of)),
        *chunks_agree(subject, client, recorded),
        *(agrees for signal, of in waves.items() for agrees in vitals_agree(vitals[signal], of.last_piece())),
        *rates_agree(vitals, waves),
        *(
            saturation_agrees(client.get(APPLICATION, OXYGEN_SATURATION, signal, min_epoch=subject.epoch), of)
            for signal, of in saturations.items()
        ),
    ]
    counted = {
        SEGMENTS: sum(len(of.segments()) for of in recorded.values()),
        VITALS: len(waves),
        OXYGEN_SATURATION: len(saturations),
    }
    surplus = sum(max(0, entries(client, APPLICATION, state) - count) for state, count in counted.items())
    rejected = {(m.partition(), m.offset()) for m in messages if chunk_of(m.value()) is None}
    return RecountVerdict(
        subject.epoch,
        keys=len(agreed),
        agreed=sum(agreed),
        surplus=surplus,
        events=len(messages),
        rejected={subject.topic: len(rejected)},
        unkept=unkept(subject, rejected),
    )


def of_kind(recorded: Mapping[Signal, Recorded], name: str) -> dict[Signal, Recorded]:
    """Of all patients the signal of that name."""
    return {signal: of for signal, of in recorded.items() if signal[1] == name}


def segments_agree(subject: VerifiedJob, client: Client, signal: Signal, of: Recorded) -> Iterator[bool]:
    """All of the signal's segments; and those that show the gaps of the middle of the run, by one range query."""
    entries = client.scan(APPLICATION, SEGMENTS, signal, min_epoch=subject.epoch)
    yield [(entry.map_key, entry.value.end_us) for entry in entries] == of.segments()

    starts = sorted(of.chunks)
    begin, end = starts[len(starts) // 4], starts[3 * len(starts) // 4]
    begin -= begin % _HOUR_US  # where segments are cut
    entries = client.scan(APPLICATION, SEGMENTS, signal, start=begin, stop=end, min_epoch=subject.epoch)
    expected = [segment for segment in of.segments() if begin <= segment[0] < end]
    yield [(entry.map_key, entry.value.end_us) for entry in entries] == expected


def chunks_agree(subject: VerifiedJob, client: Client, recorded: Mapping[Signal, Recorded]) -> Iterator[bool]:
    """Each signal's chunks: open ones, and those in the files of closed blobs."""
    blob_us = int(subject.settings.get(BLOB_SECONDS, BLOB_SECONDS_DEFAULT)) * _SECOND_US
    files = files_at(subject.files)
    until_us, patience = watermark_us(recorded), time.monotonic() + _CLOSING_SECONDS
    for signal, of in recorded.items():
        # A chunk is in both while its blob is being closed: that is no mistake unless it stays so.
        while not (agrees := kept(subject, client, files, signal, blob_us).agrees(of, blob_us, until_us)):
            if time.monotonic() > patience:
                break
            time.sleep(_LOOK_SECONDS)
        yield agrees


def kept(subject: VerifiedJob, client: Client, files: Files, signal: Signal, blob_us: int) -> Kept:
    """The list first, the files afterwards: a chunk that is in the list no more was in a file before."""
    still_open = client.scan(APPLICATION, OPEN_CHUNKS, signal, min_epoch=subject.epoch).values
    folder = "/".join((*signal, f"{blob_us // _SECOND_US}s"))
    return Kept([(chunk.start_us, chunk.samples) for chunk in still_open], list(filed(files, folder, blob_us)))


def filed(files: Files, folder: str, blob_us: int) -> Iterator[tuple[int, bytes]]:
    """The chunks in the files where a reader looks for them: beginnings, samples."""
    for name in files.names(folder):
        data = files.read(f"{folder}/{name}")
        if data is None or not name.endswith(".parquet"):
            continue
        table = pq.read_table(pa.BufferReader(data), columns=["start_us", "samples"])
        for start, samples in zip(table["start_us"].to_pylist(), table["samples"].to_pylist(), strict=True):
            if f"{blob_start(start, blob_us)}" == name.removesuffix(".parquet"):
                yield start, samples


def vitals_agree(answer: Answer, piece: Segment) -> Iterator[bool]:
    """Which piece of the wave the rates are of, and whether they can be its rates."""
    yield answer.found and (answer.value.begin_us, answer.value.end_us) == piece
    yield answer.found and _plausible(answer.value.heart_rate, answer.value.breathing_rate, answer.value.beats, piece)


def saturation_agrees(answer: Answer, of: Recorded) -> bool:
    """All of it; mean and lowest to nine digits."""
    if not answer.found or (answer.value.begin_us, answer.value.end_us) != of.last_piece():
        return False
    mean, lowest, samples = of.saturation()
    agreed = _close(answer.value.mean, mean) and _close(answer.value.lowest, lowest)
    return agreed and answer.value.samples == samples


def rates_agree(vitals: Mapping[Signal, Answer], recorded: Mapping[Signal, Recorded]) -> Iterator[bool]:
    """Whether there is a heart rate, and a breathing rate, at all; if enough was sent to demand them."""
    waves = [signal for signal, of in recorded.items() if _seconds(of.last_piece()) >= _SHORTEST_BREATHING_SECONDS]
    if len(waves) >= _WAVES:
        found = [vitals[signal].value for signal in waves if vitals[signal].found]
        yield any(of.heart_rate is not None for of in found)
        yield any(of.breathing_rate is not None for of in found)


def _plausible(heart_rate: float | None, breathing_rate: float | None, beats: int, piece: Segment) -> bool:
    """Rates that a body can have, of a piece that is long enough for them; and no more beats than the heart rate says.

    There may be far fewer: a stretch of noise in the middle has none. Without a heart rate there is no breathing rate.
    """
    seconds = _seconds(piece)
    if heart_rate is None:
        return breathing_rate is None
    fits = _RATES[0] <= heart_rate <= _RATES[1] and _FEWEST_BEATS <= beats <= 2 + 1.1 * heart_rate * seconds / 60
    breathes = breathing_rate is None or (
        _BREATHS[0] <= breathing_rate <= _BREATHS[1] and seconds >= _SHORTEST_BREATHING_SECONDS
    )
    return fits and breathes and seconds >= _SHORTEST_SECONDS


def _close(answered: float | None, counted: float | None) -> bool:
    if answered is None or counted is None:
        return answered is counted
    return math.isclose(answered, counted)


def _seconds(piece: Segment) -> float:
    return (piece[1] - piece[0]) / _SECOND_US


if __name__ == "__main__":
    sys.exit(main(check))
