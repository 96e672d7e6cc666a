"""Segments, blobs and reads against sets of seconds: whatever comes, in any order, and whatever closes meanwhile."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Iterable
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobs.vital_signs.archive import Archive
from jobs.vital_signs.blobs import Blob, blob_start, gathered, united, write_blob
from jobs.vital_signs.chunks import CHUNK_US, SECOND_US, Chunk
from jobs.vital_signs.files import Folder
from jobs.vital_signs.segments import HOUR_US, Segment, applied, covered, extended, first_key, gaps
from tests.support.examples import examples
from tests.support.vital_signs import BEGIN_US, BLOB_US, KEY, ProcessorBench, chunk

# Pieces of time around full hours, in quarters of an hour: small enough for sets.
QUARTER_US = HOUR_US // 4
PIECES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 9)).map(lambda at: Segment(at[0], at[0] + at[1])), max_size=12
)
SECONDS = st.integers(-70, 200)
BLOBS_US = st.sampled_from([1, 7, 20, 60, 90, 3_600]).map(lambda seconds: seconds * SECOND_US)


def quarters(pieces: Iterable[Segment]) -> list[Segment]:
    return [Segment(start * QUARTER_US, end * QUARTER_US) for start, end in pieces]


def moments(pieces: Iterable[Segment]) -> set[int]:
    """The quarters of an hour that the pieces cover."""
    return {at for start, end in pieces for at in range(start // QUARTER_US, end // QUARTER_US)}


def one_second(second: int) -> Segment:
    return Segment(BEGIN_US + second * SECOND_US, BEGIN_US + (second + 1) * SECOND_US)


@given(PIECES)
def test_segments_cover_what_the_pieces_cover_as_few_as_can_be_within_hours(pieces: list[Segment]) -> None:
    segments = covered(quarters(pieces))
    assert moments(segments) == moments(quarters(pieces))
    assert segments == sorted(segments)
    assert all(start // HOUR_US == (end - 1) // HOUR_US for start, end in segments)
    touching = [(a, b) for a, b in itertools.pairwise(segments) if a.end_us >= b.start_us]
    assert all(b.start_us % HOUR_US == 0 and a.end_us == b.start_us for a, b in touching)


@given(st.lists(PIECES, max_size=6))
def test_segments_extended_piece_by_piece_are_those_of_all_pieces_at_once(batches: list[list[Segment]]) -> None:
    stored: list[Segment] = []
    for batch in batches:
        change = extended(stored, quarters(batch))
        assert not set(change.put) & set(stored)
        assert not {segment.start_us for segment in change.put} & set(change.removed)
        stored = applied(stored, change)
    assert stored == covered(quarters([piece for batch in batches for piece in batch]))


@given(PIECES, st.integers(0, 40), st.integers(0, 20))
def test_the_gaps_are_found_in_one_range_of_map_keys(pieces: list[Segment], begin: int, length: int) -> None:
    begin_us, end_us = begin * QUARTER_US, (begin + length) * QUARTER_US
    stored = covered(quarters(pieces))
    in_range = [segment for segment in stored if first_key(begin_us) <= segment.start_us < end_us]
    found = gaps(in_range, begin_us, end_us)
    assert moments(found) == set(range(begin, begin + length)) - moments(stored)
    assert all(a.end_us < b.start_us for a, b in itertools.pairwise(found))


@given(st.lists(SECONDS), BLOBS_US, SECONDS)
def test_every_open_chunk_is_in_one_closed_blob_or_stays_open(seconds: list[int], blob_us: int, until: int) -> None:
    closed, still_open = gathered(*KEY, map(chunk, seconds), blob_us, BEGIN_US + until * SECOND_US)
    in_blobs = [item for blob in closed for item in blob.chunks]
    assert sorted([*in_blobs, *still_open]) == [chunk(second) for second in sorted(set(seconds))]
    for blob in closed:
        assert {blob_start(item.start_us, blob_us) for item in blob.chunks} == {blob.start_us}
        assert blob.start_us + blob_us == blob.end_us <= BEGIN_US + until * SECOND_US
        assert list(blob.chunks) == sorted(blob.chunks)
    ends = {blob_start(item.start_us, blob_us) + blob_us for item in still_open}
    assert all(end_us > BEGIN_US + until * SECOND_US for end_us in ends)


@given(st.lists(SECONDS), st.lists(SECONDS), SECONDS, st.integers(0, 300), st.integers(0, CHUNK_US - 1))
def test_what_is_united_is_each_chunk_of_the_range_once_in_order(
    still_open: list[int], closed: list[int], begin: int, length: int, odd_us: int
) -> None:
    begin_us, end_us = BEGIN_US + begin * SECOND_US + odd_us, BEGIN_US + (begin + length) * SECOND_US
    found = united(map(chunk, still_open), map(chunk, closed), begin_us, end_us)
    reaching = [chunk(second) for second in sorted({*still_open, *closed})]
    assert found == [c for c in reaching if c.start_us < end_us and c.start_us + CHUNK_US > begin_us]


class Job:
    """What the job does, step by step, as a reader of its state and its files sees it."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.folder, self._draw = folder, draw
        self.committed: list[Chunk] = []
        self.arrived: set[int] = set()
        self._written: list[Blob] = []
        self._watermark_us = 0
        self._blob_us = BLOB_US
        self._waiting = draw.sample(range(200), 60)
        self._waiting.sort(key=lambda second: second + draw.randint(0, 8))

    def step(self) -> None:
        """An epoch of new chunks; one of the steps of closing: the files, again the files, the commit; a restart."""
        match self._draw.choice(["arrive", "arrive", "arrive", "write", "write", "commit", "commit", "restart"]):
            case "arrive" if self._waiting and not self._written:
                taken, self._waiting = self._waiting[:5], self._waiting[5:]
                self.committed = [*self.committed, *map(chunk, taken)]
                self.arrived.update(taken)
            case "write":
                self._watermark_us = BEGIN_US + max(self.arrived, default=0) * SECOND_US
                self._written, _ = gathered(*KEY, self.committed, self._blob_us, self._watermark_us)
                for blob in self._written:
                    write_blob(Folder(self.folder), blob)
            case "commit" if self._written:
                _, self.committed = gathered(*KEY, self.committed, self._blob_us, self._watermark_us)
                self._written = []
            case "restart":  # with blobs of another length; what was not committed is done again
                self._blob_us = self._draw.choice([7, 20, 60, 90]) * SECOND_US
                self._written = []
            case _:
                pass


@settings(max_examples=examples(60), deadline=None)
@given(
    st.randoms(use_true_random=False), st.integers(0, 60), st.integers(0, 12), st.integers(0, 199), st.integers(1, 200)
)
def test_a_read_has_every_chunk_once_whatever_closes_before_between_and_after_its_two_looks(
    draw: random.Random, before: int, between: int, begin: int, length: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), draw)

        def look(*_: str) -> list[Chunk]:
            for _ in range(before):
                job.step()
            seen = list(job.committed)
            arrived.update(job.arrived)
            for _ in range(between):
                job.step()
            return seen

        arrived: set[int] = set()
        end = min(begin + length, 200)
        times, _ = Archive(Path(folder), look).read(
            "patient-1", BEGIN_US + begin * SECOND_US, BEGIN_US + end * SECOND_US
        )
        seconds = [(time - BEGIN_US) / SECOND_US for time in times]
        assert seconds == sorted(set(seconds))
        whole = {int(second) for second in seconds}
        assert len(seconds) == 4 * len(whole)
        assert {second for second in arrived if begin <= second < end} <= whole <= job.arrived


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(45, 80), max_size=8), st.integers(40, 140)), max_size=12))
def test_the_processor_keeps_closes_and_merges_exactly_the_chunks_that_were_not_too_late(
    batches: list[tuple[list[int], int]],
) -> None:
    bench, accepted, watermark = ProcessorBench(), set[int](), -1
    closed: list[Chunk] = []
    for seconds, advanced in batches:
        bench.take(map(chunk, seconds))
        accepted.update(second for second in seconds if second > watermark)
        if advanced > watermark:
            watermark = advanced
            rows = bench.advance(BEGIN_US + watermark * SECOND_US)
            closed += [Chunk(*item) for row in rows for item in row.chunks]
        assert bench.segments() == covered(map(one_second, accepted))
        assert sorted({*closed, *bench.open_chunks()}) == [chunk(second) for second in sorted(accepted)]
        assert len(set(closed)) == len(closed)
        assert not {*closed} & {*bench.open_chunks()}
        assert set(closed) == {
            item
            for item in map(chunk, accepted)
            if blob_start(item.start_us, BLOB_US) + BLOB_US <= BEGIN_US + watermark * SECOND_US
        }


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.lists(SECONDS, max_size=8), SECONDS, BLOBS_US), max_size=8))
@example([([50], -70, 60 * SECOND_US), ([], 70, 90 * SECOND_US)])  # the last timer is that of a blob that is none
def test_whatever_the_length_of_blobs_becomes_every_chunk_is_closed_once_and_none_stays_open_for_ever(
    runs: list[tuple[list[int], int, int]],
) -> None:
    bench, accepted, watermark = ProcessorBench(), set[int](), -71
    closed: list[Chunk] = []
    for seconds, advanced, blob_us in [*runs, ([], 3_600, BLOB_US), ([], 7_200, BLOB_US)]:
        bench.restart(blob_us)
        bench.take(map(chunk, seconds))
        accepted.update(second for second in seconds if second > watermark)
        watermark = max(watermark, advanced)
        closed += [Chunk(*item) for row in bench.advance(BEGIN_US + watermark * SECOND_US) for item in row.chunks]
        assert not {*closed} & {*bench.open_chunks()}
    assert sorted(closed) == [chunk(second) for second in sorted(accepted)]
    assert bench.open_chunks() == []
