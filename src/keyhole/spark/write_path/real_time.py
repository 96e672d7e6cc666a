"""Starts a query in Spark's real-time mode that feeds a state: rows are readable milliseconds after their record.

    refuse what can't be       the plan, the state, Kafka's options, too few cores: before anybody is disturbed
    take the state over        FeedRun: updates topic, rules, owners
    mark the checkpoint        where its rows go, before its first batch
    start the query            updates of each branch, united, to Kafka
    boundaries                 after each batch that Spark has committed

Each step can be taken again: a start that dies after any of them is followed by one that does the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everyone who writes PySpark calls it
from pyspark.sql import types as spark
from pyspark.sql.streaming.query import StreamingQuery

from keyhole.changelog.base import TopicRight
from keyhole.changelog.kafka.brokers import java_settings
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.changelog.kafka.record_topics import await_topic
from keyhole.changelog.kafka.rights import check_rights
from keyhole.changelog.settings import updates_topic_name
from keyhole.clock import Clock, SystemClock
from keyhole.config import JobConfig
from keyhole.coordinator.feed_run import FeedRun
from keyhole.coordinator.stats import stats_of
from keyhole.errors import ChangelogRecreated, InvalidConfiguration, ValueMismatch
from keyhole.feed.earlier_sources import check_earlier
from keyhole.feed.kafka.source import KafkaSource
from keyhole.feed.kafka.updates_topic import KafkaUpdates
from keyhole.feed.positions import SourceDescription
from keyhole.feed.unread_records import check_unread
from keyhole.model.names import checked_name
from keyhole.model.state import StateDescriptor
from keyhole.protocol.fed_sources import StateOnRecord, source_of_branch, unrecorded
from keyhole.spark.declaration.batch_columns import case_sensitive
from keyhole.spark.declaration.declared import Declaration
from keyhole.spark.declaration.schema import describe
from keyhole.spark.driver.data_frames import quoted
from keyhole.spark.driver.executors import addresses_of
from keyhole.spark.driver.progress_listener import follow_progress
from keyhole.spark.driver.query_tasks import QueryTasks
from keyhole.spark.driver.real_time_log import CheckpointMark, CheckpointMarks, SparkLog
from keyhole.spark.driver.real_time_plan import check_real_time
from keyhole.spark.driver.real_time_session import check_session, check_slots, check_sub
from keyhole.spark.driver.real_time_source import OFFSET, PARTITION, RealTimeSource, slots_of, source_of
from keyhole.spark.exposed import PREFIX
from keyhole.spark.sink import Sink
from keyhole.spark.write_path.batch_boundaries import CommittedBatch, ends_before, last_batch, write_boundaries
from keyhole.spark.write_path.real_time_query import RealTimeQuery
from keyhole.spark.write_path.real_time_state import kafka_options, most_bytes, real_time_part, row_actions
from keyhole.spark.write_path.real_time_topics import QueryTopic, TopicsWatch, look
from keyhole.spark.write_path.update_records import update_columns, within

DEFAULT_BATCH = "1 minute"
"""How often Spark's offsets are logged: what was read since is read again after a crash. No latency depends on it."""

_ASK_SECONDS = 10.0
_MOST_SOURCE = 64
_REPEAT_SECONDS = 600.0
_DELETES = f"{PREFIX}deletes"
_NEW_CHECKPOINT = "start the query with a new checkpoint, which reads the new one from its start"
_NEW_STATE = "what was sent is gone with it. Drop the state, and feed it from the start by a new checkpoint"

_running: list[tuple[RealTimeQuery, int]] = []
"""The real-time queries of this process, and how many tasks each has as long as it runs."""


class _Branch(NamedTuple):
    """Rows of one source.

    Attributes:
        name: Under which they stand in updates.
        topic_id, partitions: Of its topic.
    """

    rows: DataFrame
    source: RealTimeSource
    name: str
    topic_id: str
    partitions: int


def realtime(
    rows: DataFrame | Mapping[str, DataFrame],
    state: Sink,
    *,
    checkpoint: str,
    sub: str | None = None,
    batch: str = DEFAULT_BATCH,
    options: Mapping[str, str] | None = None,
    from_earliest: bool = False,
) -> RealTimeQuery:
    """Starts a query whose rows are readable milliseconds after their record came into Kafka; each counts once.

        rows = spark.readStream.format("kafka")...load().selectExpr("partition", "offset", "string(key) AS customer",
            "double(string(value)) AS amount")
        spent = queryable.reducing("spent", key="customer", reducers={"amount": "sum"})
        query = queryable.realtime(rows, spent, checkpoint="/checkpoints/spent")
        query.awaitTermination()

    Rows are made by SQL alone: projections, filters, explode, joins with broadcast tables. All else is refused by its
    name, with what to use instead.

    Args:
        rows: Of a Kafka source that subscribes to one topic, with its `partition` and `offset`, unchanged: they are not
            part of the value unless it names them. Of several sources: the rows of each, by a name of its own.
        state: Made by value, map, list, reducing or broadcast, with no option of the query but `query` and `config`.
        checkpoint: Spark's location. Made again with the same rows, the query goes on from it.
        sub: SQL, a whole number from 0: which of the rows that came of one record each is. Needed where there may be
            several: after an explode, use posexplode's `pos`.
        batch: How often Spark logs its offsets, as Spark writes an interval.
        options: Settings of Kafka's producer, each with `kafka.` before its name.
        from_earliest: With a new checkpoint: go on with the earliest records there are, though some were deleted before
            they were read.

    Returns:
        The running query. Owners have all key groups, and apply what comes.

    Raises:
        Unsupported: Spark's real-time mode can't do it; the message names what, and what to use instead.
        InvalidConfiguration: An argument is wrong. Or Spark has fewer cores than the topics have partitions. Or Kafka
            doesn't let it read one.
        KeyMismatch, ValueMismatch: The columns don't fit the state.
        CheckpointMismatch, ChangelogRecreated: The checkpoint is of another query, or a topic was made anew. Or the
            checkpoint is new, and records were deleted before they were read.
        StateConflict: One of the topics feeds the state under another name, or by `keyhole feed`.
        KeyholeError: As FeedRun.start. Nothing has been sent.
    """
    part = real_time_part(state)
    declaration, config = part.declaration, state.config
    query = checked_name("query", state.query or declaration.state, "choose another one with query=")
    given = rows if isinstance(rows, Mapping) else {query: rows}
    if not given:
        raise InvalidConfiguration("no rows are given; give at least those of one source")
    if not checkpoint:
        raise InvalidConfiguration("no checkpoint is given: Spark would not know where to go on")
    sink_options = kafka_options(options or {}, java_settings(config.bootstrap_servers))
    branches = _branches(given, sub, config.bootstrap_servers)
    first = branches[0].rows
    session = first.sparkSession
    partitions = [(branch.source.topic, branch.partitions) for branch in branches]
    _running[:] = [(other, count) for other, count in _running if other.isActive]
    check_slots(slots_of(session.sparkContext), partitions, _tasks_beside(None))
    check_session(session, query, batch)
    declared = _described(declaration, config.application, query, branches)
    updates_of = functools.partial(_updates, declaration=declaration, sub=sub or "0")
    # Once for its refusals: `delete_when` may be no condition on these rows.
    for branch in branches:
        updates_of(branch, declared)
    sources = {branch.name: branch.source.topic for branch in branches}
    names = tuple(sources)
    marks = CheckpointMarks(session, checkpoint)
    begins = not marks.check(names)
    addresses = addresses_of(session.sparkContext, config.servers)
    stats, clock = stats_of(config), SystemClock()
    changelog = KafkaChangelog(config.bootstrap_servers, config.application)
    run = FeedRun(config, query, changelog, clock, addresses=addresses, counts=stats.counts.query(query))
    started = None
    try:

        def admit(known: Mapping[str, StateOnRecord]) -> None:
            recorded = known.get(declaration.state)
            goes_on = marks.check(names, "" if recorded is None else recorded.descriptor.updates_topic_id)
            if recorded is not None:
                _check_earlier(config, recorded, sources, goes_on=goes_on)
                if begins and not from_earliest:
                    _check_unread(config, recorded, branches)

        run.start({declared: declaration.standbys}, sources=sources, admit=admit)
        descriptor = run.descriptors[declaration.state]
        marks.settle(CheckpointMark(names, descriptor.updates_topic_id))
        united = functools.reduce(DataFrame.union, [updates_of(branch, descriptor) for branch in branches])
        topic = updates_topic_name(config.application, descriptor.state)
        with closing(KafkaUpdates(config.bootstrap_servers, topic)) as updates:
            united = united.selectExpr(*within(most_bytes(sink_options, updates.most_bytes)))
            before = ends_before(updates, sources)
            if begins:
                # What is gone by now is not missed later, and what goes from now on is.
                starts = CommittedBatch(0, [_source_now(branch).starts for branch in branches]).at_least(before)
                write_boundaries(updates, descriptor.updates_topic_id, sources, starts, clock)
        writer = united.writeStream.format("kafka").outputMode("update").queryName(query)
        writer = writer.options(**sink_options, topic=topic)
        writer = writer.option("checkpointLocation", checkpoint)
        started = writer.trigger(realTime=batch).start()  # type: ignore[call-overload]  # PySpark's types lack it
        if stats.served:
            follow_progress(started._jsq.streamingQuery(), str(started.runId), stats.counts.spark(query))
        log = SparkLog(session, started)
        boundaries = _Boundaries(log, started, config, descriptor, branches, before, clock)
        tasks = QueryTasks(session.sparkContext, started)
    except BaseException:
        if started is not None:
            with suppress(Exception):
                started.stop()
        run.close()
        raise
    made = RealTimeQuery(started, run, boundaries, tasks, clock)
    _running.append((made, sum(count for _, count in partitions)))
    return made


def _tasks_beside(query: StreamingQuery | None) -> int:
    """Of the other real-time queries of the process, as they were started: where one gets more, that one lacks them."""
    return sum(count for other, count in [*_running] if other.isActive and other.query is not query)


def _branches(given: Mapping[str, DataFrame], sub: str | None, known: str) -> list[_Branch]:
    found: list[_Branch] = []
    for name, rows in given.items():
        checked_name("the name of rows", name, "choose another one")
        check_real_time(rows)
        source = source_of(rows, sub, known)
        if any(source.relation.equals(other.source.relation) for other in found):
            raise InvalidConfiguration(
                f"the rows {name!r} come from the same source as others: load the topic once for each of them"
            )
        # One that was just made may not be known to all brokers.
        await_topic(source.bootstrap_servers, source.topic, _ASK_SECONDS)
        topic = look(source.bootstrap_servers, source.topic)
        if topic is None:
            raise InvalidConfiguration(
                f"Kafka at {source.bootstrap_servers} has no topic {source.topic}: make it first", topic=source.topic
            )
        # Where Spark comes as another user, only Spark can find out.
        if source.as_keyhole:
            check_rights(source.bootstrap_servers, {source.topic: TopicRight.READ}, _ASK_SECONDS)
        full = source_of_branch(topic.topic_id, name)
        if len(full) > _MOST_SOURCE:
            raise InvalidConfiguration(
                f"the name {name!r} of rows is too long: it and the topic's id have {_MOST_SOURCE - 1} characters at "
                'most. Give the rows by a shorter one: {"web": rows}'
            )
        found.append(_Branch(rows, source, full, topic.topic_id, topic.partitions))
    return found


def _check_earlier(config: JobConfig, recorded: StateOnRecord, sources: Mapping[str, str], *, goes_on: bool) -> None:
    """Refuses topics that have fed the state otherwise, where only its updates topic says so. Nobody is disturbed."""
    of, new = recorded.descriptor, unrecorded(recorded.sources, sources)
    if not new:
        return
    with closing(KafkaUpdates(config.bootstrap_servers, updates_topic_name(of.application, of.state))) as updates:
        known = check_earlier(updates, of.state, new)
    # What the checkpoint's query has sent, this one has.
    if not (known or recorded.sources or goes_on):
        raise ChangelogRecreated(
            f"how the topics of state {of.state!r} were fed is not known: an earlier release has recorded it, and its "
            "updates topic has lost its first records. Start the query with the checkpoint that it had; or feed them "
            "from the start into a state of another name",
            state=of.state,
        )


def _check_unread(config: JobConfig, recorded: StateOnRecord, branches: list[_Branch]) -> None:
    """Refuses a new checkpoint where records of a source that has fed the state were deleted unread."""
    of = recorded.descriptor
    known = {branch.name: _source_now(branch) for branch in branches if branch.name in recorded.sources}
    if known:
        with closing(KafkaUpdates(config.bootstrap_servers, updates_topic_name(of.application, of.state))) as updates:
            check_unread(updates, known)


def _source_now(branch: _Branch) -> SourceDescription:
    with closing(KafkaSource(branch.source.bootstrap_servers, branch.source.topic)) as source:
        return source.describe()


def _described(declaration: Declaration, application: str, query: str, branches: list[_Branch]) -> StateDescriptor:
    """Of all rows: a field may be null if it is in the rows of one branch."""
    found = [
        describe(
            declaration,
            application,
            query,
            _own_columns(declaration, branch.rows.schema),
            functools.partial(case_sensitive, branch.rows),
        )
        for branch in branches
    ]
    fields = [of.value.fields for of in found]
    merged = tuple(
        msgspec.structs.replace(same[0], nullable=any(field.nullable for field in same))
        for same in zip(*fields, strict=False)
    )
    made = [
        msgspec.structs.replace(of, value=msgspec.structs.replace(of.value, fields=merged))
        for of, own in zip(found, fields, strict=True)
        if [(field.name, field.type) for field in own] == [(field.name, field.type) for field in merged]
    ]
    if len(made) < len(found) or any(of != made[0] for of in made):
        raise ValueMismatch(
            f"state {declaration.state!r}: the rows that are given have columns of other names or types each: select "
            "the same ones, cast to the same types",
            state=declaration.state,
        )
    return made[0]


def _own_columns(declaration: Declaration, schema: spark.StructType) -> spark.StructType:
    """Without what only numbers the rows, where the state does not name it."""
    values = declaration.columns or declaration.value or ()
    named = {*declaration.key, *declaration.map_key, *values, declaration.order_by, declaration.op}
    return spark.StructType([field for field in schema if field.name not in {PARTITION, OFFSET} - named])


def _updates(branch: _Branch, descriptor: StateDescriptor, *, declaration: Declaration, sub: str) -> DataFrame:
    rows, actions = branch.rows, row_actions(declaration)
    condition = declaration.delete_when
    try:
        check_sub(rows, sub)
        if condition is not None:
            deletes = F.expr(condition) if isinstance(condition, str) else condition
            rows = rows.withColumn(_DELETES, deletes.cast("boolean"))
            check_real_time(rows)
            actions = actions._replace(delete_when=_DELETES)
        columns = update_columns(
            descriptor,
            branch.name,
            partition=quoted(PARTITION),
            offset=quoted(OFFSET),
            sub=f"coalesce({sub}, 0)",
            column=declaration.column,
            **actions._asdict(),
        )
        return rows.selectExpr(*columns)
    except AnalysisException as error:
        raise InvalidConfiguration(
            f"state {declaration.state!r}: delete_when or sub is nothing that can be said of the rows' columns "
            f"({', '.join(branch.rows.columns)}): {error}",
            state=declaration.state,
        ) from error


class _Boundaries:
    """Call it: writes the boundary of the last committed batch, where that is due. One thread.

    Spark's logs, which may be far away, are read only once a batch has ended.

    Args:
        before: As ends_before gave it at the start.
    """

    def __init__(
        self,
        log: SparkLog,
        query: StreamingQuery,
        config: JobConfig,
        descriptor: StateDescriptor,
        branches: list[_Branch],
        before: Sequence[Mapping[int, int]],
        clock: Clock,
    ) -> None:
        self._log = log
        self._before = before
        self._progress: Callable[[], Any] = query._jsq.lastProgress
        self._bootstrap_servers = config.bootstrap_servers
        self._topic = updates_topic_name(config.application, descriptor.state)
        self._updates_id = descriptor.updates_topic_id
        self._branches = branches
        self._clock = clock
        topics = [
            QueryTopic(of.source.bootstrap_servers, of.source.topic, of.topic_id, _NEW_CHECKPOINT, is_read=True)
            for of in branches
        ]
        topics.append(QueryTopic(config.bootstrap_servers, self._topic, self._updates_id, _NEW_STATE))
        context = branches[0].rows.sparkSession.sparkContext
        self._watch = TopicsWatch(
            topics, clock, lambda read: check_slots(slots_of(context), read, _tasks_beside(query))
        )
        self._looked = False
        self._written = -1
        self._written_at = 0.0

    def __call__(self) -> None:
        self._watch.pass_by()
        progress = self._progress()
        ended = -1 if progress is None else int(progress.batchId())
        old = self._written >= 0 and self._clock.monotonic() - self._written_at >= _REPEAT_SECONDS
        # The first time: the driver before may have died between a commit and its boundary.
        if self._looked and ended <= self._written and not old:
            return
        batch = last_batch(self._log, [branch.source.topic for branch in self._branches])
        if batch is not None and (old or batch.batch > self._written):
            self._watch()
            with closing(KafkaUpdates(self._bootstrap_servers, self._topic)) as updates:
                sources = {branch.name: branch.source.topic for branch in self._branches}
                write_boundaries(updates, self._updates_id, sources, batch.at_least(self._before), self._clock)
            self._written, self._written_at = batch.batch, self._clock.monotonic()
        self._looked = True
