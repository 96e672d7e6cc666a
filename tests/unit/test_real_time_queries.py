"""What a real-time query can't do with a state is refused by name; one that runs ends together with its feed run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from keyhole.clock import SystemClock
from keyhole.config import JobConfig
from keyhole.errors import (
    ChangelogRecreated,
    CheckpointMismatch,
    Fenced,
    InvalidConfiguration,
    KafkaUnreachable,
    KeyholeError,
    StateConflict,
    Unsupported,
)
from keyhole.protocol.fed_sources import StateOnRecord
from keyhole.protocol.updates import BoundaryRecord, encode
from keyhole.spark import queryable
from keyhole.spark.driver import real_time_log
from keyhole.spark.driver.real_time_log import CheckpointMark, CheckpointMarks, check_mark
from keyhole.spark.driver.real_time_session import check_slots
from keyhole.spark.sink import Sink
from keyhole.spark.write_path import real_time
from keyhole.spark.write_path.real_time_query import RealTimeQuery, kafka_away, not_computed
from keyhole.spark.write_path.real_time_state import RowActions, kafka_options, most_bytes, real_time_part, row_actions
from keyhole.spark.write_path.real_time_topics import LACK_SECONDS, LOOK_SECONDS, FoundTopic, QueryTopic, TopicsWatch
from keyhole.testing.clock import ManualClock
from tests.support.states import descriptor
from tests.support.waiting import LONG_SECONDS

CONFIG = JobConfig("app", ("a:1",), "")


class Mean(queryable.Aggregator):
    def create(self) -> Any:
        return 0

    def add(self, accumulator: Any, row: Any) -> Any:
        return accumulator

    def merge(self, left: Any, right: Any) -> Any:
        return left

    def result(self, accumulator: Any) -> Any:
        return accumulator


class Upper:
    def encode(self, row: Any) -> bytes:
        return b""


def value(**options: Any) -> Sink:
    return queryable.value("s", key="k", **{"config": CONFIG} | options)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "aggregator": (
        lambda: queryable.aggregating("s", key="k", aggregator=Mean(), result="n bigint", config=CONFIG),
        "no aggregator in Python: use queryable.reducing",
    ),
    "codec": (lambda: value(codec=Upper()), "no codec: use the columns as they are"),
    "event time": (
        lambda: value(ttl=timedelta(hours=1), ttl_clock="event_time"),
        "no watermark, so no ttl by event time: use ttl_clock='processing_time'",
    ),
    "together": (lambda: queryable.together(value()), ""),
    "of": (lambda: value().of(lambda rows: rows), "no rows made of a batch"),
    "replace": (
        lambda: queryable.list("s", key="k", unbounded=True, mode="replace", config=CONFIG),
        "no batch whose rows replace a list",
    ),
    "sorted": (
        lambda: queryable.list("s", key="k", unbounded=True, order_by="t", config=CONFIG),
        "no batch whose rows order_by sorts",
    ),
    "option": (lambda: value(on_commit=print), "no option on_commit"),
    "two": (
        lambda: queryable.together(value(), queryable.value("t", key="k", config=CONFIG)),
        "'s', 't': .* no several states .* a real-time query for each",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_real_time_mode_can_not_do_with_a_state_is_refused_by_its_name(case: tuple[Any, str]) -> None:
    made, message = case
    if not message:
        assert real_time_part(made()).declaration.state == "s"
        return
    with pytest.raises(Unsupported, match=message):
        real_time_part(made())


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        (
            "[STREAM_FAILED] Query [id = 1] ended: [CAST_INVALID_INPUT] It is 'x'. SQLSTATE: 22018\n== SQL == XXKST",
            "CAST_INVALID_INPUT",
        ),
        ("Job aborted: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012", "DIVIDE_BY_ZERO"),
        ("[STREAM_FAILED] Query terminated: No offset, it was reset. SQLSTATE: XXKST", None),
        ("[UNSUPPORTED_FEATURE.X] No. SQLSTATE: 0A000", None),
    ],
)
def test_a_query_that_ended_at_a_record_says_so_and_not_what_is_in_it(text: str, condition: str | None) -> None:
    error = not_computed(text)
    assert (error and error.facts["condition"]) == condition
    assert error is None or (f"({condition})" in error.message and "'x'" not in error.message)


@pytest.mark.parametrize(
    ("cause", "away"),
    [
        (
            "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment",
            "TimeoutException",
        ),
        ("org.apache.kafka.common.errors.DisconnectException: null", "DisconnectException"),
        ("org.apache.kafka.common.errors.TopicAuthorizationException: no", None),
        ("java.util.concurrent.TimeoutException: of something else", None),
    ],
)
def test_a_query_that_ended_as_kafka_was_away_says_that_the_next_start_goes_on(cause: str, away: str | None) -> None:
    error = kafka_away(f"[STREAM_FAILED] Query [id = a, runId = b] terminated with exception.\nCaused by: {cause}")
    assert (error is None) is (away is None)
    assert error is None or (f"({away})" in error.message and "the checkpoint that it has" in error.message)


def test_a_function_for_foreachbatch_is_no_state() -> None:
    with pytest.raises(InvalidConfiguration, match="not a builtin_function_or_method: a function for foreachBatch"):
        real_time_part(print)


def test_a_column_says_what_a_row_does() -> None:
    assert row_actions(value().parts[0].declaration) == RowActions()
    assert row_actions(value(op="op").parts[0].declaration) == RowActions(
        "`op` IN ('delete', 'clear')", "false", "`op` NOT IN ('put', 'delete', 'clear')"
    )
    mapped = queryable.map("s", key="k", map_key="m", op="op", config=CONFIG)
    assert row_actions(mapped.parts[0].declaration)[:2] == ("`op` = 'delete'", "`op` = 'clear'")
    by_entry = queryable.reducing("s", key="k", map_key="m", reducers={"n": "sum"}, op="op", config=CONFIG)
    assert row_actions(by_entry.parts[0].declaration)[:2] == ("`op` = 'delete'", "`op` = 'clear'")
    listed = queryable.list("s", key="k", unbounded=True, op="op", config=CONFIG)
    assert "'replace'" not in row_actions(listed.parts[0].declaration).refuse_when


@pytest.mark.parametrize(
    ("option", "given", "message"),
    [
        ("kafka.acks", "1", "is 1, and must be all"),
        ("Kafka.Acks", "0", "is 0, and must be all"),
        ("kafka.enable.idempotence", "false", "must be true"),
        ("kafka.delivery.timeout.ms", "120000", "must be 2147483647: else a row may stand ahead of older ones"),
        ("kafka.max.block.ms", "60000", "must be 2147483647: else the query ends where Kafka is away"),
        ("kafka.transactional.id", "t", "can't be chosen"),
        ("kafka.max.request.size", "1000", "is 1000, and must be bytes, 1048576 or more"),
        ("kafka.buffer.memory", "much", "is much, and must be bytes"),
        ("topic", "t", "can't be chosen"),
    ],
)
def test_an_option_that_would_lose_rows_is_refused(option: str, given: str, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        kafka_options({option: given}, {})


def test_the_sink_waits_for_all_copies_and_for_nothing_else() -> None:
    made = kafka_options({"kafka.acks": "-1", "kafka.linger.ms": "5"}, {"bootstrap.servers": "a:1"})
    assert made["kafka.bootstrap.servers"] == "a:1"
    assert (made["kafka.acks"], made["kafka.enable.idempotence"], made["kafka.linger.ms"]) == ("all", "true", "5")
    assert made["kafka.delivery.timeout.ms"] == made["kafka.max.block.ms"] == "2147483647"


def test_no_update_is_larger_than_its_topic_takes_and_its_producer_and_what_is_around_it_has_room() -> None:
    topic, around = 16 << 20, 64 << 10
    assert most_bytes(kafka_options({}, {}), topic) == topic - around
    assert most_bytes(kafka_options({}, {}), 100 << 20) == (17 << 20) - around
    assert most_bytes(kafka_options({"Kafka.Max.Request.Size": "2000000"}, {}), topic) == 2_000_000 - around
    assert most_bytes(kafka_options({"kafka.buffer.memory": "3000000"}, {}), topic) == 3_000_000 - around


MARK = CheckpointMark(("id.s",), "updates-1")


@pytest.mark.parametrize(
    ("mark", "sources", "updates_id", "error", "message"),
    [
        (None, ["id.s"], None, CheckpointMismatch, "is another query's"),
        (MARK, ["other.s"], None, ChangelogRecreated, "a topic was made anew"),
        (MARK, ["id.s"], "updates-2", ChangelogRecreated, "an updates topic that is gone"),
    ],
)
def test_a_checkpoint_whose_rows_went_elsewhere_is_refused(
    mark: CheckpointMark | None, sources: list[str], updates_id: str | None, error: type[KeyholeError], message: str
) -> None:
    with pytest.raises(error, match=message):
        check_mark(True, mark, sources, updates_id)
    # Nothing was read so far: all is sent from where the query begins now.
    check_mark(False, mark, sources, updates_id)


@pytest.mark.parametrize(
    ("log", "recorded", "goes_on", "error", "message"),
    [
        (["id.s"], (), False, None, ""),
        (["other.s"], (), False, ChangelogRecreated, "how the topics of state 's' were fed is not known"),
        # Its checkpoint has sent all that it had.
        (["other.s"], (), True, None, ""),
        # All that has fed it is on record, and this topic has not.
        (["other.s"], ("other.s",), False, None, ""),
        (["id"], (), True, StateConflict, "already, by keyhole feed: by a real-time query, as the rows 's' each"),
        (["id"], ("id.s",), False, None, ""),
    ],
)
def test_what_an_earlier_release_has_fed_a_topic_by_is_looked_for_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
    log: list[str],
    recorded: tuple[str, ...],
    goes_on: bool,
    error: type[KeyholeError] | None,
    message: str,
) -> None:
    class Log:
        """KafkaUpdates of a topic that has lost its first records."""

        def __init__(self, bootstrap_servers: str, topic: str) -> None:
            assert topic == "keyhole.app.s.updates"

        def bounds(self, partition: int) -> tuple[int, int]:
            return 5, 5 + len(log)

        def read(self, partition: int, start: int, end: int) -> list[bytes]:
            return [encode(BoundaryRecord(source, 0, {})) for source in log]

        def close(self) -> None:
            pass

    monkeypatch.setattr(real_time, "KafkaUpdates", Log)
    of = StateOnRecord(descriptor(state="s"), recorded)
    with contextlib.nullcontext() if error is None else pytest.raises(error, match=message):
        real_time._check_earlier(CONFIG, of, {"id.s": "orders"}, goes_on=goes_on)


def test_a_checkpoint_whose_rows_are_where_they_were_goes_on() -> None:
    check_mark(True, MARK, ["id.s"], None)
    check_mark(True, MARK, ["id.s"], "updates-1")


class Files:
    """CheckpointFiles of one folder, in memory."""

    def __init__(self, **files: bytes) -> None:
        self.files = files

    def names(self) -> list[str]:
        return [*self.files]

    def read(self, name: str) -> bytes | None:
        return self.files.get(name)

    def delete(self, name: str) -> None:
        self.files.pop(name, None)

    def create(self, name: str, content: bytes) -> None:
        self.files[name] = content


@pytest.mark.parametrize("updates_id", ["updates-2", ""])
def test_a_checkpoint_is_looked_at_with_the_updates_topic_that_is_on_record_before_anybody_is_fenced(
    monkeypatch: pytest.MonkeyPatch, updates_id: str
) -> None:
    """That its rows went elsewhere was seen only once the state was taken from a query that was well."""
    folders = {"commits": Files(), "sources": Files(**{"0": b""}), "keyhole": Files(updates=msgspec.json.encode(MARK))}
    monkeypatch.setattr(real_time_log, "checkpoint_files", lambda _, place: folders[place.rpartition("/")[2]])
    marks = CheckpointMarks(cast("SparkSession", None), "/checkpoint/")
    # No batch is committed: all rows are sent again.
    marks.check(MARK.sources, updates_id)
    folders["commits"].files["0"] = b""
    marks.check(MARK.sources, MARK.updates_id)
    with pytest.raises(ChangelogRecreated, match=f"its id was updates-1, and there is {updates_id or 'none'} now"):
        marks.check(MARK.sources, updates_id)
    with pytest.raises(ChangelogRecreated):
        marks.settle(CheckpointMark(MARK.sources, updates_id))


class Quick(SystemClock):
    """Of whose seconds a thousand pass in one."""

    def monotonic(self) -> float:
        return super().monotonic() * 1000

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds / 1000)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(min(seconds, 0.001))


class Beside:
    """Spark's query, and the run: whatever the test makes of them."""

    def __init__(self) -> None:
        self.isActive = True
        self.fenced: Fenced | None = None
        self.lost: KafkaUnreachable | None = None
        self.closed = threading.Event()
        self.looks = 0
        self.error: Exception | None = None
        self.closing: Exception | None = None
        self.looked = threading.Event()

    def stop(self) -> None:
        self.isActive = False

    def awaitTermination(self, timeout: int | None = None) -> bool:  # noqa: N802 - Spark's name
        return True

    def fenced_by(self) -> Fenced | None:
        return self.fenced

    def close(self) -> None:
        self.closed.set()
        if self.closing is not None:
            raise self.closing

    def tasks(self) -> int:
        return 0

    def look(self) -> None:
        self.looks += 1
        if self.looks > 3:
            self.looked.set()
        if self.error is not None:
            raise self.error


def test_a_run_that_was_replaced_stops_its_query_with_the_reason() -> None:
    beside = Beside()
    query = RealTimeQuery(beside, beside, beside.look, beside.tasks, Quick())
    assert query.isActive
    beside.fenced = Fenced("taken over")
    with pytest.raises(Fenced, match="taken over"):
        query.awaitTermination(LONG_SECONDS)
    assert not beside.isActive
    assert beside.closed.is_set()
    assert query.failure is beside.fenced


def test_a_run_that_can_not_know_what_is_on_record_stops_its_query() -> None:
    beside = Beside()
    query = RealTimeQuery(beside, beside, beside.look, beside.tasks, Quick())
    beside.lost = KafkaUnreachable("start it again")
    with pytest.raises(KafkaUnreachable, match="start it again"):
        query.awaitTermination(LONG_SECONDS)
    assert not beside.isActive
    assert beside.closed.is_set()


def test_a_topic_that_was_made_anew_stops_the_query_and_kafka_that_is_away_does_not() -> None:
    beside = Beside()
    beside.error = KafkaUnreachable("away")
    query = RealTimeQuery(beside, beside, beside.look, beside.tasks, Quick())
    assert beside.looked.wait(LONG_SECONDS)
    assert query.isActive
    beside.error = ChangelogRecreated("anew")
    with pytest.raises(ChangelogRecreated, match="anew"):
        query.awaitTermination(LONG_SECONDS)
    assert not beside.isActive


@pytest.mark.parametrize("by_spark", [True, False])
def test_the_run_is_closed_when_the_query_ends(by_spark: bool) -> None:
    beside = Beside()
    query = RealTimeQuery(beside, beside, beside.look, beside.tasks, Quick())
    if by_spark:
        beside.stop()
    else:
        query.stop()
    assert query.awaitTermination(LONG_SECONDS)
    assert beside.closed.is_set()
    assert query.failure is None


def test_what_fails_in_spark_while_it_looks_leaves_no_query_without_its_run(caplog: pytest.LogCaptureFixture) -> None:
    beside = Beside()
    beside.error = PySparkException("the log can't be read")
    query = RealTimeQuery(beside, beside, beside.look, beside.tasks, Quick())
    assert beside.looked.wait(LONG_SECONDS)
    assert query.isActive
    assert not beside.closed.is_set()
    # Once, and not twice a second.
    assert [record.msg for record in caplog.records] == ["no boundary is written: it is tried again"]
    query.stop()
    assert query.failure is None
    assert beside.closed.is_set()


def test_a_query_has_ended_once_its_tasks_have() -> None:
    class Slow(Beside):
        left = 3

        def tasks(self) -> int:
            assert not self.closed.is_set(), "the run is held as long as rows are sent"
            self.left = max(0, self.left - 1)
            return self.left

    beside = Slow()
    RealTimeQuery(beside, beside, beside.look, beside.tasks, SystemClock()).stop()
    assert beside.left == 0
    assert beside.closed.is_set()


def test_nobody_waits_for_ever_for_tasks(caplog: pytest.LogCaptureFixture) -> None:
    beside = Beside()
    query = RealTimeQuery(beside, beside, beside.look, lambda: 2, Quick())
    query.stop()
    assert query.awaitTermination(LONG_SECONDS)
    assert [record.msg for record in caplog.records] == [
        "tasks of an ended query still run: what they send counts once"
    ]


def test_nobody_waits_for_ever_for_a_run_that_does_not_end_in_order() -> None:
    beside = Beside()
    beside.closing = OSError("no answer")
    query = RealTimeQuery(beside, beside, beside.look, beside.tasks, Quick())
    query.stop()
    assert query.awaitTermination(LONG_SECONDS)


def test_a_query_that_spark_can_not_stop_is_told_once_its_run_has_ended() -> None:
    class Stuck(Beside):
        def stop(self) -> None:
            raise PySparkException("it does not stop")

    beside = Stuck()
    query = RealTimeQuery(beside, beside, beside.look, beside.tasks, Quick())
    with pytest.raises(PySparkException, match="does not stop"):
        query.stop()
    assert beside.closed.is_set()
    assert not query.isActive


TOPICS = [
    QueryTopic("a:1", "orders", "id-1", "a new checkpoint", is_read=True),
    QueryTopic("a:1", "updates", "id-2", "a new state"),
]


def plenty(read: Sequence[tuple[str, int]]) -> None:
    """Spark has a core for each partition."""


def test_a_topic_that_is_made_anew_is_noticed_in_mid_batch() -> None:
    clock, found = ManualClock(), {"orders": FoundTopic("id-1", 1), "updates": FoundTopic("id-2", 2)}
    looks: list[str] = []

    def look(_: str, name: str) -> FoundTopic | None:
        looks.append(name)
        return found[name]

    watch = TopicsWatch(TOPICS, clock, plenty, look)
    watch.pass_by()
    assert not looks
    clock.advance(LOOK_SECONDS)
    watch.pass_by()
    watch.pass_by()
    assert looks == ["orders", "updates"]
    found["orders"] = FoundTopic("id-3", 1)
    clock.advance(LOOK_SECONDS)
    with pytest.raises(ChangelogRecreated, match=r"orders was deleted .* is id-3, it was id-1\): a new checkpoint"):
        watch.pass_by()


def test_a_topic_is_gone_once_two_looks_in_turn_say_so() -> None:
    found: dict[str, FoundTopic | None] = {"orders": FoundTopic("id-1", 1), "updates": None}
    watch = TopicsWatch(TOPICS, ManualClock(), plenty, lambda _, name: found[name])
    with pytest.raises(KafkaUnreachable, match="has not heard of topic updates"):
        watch()
    found["updates"] = FoundTopic("id-2", 2)
    watch()
    found["updates"] = None
    with pytest.raises(KafkaUnreachable):
        watch()
    with pytest.raises(ChangelogRecreated, match="updates does not exist any more: a new state"):
        watch()


def test_partitions_that_no_core_is_left_for_stop_the_query_once_it_is_no_moment_any_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, slots = ManualClock(), 2
    found = {"orders": FoundTopic("id-1", 2), "updates": FoundTopic("id-2", 64)}
    watch = TopicsWatch(TOPICS, clock, lambda read: check_slots(slots, read, 0), lambda _, name: found[name])

    def look_for(seconds: float) -> None:
        for _ in range(int(seconds / LOOK_SECONDS)):
            clock.advance(LOOK_SECONDS)
            watch.pass_by()

    look_for(2 * LACK_SECONDS)
    # An executor is lost, and replaced.
    slots = 1
    look_for(LACK_SECONDS)
    slots = 2
    look_for(LACK_SECONDS)
    assert [record.msg for record in caplog.records] == ["some partitions of a real-time query are not read"]
    # The source has more partitions for good.
    found["orders"] = FoundTopic("id-1", 3)
    look_for(LACK_SECONDS)
    clock.advance(LOOK_SECONDS)
    with pytest.raises(InvalidConfiguration, match=r"orders has 3.* 2 cores .* local\[3\], or give the executors 3"):
        watch.pass_by()
    assert len(caplog.records) == 2


def test_too_few_cores_stop_a_query_with_the_reason() -> None:
    beside = Beside()
    query = RealTimeQuery(beside, beside, beside.look, beside.tasks, Quick())
    beside.error = InvalidConfiguration("too few cores")
    with pytest.raises(InvalidConfiguration, match="too few cores"):
        query.awaitTermination(LONG_SECONDS)
    assert not beside.isActive


def test_a_query_needs_a_core_for_each_partition_beside_those_of_other_real_time_queries() -> None:
    check_slots(4, [("orders", 2)], 2)
    with pytest.raises(InvalidConfiguration, match=r"\(orders has 2, visits has 1\).* have 2: .* local\[5\]"):
        check_slots(4, [("orders", 2), ("visits", 1)], 2)
