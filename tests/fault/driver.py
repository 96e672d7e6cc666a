"""`python -m tests.fault.driver`: a driver without Spark, for many epochs a minute.

The coordinator and the staging are the real ones. FAULT_DRIVER, JSON, see Settings; KEYHOLE_JOB_* as any job; and where
they are set, FAULT_WATERMARK_STANDS: the watermark does; FAULT_LINGER_SECONDS: the process stays for so long once
an epoch has failed. It keeps its checkpoint as Spark does: a batch is done when its file is there, and a driver that
starts anew runs the batch after the last such file, or again.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import grpc
import msgspec
import pyarrow as pa

from keyhole import logs
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.clock import Clock
from keyhole.config import job_config
from keyhole.coordinator.coordinator import Coordinator
from keyhole.coordinator.stats import stats_of
from keyhole.coordinator.task_stream import stage_partition
from keyhole.encoding.columnar import encode
from keyhole.errors import KeyholeError
from keyhole.model.state import StateDescriptor, StateKind
from keyhole.protocol.epochs import EpochBatch, StatePlan
from keyhole.protocol.failpoints import Step
from keyhole.protocol.receipts import PartitionReceipt, StageOrder
from keyhole.rpc.channels import sync_channel
from keyhole.spark.worker.aggregating import Aggregation, aggregated
from keyhole.testing.kill_points import KillPoints
from tests.fault import hooks
from tests.fault.chain import Chain
from tests.fault.history import Dealt, Ended, EpochStep, Pinned
from tests.fault.states import AMOUNTS, descriptors, rows_of
from tests.fault.workload import Batch, Workload, watermark_ms

QUERY = "main"
_PARTITIONS = 2
_IDLE_SECONDS = 0.1
_KEPT = 50
FOLLOWED_BY_ALL = 1 << 16

_log = logging.getLogger(__name__)


class Settings(msgspec.Struct, frozen=True):
    """What the harness tells a driver.

    Attributes:
        directory: Holds `checkpoint/`, `steps` (EpochSteps, one JSON a line), and `pause`: as long as it is there, no
            further batch begins, and `paused` holds the process id of the driver that waits.
        pace_seconds: The pause between two batches, at the most; it is random.
        standbys: Copies per key group, beside the owner; a broadcast state has one on every server.
        executors: With Spark: how many processes run the tasks; 0: the driver's own.
        proxy: With Spark: where it reads its own broadcast state.
        subtasks: With Spark: how many its operators are to have.
        waits: Without Spark: by batch, how many seconds pass before it.
    """

    seed: int
    states: tuple[str, ...]
    directory: str
    pace_seconds: float = 0.2
    standbys: int = 0
    executors: int = 0
    proxy: str = ""
    subtasks: int = 1
    waits: Mapping[int, float] = msgspec.field(default_factory=dict)


class Checkpoint:
    """One file per batch that is done, named by its number, as Spark's commit log."""

    def __init__(self, directory: Path) -> None:
        self._commits = directory / "commits"
        self._commits.mkdir(parents=True, exist_ok=True)
        identity = directory / "id"
        if not identity.exists():
            (directory / "id.new").write_text(uuid.uuid4().hex)
            (directory / "id.new").rename(identity)
        self.id = identity.read_text()

    def next(self) -> int:
        return 1 + max((int(file.name) for file in self._commits.iterdir()), default=-1)

    def done(self, batch: int) -> None:
        (self._commits / str(batch)).touch()
        (self._commits / str(batch - _KEPT)).unlink(missing_ok=True)


class Recorder:
    """A StepObserver that appends what the driver reaches to a file, and then may end it there."""

    def __init__(self, file: Path, states: tuple[str, ...], clock: Clock, kill_points: KillPoints) -> None:
        self._file = file.open("ab", buffering=0)
        self._states = states
        self._clock = clock
        self._kill_points = kill_points

    def reached(self, step: Step, epoch: int) -> None:
        """See StepObserver."""
        if step in (Step.DRIVER_BEFORE_STAGE, Step.DRIVER_BEFORE_COMMIT, Step.DRIVER_COMPLETE):
            self.record(EpochStep(time.monotonic(), self._clock.now_ms(), step, epoch, os.getpid(), self._states))
        self._kill_points.reached(step, epoch)

    def record(self, event: EpochStep | Pinned | Dealt | Ended) -> None:
        self._file.write(msgspec.json.encode(event) + b"\n")


class Stager:
    """What Spark's tasks do: each partition to the owners of its key groups."""

    def __init__(self, connect: Callable[[str], grpc.Channel]) -> None:
        self._connect = connect
        self._attempts = itertools.count(random.randrange(1 << 40))

    def stage(self, plans: Sequence[StateDescriptor], batch: Batch, order: StageOrder) -> list[PartitionReceipt]:
        """One round, one task after the other."""
        return [
            stage_partition(
                order,
                of.state,
                partition,
                next(self._attempts),
                self._staged(order, of.state, batch, partition),
                self._connect,
            )
            for of in plans
            for partition in range(_PARTITIONS)
        ]

    def _staged(self, order: StageOrder, state: str, batch: Batch, partition: int) -> Iterator[pa.RecordBatch]:
        """As keyhole.spark.worker.stage, which can't be imported without Spark's own modules."""
        of = order.descriptors[state]
        changes = batch.of(state)
        rows = [rows_of(of, changes, partition, _PARTITIONS)] if changes else []
        if of.kind is StateKind.AGGREGATING:
            yield from aggregated(order, of, Aggregation(Chain(), AMOUNTS), rows, self._connect)
        else:
            yield from (encode(some, of) for some in rows if some.num_rows)


def wait_out_pause(directory: Path) -> None:
    """Blocks while no further batch is to begin."""
    while (directory / "pause").exists():
        (directory / "paused").write_text(str(os.getpid()))
        time.sleep(_IDLE_SECONDS)


def run(settings: Settings, recorder: Recorder, clock: Clock) -> None:
    """Runs until it is killed, or an epoch fails."""
    config = job_config()
    directory = Path(settings.directory)
    workload = Workload(settings.seed)
    plans = [of for of in descriptors(config.application, QUERY) if of.state in settings.states]
    stager = Stager(functools.lru_cache(sync_channel))
    changelog = KafkaChangelog(config.bootstrap_servers, config.application)
    counts = stats_of(config).counts.query(QUERY)
    coordinator = Coordinator(config, QUERY, changelog, clock, observer=recorder, counts=counts)
    checkpoint = Checkpoint(directory / "checkpoint")
    first = number = checkpoint.next()

    def watermark_of(batch: int) -> int:
        return watermark_ms(first if "FAULT_WATERMARK_STANDS" in os.environ else batch)

    while True:
        wait_out_pause(directory)
        time.sleep(settings.waits.get(number, 0.0))
        batch = workload.batch(number)
        result = coordinator.run_epoch(
            EpochBatch(
                spark_query_id=checkpoint.id,
                batch_id=number,
                offsets_hash=number,
                watermark_ms=watermark_of(number),
                next_watermark_ms=functools.partial(watermark_of, number + 1),
                states=tuple(StatePlan(of, standbys=_standbys(of, settings)) for of in plans),
                partitions=_PARTITIONS,
                stage=functools.partial(stager.stage, plans, batch),
            )
        )
        assert result.epoch == number + 1, f"batch {number} became epoch {result.epoch}"
        checkpoint.done(number)
        number += 1
        time.sleep(random.uniform(0, settings.pace_seconds))


def _standbys(of: StateDescriptor, settings: Settings) -> int:
    return FOLLOWED_BY_ALL if of.kind is StateKind.BROADCAST else settings.standbys


def main() -> int:
    """Returns the exit code; the last line of `steps` says why it ended."""
    settings = msgspec.json.decode(os.environ["FAULT_DRIVER"], type=Settings)
    logs.configure("INFO")
    clock = hooks.clock()
    kill_points = KillPoints.from_environ(os.environ)
    recorder = Recorder(Path(settings.directory) / "steps", settings.states, clock, kill_points)
    try:
        run(settings, recorder, clock)
    except KeyholeError as error:
        recorder.record(Ended(time.monotonic(), f"driver {os.getpid()}", type(error).reason, error.message))
        # As a job does that has other queries.
        time.sleep(float(os.environ.get("FAULT_LINGER_SECONDS", 0)))
    except BaseException as error:
        recorder.record(Ended(time.monotonic(), f"driver {os.getpid()}", "INTERNAL", repr(error)))
        raise
    # Threads that wait for servers that don't answer must not keep a driver that has ended alive.
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
