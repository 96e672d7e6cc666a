"""`python -m jobs.vital_signs.verify`: takes the topic's chunks again, and asks for every signal's states and files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from jobs.vital_signs.recount import Recorded, Signal, chunk_of, recount
from keyhole import Client
from keyhole.cli.verify import Subject, Verdict, entries, main, records_before, unkept

# As the job has it, of which nothing here may know.
APPLICATION, SEGMENTS, OPEN_CHUNKS, VITALS = "vital-signs", "segments", "open_chunks", "vitals"
_RATES = (40.0, 180.0)


def check(subject: Subject, client: Client) -> Verdict:
    """Of each signal: its segments, its chunks, the piece that its rates are of, and a rate that fits its beats."""
    messages = list(records_before(subject.bootstrap_servers, subject.topic, subject.ends))
    recorded = recount(message.value() for message in messages)
    if any(of.doubtful for of in recorded.values()):
        raise TimeoutError("chunks came so late that nobody can tell whether they count; use another source")
    agreed = sum(sum(agreements(subject, client, signal, of)) for signal, of in recorded.items())
    segments = sum(len(of.segments()) for of in recorded.values())
    surplus = entries(client, APPLICATION, SEGMENTS) - segments + entries(client, APPLICATION, VITALS) - len(recorded)
    rejected = {(m.partition(), m.offset()) for m in messages if chunk_of(m.value()) is None}
    return Verdict(
        subject.epoch,
        keys=4 * len(recorded),
        agreed=agreed,
        surplus=max(0, surplus),
        events=len(messages),
        rejected=len(rejected),
        unkept=unkept(subject, rejected),
    )


def agreements(subject: Subject, client: Client, signal: Signal, of: Recorded) -> Iterator[bool]:
    """What was recorded, and what is told."""
    told = client.scan(APPLICATION, SEGMENTS, signal, min_epoch=subject.epoch)
    yield [(entry.map_key, entry.value.end_us) for entry in told] == of.segments()

    # The list first, the files afterwards: a chunk that is in the list no more was in a file before.
    still_open = client.scan(APPLICATION, OPEN_CHUNKS, signal, min_epoch=subject.epoch).values
    chunks = {chunk.start_us: chunk.samples for chunk in still_open}
    yield of.chunks == chunks | dict(filed(subject.files.joinpath(*signal)))

    vitals = client.get(APPLICATION, VITALS, signal, min_epoch=subject.epoch)
    yield vitals.found and (vitals.value.begin_us, vitals.value.end_us) == of.last_piece()
    yield vitals.found and _plausible(vitals.value.heart_rate, vitals.value.beats, of.last_piece())


def filed(folder: Path) -> Iterator[tuple[int, bytes]]:
    """The chunks in a signal's files: beginnings, samples."""
    for path in sorted(folder.glob("*/*.parquet")):
        table = pq.read_table(path, columns=["start_us", "samples"])
        yield from zip(table["start_us"].to_pylist(), table["samples"].to_pylist(), strict=True)


def _plausible(heart_rate: float | None, beats: int, piece: tuple[int, int]) -> bool:
    """A rate that a heart can have, and that many beats; at each end one may be missing, and some in between."""
    if heart_rate is None:
        return True
    minutes = (piece[1] - piece[0]) / 60_000_000
    return _RATES[0] <= heart_rate <= _RATES[1] and abs(heart_rate * minutes - beats) <= 2 + 0.3 * beats


if __name__ == "__main__":
    sys.exit(main(check))
