"""A sum over a savepoint, a changed job and a restart is the recount: nothing is lost, and nothing counted twice.

Before each restore the checkpoint that the savepoint was taken of is removed, and the savepoint is moved.
"""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from keyhole.cli.main import main
from keyhole.errors import KeyholeError, SavepointMismatch
from keyhole.model.read import Answer
from keyhole.spark import queryable
from keyhole.spark.running import ROCKSDB
from keyhole.spark.sink import Sink
from tests.support.micro_batches import session_settings
from tests.support.object_store import ObjectStore, reaching
from tests.support.scenario import Scenario, Scenarios
from tests.support.streams import Service, run_to_end
from tests.support.topics import make_topic
from tests.support.waiting import LONG_SECONDS

STATE, QUERY = "sums", "summing"


@pytest.fixture(scope="module", autouse=True)
def _settings(spark: SparkSession) -> Iterator[None]:
    # Each task costs what it costs to begin, however few its rows are.
    with session_settings(spark, {"spark.sql.shuffle.partitions": "2"}):
        yield


@dataclass
class Source:
    """A topic of events, summed as they are sent."""

    bootstrap_servers: str
    topic: str
    per_trigger: int
    sums: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        make_topic(self.bootstrap_servers, self.topic, 2)

    def send(self, events: int, seed: int) -> None:
        draw, producer = random.Random(seed), Producer({"bootstrap.servers": self.bootstrap_servers})
        for _ in range(events):
            key, value = f"key-{draw.randrange(30)}", draw.randrange(1000)
            producer.produce(self.topic, json.dumps({"k": key, "v": value}))
            self.sums[key] += value
        assert producer.flush(LONG_SECONDS) == 0

    def stream(self, spark: SparkSession) -> DataFrame:
        return (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap_servers)
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self.per_trigger)
            .load()
            .select(f.from_json(f.col("value").cast("string"), "k string, v bigint").alias("event"))
            .select("event.*")
        )


@dataclass(frozen=True)
class Job:
    """One of the two plans. Both sum; in the first it is Spark that remembers, in the second Keyhole."""

    plan: Callable[[DataFrame], DataFrame]
    sink: Callable[..., Sink]
    stateful: bool

    @contextmanager
    def running(
        self, events: DataFrame, checkpoint: str | Path, service: Service, application: str, **options: object
    ) -> Iterator[StreamingQuery]:
        sink = self.sink(config=service.config(application), **options)
        writer = self.plan(events).writeStream.queryName(QUERY).outputMode("update")
        query = writer.option("checkpointLocation", str(checkpoint)).foreachBatch(sink).start()
        try:
            yield query
        finally:
            query.stop()


def value(**options: object) -> Sink:
    return queryable.value(**({"state": STATE, "key": "k"} | options))  # type: ignore[arg-type]  # by their names


def reducing(**options: object) -> Sink:
    return queryable.reducing(**({"state": STATE, "key": "k", "reducers": {"v": "sum"}} | options))  # type: ignore[arg-type]


STATEFUL = Job(lambda events: events.groupBy("k").agg(f.sum("v").alias("v")), value, stateful=True)
STATELESS = Job(lambda events: events, reducing, stateful=False)


class Summing(StatefulProcessor):
    """Of each key the sum, which Spark remembers, with a schema whose place it notes."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._sum = handle.getValueState("sum", "v bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        from pyspark.sql import Row

        (before,) = self._sum.get() or (0,)
        after = before + sum(row.v for row in rows)
        self._sum.update((after,))
        yield Row(k=key[0], v=after)

    def close(self) -> None:
        pass


PROCESSOR = Job(
    lambda events: events.groupBy("k").transformWithState(Summing(), "k string, v bigint", "Update", "None"),
    value,
    stateful=True,
)
CHANGED = Job(lambda events: events.withColumn("n", f.lit(1)), reducing, stateful=False)


def savepoint(*arguments: str) -> tuple[int, str, str]:
    """`keyhole savepoint ...`: its exit code, and what it says."""
    said, complained = io.StringIO(), io.StringIO()
    with redirect_stdout(said), redirect_stderr(complained):
        code = main(["savepoint", *arguments])
    return code, said.getvalue(), complained.getvalue()


def done(*arguments: str) -> list[dict[str, Any]]:
    """The rows of one that is done."""
    code, said, complained = savepoint(*arguments, "--json")
    assert code == 0, complained
    return json.loads(said)  # type: ignore[no-any-return]  # rows


def counted_until(query: StreamingQuery, epoch: int) -> int:
    """How many events its epochs had by then; the first one is Spark's batch 0."""
    # What Spark says while it waits for a batch has the batch's number, too.
    *_, progress = [of for of in query.recentProgress if of.batchId == epoch - 1]
    return sum(sum(of.values()) for of in json.loads(progress.sources[0].endOffset).values())


PER_TRIGGER = 200
EVENTS = [300, 400, 200, 200]
"""Of which the second are being counted as the savepoint is taken; the others are counted by the changed job."""


@dataclass(frozen=True)
class Summed:
    """Sums over a savepoint, a changed job that goes on from it, and its restart.

    Attributes:
        saved: What is said of the savepoint. `path`: where it is.
        counted: How many events it has in its sums.
        restored: What is said of its restore, into the application `copy`.
        unsaved: The exit code and the words where no checkpoint of a stateful query was given.
        sums: What readers got, and what had been sent: of the first job, the changed one and its restart.
        last: What readers got at last, by key.
    """

    scenario: Scenario
    source: Source
    path: str
    copy: str
    saved: Mapping[str, Any]
    counted: int
    restored: Mapping[str, Any]
    unsaved: tuple[int, str, str] | None
    sums: Sequence[tuple[Mapping[str, int], Mapping[str, int]]]
    last: Mapping[str, Answer]


def summed(scenario: Scenario, job: Job, changed: Job, at: str = "", **options: Any) -> Summed:
    """Args:
    at: Where the savepoint and the checkpoints are; empty: in the scenario's directory.
    options: What the changed job declares otherwise, beside another name and other key groups.
    """
    service, application, directory = scenario.service, scenario.application, at or str(scenario.directory)
    source, sums = Source(service.bootstrap_servers, f"events-{application}", PER_TRIGGER), list[tuple[Any, Any]]()
    kafka = ["--bootstrap-servers", service.bootstrap_servers]
    path, copy = f"{directory}/savepoint", f"{application}-copy"

    def read(of: str, state: str) -> dict[str, Answer]:
        keys = list(source.sums)
        answers = dict(zip(keys, scenario.client.get_many(of, state, keys), strict=True))
        sums.append(({key: answer.value.v for key, answer in answers.items() if answer.found}, dict(source.sums)))
        return answers

    source.send(EVENTS[0], seed=1)
    with job.running(source.stream(scenario.spark), f"{directory}/old", service, application, key_groups=8) as query:
        query.processAllAvailable()
        source.send(EVENTS[1], seed=2)
        unsaved = savepoint("create", application, "--to", f"{path}-none", *kafka) if job.stateful else None
        given = ["--checkpoint", f"{QUERY}={directory}/old"] if job.stateful else []
        (saved,) = done("create", application, "--to", path, *given, *kafka)
        query.processAllAvailable()
        counted = counted_until(query, saved["epoch"])
    read(application, STATE)
    path = moved_away(directory, path)
    arguments = ["--application", copy, "--key-groups", f"{STATE}=12", "--rename", f"{STATE}=totals"]
    (restored,) = done("restore", path, *arguments, "--checkpoint", f"{QUERY}={directory}/new", *kafka)
    for seed, events in enumerate(EVENTS[2:], start=3):
        source.send(events, seed)
        declared = {"state": "totals", "key_groups": 12, **options}
        with changed.running(source.stream(scenario.spark), f"{directory}/new", service, copy, **declared) as query:
            query.processAllAvailable()
        last = read(copy, "totals")
    return Summed(scenario, source, path, copy, saved, counted, restored, unsaved, sums, last)


def moved_away(directory: str, savepoint: str) -> str:
    """Where the savepoint is from then on, when the checkpoint that it was taken of is no more."""
    files, root = fsspec.core.url_to_fs(directory)
    files.invalidate_cache()
    files.rm(f"{root}/old", recursive=True)
    # By file: to move a folder, fsspec asks an object store for what stands for folders there, too.
    for name in files.find(f"{root}/savepoint"):
        moved = f"{root}/moved" + name.removeprefix(f"{root}/savepoint")
        files.makedirs(moved.rpartition("/")[0], exist_ok=True)
        files.cp_file(name, moved)
    files.rm(f"{root}/savepoint", recursive=True)
    assert not files.exists(f"{root}/old")
    return savepoint.replace(f"{directory}/savepoint", f"{directory}/moved")


@pytest.fixture(scope="module")
def stateless(scenarios: Scenarios) -> Summed:
    return summed(scenarios(), STATELESS, CHANGED, reducers={"n": "sum", "v": "sum"}, defaults={"n": 1000})


@pytest.fixture(scope="module")
def in_an_object_store(scenarios: Scenarios, object_store: ObjectStore) -> Summed:
    scenario = scenarios()
    with reaching(object_store, scenario.spark):
        return summed(scenario, STATEFUL, STATEFUL, at=object_store.at(scenario.application))


@pytest.fixture(scope="module")
def processor(scenarios: Scenarios) -> Summed:
    scenario = scenarios()
    with session_settings(scenario.spark, ROCKSDB):
        return summed(scenario, PROCESSOR, PROCESSOR)


@pytest.fixture(scope="module", params=["stateless", "processor", "in_an_object_store"])
def either(request: pytest.FixtureRequest) -> Summed:
    """Of those with state, one has its checkpoint here, one elsewhere: files are saved, whatever Spark has in them."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]  # one of those above


def test_a_sum_over_a_savepoint_a_changed_job_and_a_restart_is_the_recount(either: Summed) -> None:
    for got, sent in either.sums:
        assert got == sent


def test_a_savepoint_in_an_object_store_has_sparks_checkpoint_and_nothing_lies_here(
    in_an_object_store: Summed, object_store: ObjectStore
) -> None:
    names = object_store.names(in_an_object_store.scenario.application)
    assert {"moved/manifest.json", f"moved/checkpoints/{QUERY}/metadata", "new/metadata"} <= set(names)
    assert [name for name in names if name.endswith(".tmp")] == []
    assert list(in_an_object_store.scenario.directory.iterdir()) == []


def test_a_restored_job_goes_on_with_the_epoch_after_the_savepoints(either: Summed) -> None:
    assert either.restored["next_epoch"] == either.saved["epoch"] + 1


def test_a_savepoint_goes_on_with_other_fields(stateless: Summed) -> None:
    """Sums that were kept under the old fields are read, and added to, under the new ones."""
    described = stateless.scenario.client.describe_state(stateless.copy, "totals")
    assert described.value.version == 2
    assert {key: answer.value.v for key, answer in stateless.last.items()} == stateless.source.sums
    # Of the keys that there were, which are all, the new field begins with its default.
    more = sum(EVENTS) - stateless.counted
    assert sum(answer.value.n for answer in stateless.last.values()) == 1000 * len(stateless.last) + more


def test_a_stateful_query_without_its_checkpoint_is_refused_by_name(processor: Summed) -> None:
    assert processor.unsaved is not None
    code, _, complained = processor.unsaved
    assert code == 1
    assert f"--checkpoint {QUERY}=" in complained


@dataclass(frozen=True)
class Undeclared:
    """A job that does not declare a state of its savepoint.

    Attributes:
        ended: What ended it, as Spark tells it.
        failure: The same, as the sink has it.
        others: The sums of the job that may drop it.
    """

    ended: str
    failure: KeyholeError | None
    others: Mapping[str, int]


@pytest.fixture(scope="module")
def undeclared(stateless: Summed) -> Undeclared:
    scenario, source = stateless.scenario, stateless.source
    service, copy, place = scenario.service, f"{stateless.copy}-of-others", scenario.directory / "others"
    arguments = ["--application", copy, "--checkpoint", f"{QUERY}={place}"]
    done("restore", stateless.path, *arguments, "--bootstrap-servers", service.bootstrap_servers)
    refused = reducing(state="others", config=service.config(copy))
    with pytest.raises(StreamingQueryException) as ended:
        run_to_end(source.stream(scenario.spark), "append", refused, place, QUERY)
    dropping = {"state": "others", "allow_dropped_states": True}
    with STATELESS.running(source.stream(scenario.spark), place, service, copy, **dropping) as query:
        query.processAllAvailable()
    answers = zip(source.sums, scenario.client.get_many(copy, "others", list(source.sums)), strict=True)
    others = {key: answer.value.v for key, answer in answers if answer.found}
    return Undeclared(str(ended.value), refused.failure, others)


def test_a_state_that_the_new_job_does_not_declare_is_refused_by_name(undeclared: Undeclared) -> None:
    assert STATE in undeclared.ended
    assert isinstance(undeclared.failure, SavepointMismatch)


def test_a_state_that_may_be_dropped_is_and_another_one_begins_with_the_events_after_the_savepoint(
    undeclared: Undeclared, stateless: Summed
) -> None:
    assert 0 < sum(undeclared.others.values()) < sum(stateless.source.sums.values())
