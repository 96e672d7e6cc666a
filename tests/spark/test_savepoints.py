"""A sum over a savepoint, a changed job and a restart is the recount: nothing is lost, and nothing counted twice."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from keyhole import Client
from keyhole.cli.main import main
from keyhole.errors import SavepointMismatch
from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka
from keyhole.spark import queryable
from keyhole.spark.sink import Sink
from tests.support.streams import Service, Stream, served

pytestmark = pytest.mark.integration

STATE, QUERY = "sums", "summing"
PER_TRIGGER = 60


@dataclass
class Source:
    """A topic of events, summed as they are sent."""

    bootstrap_servers: str
    topic: str
    sums: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        admin.create_topics([NewTopic(self.topic, 2, 1)])[self.topic].result(30)

    def send(self, events: int, seed: int) -> None:
        draw, producer = random.Random(seed), Producer({"bootstrap.servers": self.bootstrap_servers})
        for _ in range(events):
            key, value = f"key-{draw.randrange(30)}", draw.randrange(1000)
            producer.produce(self.topic, json.dumps({"k": key, "v": value}))
            self.sums[key] += value
        assert producer.flush(30) == 0

    def stream(self, spark: SparkSession) -> DataFrame:
        return (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap_servers)
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", PER_TRIGGER)
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
        self, events: DataFrame, checkpoint: Path, service: Service, application: str, **options: object
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


def sums(service: Service, application: str, keys: Sequence[str], state: str = STATE) -> dict[str, int]:
    with Client(service.proxy, timeout=10) as client:
        answers = client.get_many(application, state, keys)
    return {key: answer.value.v for key, answer in zip(keys, answers, strict=True) if answer.found}


@pytest.fixture
def source(service: Service, application: str) -> Source:
    return Source(service.bootstrap_servers, f"events-{application}")


def keyhole(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    """`keyhole savepoint ...`; its rows."""
    code = main(["savepoint", *arguments, "--json"])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    return json.loads(shown.out)  # type: ignore[no-any-return]  # rows


def test_a_savepoint_goes_on_with_other_fields(
    spark: SparkSession,
    service: Service,
    source: Source,
    application: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Sums that were kept under the old fields are read, and added to, under the new ones."""
    kafka = ["--bootstrap-servers", service.bootstrap_servers]
    path, copy = str(tmp_path / "savepoint"), f"{application}-copy"
    source.send(200, seed=1)
    with STATELESS.running(source.stream(spark), tmp_path / "old", service, application) as query:
        query.processAllAvailable()
        before = source.sums.copy()
        keyhole(capsys, "create", application, "--to", path, *kafka)
    arguments = ["--application", copy, "--key-groups", f"{STATE}=12", "--checkpoint", f"{QUERY}={tmp_path / 'new'}"]
    keyhole(capsys, "restore", path, *arguments, *kafka)
    source.send(200, seed=2)
    changed = Job(lambda events: events.withColumn("n", f.lit(1)), reducing, stateful=False)
    options = {"reducers": {"n": "sum", "v": "sum"}, "defaults": {"n": 1000}, "key_groups": 12}
    with changed.running(source.stream(spark), tmp_path / "new", service, copy, **options) as query:
        query.processAllAvailable()
    with Client(service.proxy, timeout=10) as client:
        answers = client.get_many(copy, STATE, list(source.sums))
        assert client.describe_state(copy, STATE).value.version == 2
    assert {key: answer.value.v for key, answer in zip(source.sums, answers, strict=True)} == source.sums
    # Of the keys that there were, the new field begins with its default.
    begun = sum(key in before for key in source.sums)
    assert sum(answer.value.n for answer in answers) == 1000 * begun + 200


@pytest.mark.parametrize("job", [pytest.param(STATEFUL, id="stateful"), pytest.param(STATELESS, id="stateless")])
def test_a_sum_over_a_savepoint_a_changed_job_and_a_restart_is_the_recount(
    spark: SparkSession,
    service: Service,
    source: Source,
    application: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    job: Job,
) -> None:
    kafka = ["--bootstrap-servers", service.bootstrap_servers]
    path, copy = str(tmp_path / "savepoint"), f"{application}-copy"
    source.send(300, seed=1)
    with job.running(source.stream(spark), tmp_path / "old", service, application, key_groups=8) as query:
        query.processAllAvailable()
        source.send(400, seed=2)  # the savepoint is taken while these are being counted
        given = ["--checkpoint", f"{QUERY}={tmp_path / 'old'}"] if job.stateful else []
        (saved,) = keyhole(capsys, "create", application, "--to", path, *given, *kafka)
        query.processAllAvailable()
    assert sums(service, application, list(source.sums)) == source.sums

    arguments = ["--application", copy, "--key-groups", f"{STATE}=12", "--rename", f"{STATE}=totals"]
    (restored,) = keyhole(capsys, "restore", path, *arguments, "--checkpoint", f"{QUERY}={tmp_path / 'new'}", *kafka)
    assert restored["next_epoch"] == int(str(saved["epoch"])) + 1
    for seed in (3, 4):  # the changed job, and its restart
        source.send(200, seed)
        changed = {"state": "totals", "key_groups": 12}
        with job.running(source.stream(spark), tmp_path / "new", service, copy, **changed) as query:
            query.processAllAvailable()
        assert sums(service, copy, list(source.sums), "totals") == source.sums


def test_once_kafka_is_lost_with_all_that_it_held_the_job_goes_on_from_a_savepoint_in_an_empty_one(
    spark: SparkSession,
    stream: Stream,
    jars: list[Path],
    java: Java,
    application: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its source are files, which outlive Kafka: what came after the savepoint is read once more."""
    draw, directory, savepoint = random.Random(1), tmp_path / "service", str(tmp_path / "savepoint")
    batches = [[{"k": f"key-{draw.randrange(30)}", "v": draw.randrange(1000)} for _ in range(50)] for _ in range(6)]

    def feed(until: int, checkpoint: Path, service: Service) -> None:
        with STATELESS.running(stream("k string, v bigint", batches[:until]), checkpoint, service, application) as job:
            job.processAllAvailable()
        wanted = Counter[str]()
        for row in (row for batch in batches[:until] for row in batch):
            wanted[row["k"]] += row["v"]
        assert sums(service, application, list(wanted)) == wanted

    lost = LocalKafka(tmp_path / "lost", jars, java)
    with lost, served(lost.bootstrap_servers, directory) as service:
        feed(3, tmp_path / "old", service)
        kafka = ["--bootstrap-servers", lost.bootstrap_servers]
        given = ["--checkpoint", f"{QUERY}={tmp_path / 'old'}"]
        (saved,) = keyhole(capsys, "create", application, "--to", savepoint, *given, *kafka)
        feed(5, tmp_path / "old", service)
        lost.kill()
    shutil.rmtree(tmp_path / "lost")
    shutil.rmtree(tmp_path / "old")

    with LocalKafka(tmp_path / "empty", jars, java) as empty:
        kafka = ["--bootstrap-servers", empty.bootstrap_servers]
        assert not AdminClient({"bootstrap.servers": empty.bootstrap_servers}).list_topics(timeout=30).topics
        given = ["--checkpoint", f"{QUERY}={tmp_path / 'new'}"]
        (restored,) = keyhole(capsys, "restore", savepoint, *given, *kafka)
        assert restored["next_epoch"] == int(str(saved["epoch"])) + 1 == 4
        # Where the stores are that the server of the lost one has filled.
        with served(empty.bootstrap_servers, directory) as service:
            feed(6, tmp_path / "new", service)


def test_a_stateful_query_without_its_checkpoint_is_refused_by_name(
    spark: SparkSession,
    service: Service,
    source: Source,
    application: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source.send(100, seed=1)
    with STATEFUL.running(source.stream(spark), tmp_path / "old", service, application, key_groups=8) as query:
        query.processAllAvailable()
    arguments = ["--to", str(tmp_path / "savepoint"), "--bootstrap-servers", service.bootstrap_servers]
    assert main(["savepoint", "create", application, *arguments]) == 1
    assert f"--checkpoint {QUERY}=" in capsys.readouterr().err


def test_a_state_that_the_new_job_does_not_declare_is_refused_by_name_unless_it_may_be_dropped(
    spark: SparkSession,
    service: Service,
    source: Source,
    application: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kafka = ["--bootstrap-servers", service.bootstrap_servers]
    path, copy, place = str(tmp_path / "savepoint"), f"{application}-copy", tmp_path / "new"
    source.send(100, seed=1)
    with STATELESS.running(source.stream(spark), tmp_path / "old", service, application) as query:
        query.processAllAvailable()
    keyhole(capsys, "create", application, "--to", path, *kafka)
    keyhole(capsys, "restore", path, "--application", copy, "--checkpoint", f"{QUERY}={place}", *kafka)
    source.send(100, seed=2)
    with ExitStack() as stack:
        refused = reducing(state="others", config=service.config(copy))
        writer = source.stream(spark).writeStream.queryName(QUERY).option("checkpointLocation", str(place))
        query = writer.outputMode("append").foreachBatch(refused).start()
        stack.callback(query.stop)
        with pytest.raises(Exception, match=STATE):
            query.processAllAvailable()
    assert isinstance(refused.failure, SavepointMismatch)
    dropping = {"state": "others", "allow_dropped_states": True}
    with STATELESS.running(source.stream(spark), place, service, copy, **dropping) as query:
        query.processAllAvailable()
    assert sum(sums(service, copy, list(source.sums), "others").values()) < sum(source.sums.values())
