"""The job with servers: waves are read in one piece while their blobs close, and gaps by one range query."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from jobs.vital_signs import source
from jobs.vital_signs.__main__ import states
from jobs.vital_signs.archive import Archive, OpenChunks, open_chunks_of
from jobs.vital_signs.blobs import stored_chunks
from jobs.vital_signs.chunks import PULSE, SECOND_US, Chunk
from jobs.vital_signs.files import Folder
from jobs.vital_signs.pipeline import chunks, exposing, monitored
from jobs.vital_signs.segments import Segment, first_key, gaps
from jobs.vital_signs.source import Shape
from keyhole import Client
from keyhole.protocol.receipts import PartitionReceipt, StageOrder
from keyhole.spark.write_path import stage_plan as staging
from keyhole.spark.write_path.stage_plan import StagedState
from tests.support.micro_batches import session_settings
from tests.support.streams import RunQuery, Service, Stream
from tests.support.vital_signs import BEGIN_US

pytestmark = pytest.mark.usefixtures("rocksdb")

# The beginning is a full hour: it comes in the middle of the stream.
FIRST, END, OF_BATCH = -90, 90, 20
HZ = 4
PATIENTS = [f"patient-{number}" for number in range(3)]
SILENT = 20
BLOB_US = 30 * SECOND_US
MONITORS = Shape(patients=len(PATIENTS), rate_hz=HZ, drops=0.02, silent_seconds=(2, SILENT))
BY_SECOND = list(itertools.islice(source.chunks(8, BEGIN_US + FIRST * SECOND_US, MONITORS), END - FIRST))
WAIT_SECONDS = 300


def second_of(time_us: int) -> int:
    return (time_us - BEGIN_US) // SECOND_US


SENT = {
    patient: {second_of(item.chunk.start_us) for items in BY_SECOND for item in items if item.patient == patient}
    for patient in PATIENTS
}


class Progress:
    """Something that happens again and again, until all is over; others wait for it."""

    def __init__(self) -> None:
        self._times, self.over = 0, False
        self._changed = threading.Condition()

    def step(self, *, over: bool = False) -> None:
        with self._changed:
            self._times, self.over = self._times + 1, self.over or over
            self._changed.notify_all()

    def await_steps(self, count: int) -> None:
        """Returns when it has happened so often from now on, or is over."""
        with self._changed:
            until = self._times + count
            assert self._changed.wait_for(lambda: self._times >= until or self.over, WAIT_SECONDS)


class Reader:
    """Reads waves from their beginning to beyond what it has seen of them; a second seen once must stay."""

    def __init__(self, folder: Path, open_chunks: OpenChunks) -> None:
        self._archive = Archive(folder, open_chunks)
        self.seen: dict[str, set[int]] = {patient: set() for patient in PATIENTS}
        self.reads = Progress()

    def read_until(self, commits: Progress) -> None:
        try:
            while not commits.over:
                for patient in PATIENTS:
                    self.read(patient, max(self.seen[patient], default=FIRST) + SILENT + OF_BATCH)
                self.reads.step()
        finally:
            self.reads.step(over=True)

    def read(self, patient: str, end: int) -> None:
        times, _ = self._archive.read(patient, BEGIN_US + FIRST * SECOND_US, BEGIN_US + end * SECOND_US)
        assert times.tolist() == sorted({*times.tolist()})
        seconds = {second_of(time) for time in times.tolist()}
        assert len(times) == HZ * len(seconds)
        assert seconds >= self.seen[patient]
        assert seconds <= SENT[patient]
        self.seen[patient] = seconds


class Readers:
    """Three threads: one just reads; of the other two one lets an epoch pass before it looks at the list, one after."""

    def __init__(self, folder: Path, scan: OpenChunks) -> None:
        self._commits = Progress()

        def after_a_commit(patient: str, signal: str) -> Iterable[Chunk]:
            self._commits.await_steps(1)
            return scan(patient, signal)

        def before_a_commit(patient: str, signal: str) -> Iterable[Chunk]:
            found = scan(patient, signal)
            self._commits.await_steps(1)
            return found

        self._plain, *others = [Reader(folder, looks) for looks in (scan, after_a_commit, before_a_commit)]
        self._readers = [self._plain, *others]
        self._pool = ThreadPoolExecutor(len(self._readers))
        self._running: list[Future[None]] = []

    @property
    def begun(self) -> bool:
        return bool(self._running)

    def committed(self) -> None:
        """The first time they begin; then at least one reads with what is committed now."""
        if not self.begun:
            self._running = [self._pool.submit(reader.read_until, self._commits) for reader in self._readers]
        self._commits.step()
        self.look()

    def look(self) -> None:
        """Returns when a read that began after this call has ended."""
        if self.begun:
            self._plain.reads.await_steps(2)

    def end(self) -> None:
        """Raises what a reader has found wrong."""
        self._commits.step(over=True)
        self._pool.shutdown()
        for running in self._running:
            running.result()


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.proxy, timeout=60) as client:
        yield client


def kept_twice(files: Path, scan: OpenChunks) -> bool:
    """Whether chunks are in the list and in files, as while a blob closes."""
    for patient in PATIENTS:
        still_open = {chunk.start_us for chunk in scan(patient, PULSE)}
        begin_us, end_us = BEGIN_US + FIRST * SECOND_US, BEGIN_US + END * SECOND_US
        filed = {chunk.start_us for chunk in stored_chunks(Folder(files), patient, PULSE, begin_us, end_us)}
        if still_open & filed:
            return True
    return False


def silent(stored: Sequence[Segment], begin: int, end: int) -> set[int]:
    found = gaps(stored, BEGIN_US + begin * SECOND_US, BEGIN_US + end * SECOND_US)
    return {second for gap in found for second in range(second_of(gap.start_us), second_of(gap.end_us))}


def test_a_wave_is_read_in_one_piece_while_its_blobs_close_and_its_gaps_by_one_range_query(
    spark: SparkSession,
    stream: Stream,
    run_query: RunQuery,
    service: Service,
    client: Client,
    application: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files, scan = tmp_path / "blobs", open_chunks_of(client, application)
    readers, closing = Readers(files, scan), []
    stage_all: Callable[..., list[PartitionReceipt]] = staging.stage_all

    def stage(staged: Sequence[StagedState], order: StageOrder) -> list[PartitionReceipt]:
        receipts = stage_all(staged, order)  # from here on there are the files, but the epoch isn't committed
        if readers.begun and kept_twice(files, scan):
            closing.append(order.stamp.epoch)
            readers.look()
        return receipts

    monkeypatch.setattr(staging, "stage_all", stage)
    processor = exposing(BLOB_US)
    sink = states(processor, service.config(application), str(files))

    def epoch(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)
        readers.committed()

    seconds = [[{"value": source.record(item).decode()} for item in items] for items in BY_SECOND]
    batches = [[*itertools.chain(*seconds[first : first + OF_BATCH])] for first in range(0, len(seconds), OF_BATCH)]
    try:
        with session_settings(spark, {"spark.sql.shuffle.partitions": "2"}):
            run_query(monitored(chunks(stream("value string", batches)), processor), "update", epoch)
    finally:
        readers.end()

    assert len(closing) >= 4
    assert not kept_twice(files, scan)
    at_the_end = Reader(files, scan)
    for patient in PATIENTS:
        at_the_end.read(patient, END)
        assert at_the_end.seen[patient] == SENT[patient]
        for begin, end in [(FIRST, END), (-20, 20), (0, 60), (-90, 0), (30, 31), (300, 400)]:
            begin_us, end_us = BEGIN_US + begin * SECOND_US, BEGIN_US + end * SECOND_US
            entries = client.scan(application, "segments", (patient, PULSE), start=first_key(begin_us), stop=end_us)
            stored = [Segment(entry.map_key, entry.value.end_us) for entry in entries]
            assert silent(stored, begin, end) == {*range(begin, end)} - SENT[patient]
