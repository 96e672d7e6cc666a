"""How a job makes its states queryable.

    from keyhole.spark import queryable

    df.writeStream.outputMode("update").queryName("max-temperature").option("checkpointLocation", "...").foreachBatch(
        queryable.value("max_temperature", key="sensor")
    ).start()

Each function here gives what `foreachBatch` takes; `together` makes one of several. Its `bootstrap` makes a table what
the states begin with. docs/spark-reference.md says what each output mode means, and docs/spark.md what the job
must keep to for exactly once.
`realtime` feeds a state within milliseconds, by Spark's real-time mode: it takes the place of `foreachBatch`.
`configure` gives settings to the builder of a session.

What all states take:
    key: The key column, or columns: string, binary, boolean, smallint, int, bigint, date or timestamp.
    key_groups: How many pieces the state can ever be split into, 1 to 65,536 (default 64); fixed for its life. Choose a
        multiple of `spark.sql.shuffle.partitions`, and a stream grouped by the key needs no second shuffle.
    standbys: On how many other state servers each key group has a copy, if there are as many: it answers when the owner
        is away, and takes over when the owner is lost. Default: 0.
    keep_epochs: How many epochs readers can ask for, with the last one (default 3, at most 100). Each keeps old pages.
    index: The field of the value, or fields, by which scans find rows in an index. Not of `exposed`.
    ttl: How long an entry lives after it was last written (timedelta); default: until it is deleted.
    ttl_clock: The time by which it lives: "processing_time" (default), or "event_time", the query's watermark.
    op: The column that says what a row does: "put" (also where it is null), "delete", and in maps and lists "clear"; in
        lists "append" and "replace" (where it is null, the list's `mode`). The other columns of a row that deletes are
        not looked at, but for the key's. Of all kinds but operator states, whose rows are the operator's own business.
    delete_when: The condition (SQL text or a Column) under which a row deletes, in place of `op`.
    codec: A ValueCodec (keyhole.spark.declaration.value_codec): it makes the value of a row's value columns, as bytes
        of your own. The value is then one binary field, `value`, which Keyhole passes on untouched. In value, map,
        list and broadcast states.
    defaults: By value column, what entries that were written before the column was added have in it (default: null).
        Of a column that isn't new it is passed over.

What value, map and broadcast states take with `order_by` (docs/kinds-reference.md):
    deletes: What rows that delete do: "by_order" (default) what a row of their order would; "always": delete.
    keep_deleted: How long a deletion by order is remembered (timedelta), by `ttl_clock`; default: 1 day.

What the query takes, whose states are given to it together:
    on_new_checkpoint: What to do where the checkpoint isn't the one that the states came from: "refuse" (default),
        "continue" (keep the states, add to them) or "reset" (empty them with the first batch). With either of these the
        query needs no checkpoint location.
    strict: Whether a batch that gives other rows when it is run again ends the query, or is only logged.
    allow_dropped_states: Whether states of a savepoint that the query was restored from, and that no sink declares, are
        dropped for good; else they are refused by name.
    on_commit: Is called with each epoch once it is complete, in order, in the driver, on the thread that Spark calls.
        What it raises ends the query. After a crash, or what it raised, the next run calls it again with the epoch of
        the batch that it runs again. It is never called with an epoch only where the checkpoint was replaced before.
    query: The query's stable name; default: Spark's `queryName`, else the first state's name. Each sink of one
        streaming query needs its own.
    config: Default: from `KEYHOLE_JOB_*`.
    observer: A StepObserver (keyhole.protocol.failpoints): is called at each step of an epoch, on the thread that takes
        it. For tests.

All raise InvalidConfiguration where an argument is wrong, and name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from pyspark.sql.types import StructType

from keyhole.model.state import StateKind
from keyhole.spark.broadcasting import BroadcastReader
from keyhole.spark.configuring import configure
from keyhole.spark.declaration.argument_types import Columns, columns
from keyhole.spark.exposed import ExposedList, ExposedMap, ExposedValue
from keyhole.spark.lookup import lookup
from keyhole.spark.operators import Mode, Operator, Subtask, Subtasks
from keyhole.spark.processor import QueryableProcessor
from keyhole.spark.reductions import Reduction, reduced_fields
from keyhole.spark.sink import OnRows, Sink
from keyhole.spark.worker.aggregating import Aggregator
from keyhole.spark.worker.stage import WriteRows
from keyhole.spark.worker.subtasks import SUBTASK
from keyhole.spark.write_path.builder import (
    QueryOptions,
    RankedOptions,
    StateOptions,
    build,
    query_sink,
    refuse_unknown,
)
from keyhole.spark.write_path.kind_arguments import (
    check_mode,
    check_none_deletes,
    check_none_places,
    check_sinks,
    check_subtasks,
    elements_kept,
)
from keyhole.spark.write_path.processor_sink import processor_sink
from keyhole.spark.write_path.real_time import realtime
from keyhole.spark.write_path.real_time_query import RealTimeQuery

__all__ = [
    "Aggregator",
    "BroadcastReader",
    "ExposedList",
    "ExposedMap",
    "ExposedValue",
    "Operator",
    "QueryableProcessor",
    "RealTimeQuery",
    "Subtask",
    "aggregating",
    "broadcast",
    "configure",
    "exposed",
    "list",
    "lookup",
    "map",
    "operator",
    "realtime",
    "reducing",
    "together",
    "value",
]

FOLLOWED_BY_ALL = 1 << 16
"""As many standbys as there can be servers."""


def value(
    state: str,
    *,
    key: Columns,
    value: Columns | None = None,
    order_by: str | None = None,
    **options: Unpack[RankedOptions],
) -> Sink:
    """A state with one value per key: the last row of each key.

        queryable.value("max_temperature", key="sensor", value="celsius", order_by="measured_at")

    Args:
        state: The name under which readers find it; unique in the application.
        key: The key column, or columns: see above, as for all `options`.
        value: The value column, or columns, in the order in which readers get them; default: all but the key's.
        order_by: The value column whose highest value wins, among the rows of a batch and against the stored value;
            added to the value if it isn't in it. Without it, two rows of one key in one batch are refused.

    Returns:
        What `foreachBatch` takes.
    """
    return build(StateKind.VALUE, state, options, key=columns(key), value=_tuple(value), order_by=order_by)


def map(  # noqa: A001 - the kind's name
    state: str,
    *,
    key: Columns,
    map_key: Columns,
    value: Columns | None = None,
    order_by: str | None = None,
    **options: Unpack[RankedOptions],
) -> Sink:
    """A state with one value per key and map key: the last row of each. The entries of a key are ordered by map key.

    Args:
        map_key: The column, or columns, of the types that a key can have: the start of a window, say.
        state, value, order_by: As for `value`.
    """
    return build(
        StateKind.MAP,
        state,
        options,
        key=columns(key),
        map_key=columns(map_key),
        value=_tuple(value),
        order_by=order_by,
    )


def list(  # noqa: A001 - the kind's name
    state: str,
    *,
    key: Columns,
    max_length: int | None = None,
    unbounded: bool = False,
    mode: str = "append",
    value: Columns | None = None,
    order_by: str | None = None,
    **options: Unpack[StateOptions],
) -> Sink:
    """A state with any number of elements per key, in the order in which they were appended.

    Args:
        max_length: The most elements of a key: the last ones are kept.
        unbounded: Lists may grow for ever. One of the two must be said.
        mode: What a row does that doesn't say it by `op`: "append", or "replace": a batch's rows of a key take the
            place of all that it had.
        order_by: The column by whose values the rows of one batch are appended; it needn't be a value. Without it they
            are in the order in which Spark hands them out, which may be another one when the batch is run again.
        state, value: As for `value`.
    """
    refuse_unknown("list", options, ("value", "max_length", "unbounded", "mode", "order_by"))
    kept = elements_kept(state, max_length, unbounded=unbounded)
    check_mode(state, mode, ("append", "replace"))
    return build(
        StateKind.LIST,
        state,
        options,
        key=columns(key),
        value=_tuple(value),
        order_by=order_by,
        max_length=kept,
        replaces=mode == "replace",
    )


def reducing(
    state: str,
    *,
    key: Columns,
    reducers: Mapping[str, Reduction | str],
    map_key: Columns = (),
    **options: Unpack[StateOptions],
) -> Sink:
    """A state with one value per key, into which each row of the stream is merged, once.

        from keyhole.spark.reductions import count, max, sum

        queryable.reducing(
            "spent", key="customer", reducers={"orders": count(), "spent": sum("amount"), "largest": max("amount")}
        )

    The stream brings what is new, not running results: it is not aggregated by Spark, or in append mode only. Complete
    mode, and update mode over a streaming aggregation, are refused at the first batch.

    Args:
        reducers: By field, in the order in which readers get them, what is made of which column, by the
            functions of keyhole.spark.reductions. A field that is called as its column may have the reducer's name
            alone, {"amount": "sum"}: "sum", "min", "max", "count" (of values that are not null), "any", "all", "first",
            "last", "min_by(field)" or "max_by(field)". keyhole.encoding.reducers says what each takes and gives.
        map_key: If given, there is one value per key and map key, as in `map`.
        state: As for `value`.
    """
    fields = reduced_fields(state, reducers, columns(key))
    return build(
        StateKind.REDUCING,
        state,
        options,
        key=columns(key),
        map_key=columns(map_key),
        value=fields.names,
        reducers=fields.reducers,
        columns=fields.columns,
    )


def aggregating(
    state: str,
    *,
    key: Columns,
    aggregator: Aggregator,
    result: str | StructType,
    value: Columns | None = None,
    order_by: str | None = None,
    **options: Unpack[StateOptions],
) -> Sink:
    """A state with one value per key: the result of a user's aggregation of all rows of the key, each counted once.

    The aggregator runs in Spark's tasks, on the accumulator that the key's owner holds; readers get its result. As for
    `reducing`, the stream brings what is new; but an aggregator may say that it takes running results.

    Args:
        aggregator: See keyhole.spark.worker.aggregating.Aggregator. Spark's workers must be able to import its
            class, or to unpickle it.
        result: The fields of the result, as Spark writes a schema: "count bigint, mean double".
        value: The columns of the rows that the aggregator gets; default: all but the key's.
        order_by: The column in whose order it gets the rows of a batch; without it they come in any order.
        state: As for `value`.
    """
    return build(
        StateKind.AGGREGATING,
        state,
        options,
        key=columns(key),
        value=_tuple(value),
        order_by=order_by,
        result=result,
        aggregator=aggregator,
    )


def broadcast(
    state: str,
    *,
    key: Columns,
    value: Columns | None = None,
    order_by: str | None = None,
    **options: Unpack[RankedOptions],
) -> Sink:
    """A state that every server has a copy of, and every job can read whole: rules, thresholds, small tables.

    Args:
        state, value, order_by: As for `value`. `key_groups` is 1, and `standbys` all servers.
    """
    check_none_places(state, options)
    options["key_groups"], options["standbys"] = 1, FOLLOWED_BY_ALL
    return build(StateKind.BROADCAST, state, options, key=columns(key), value=_tuple(value), order_by=order_by)


def operator(
    state: str,
    *,
    operator: Operator,
    result: str | StructType,
    mode: Mode = "list",
    subtasks: int | None = None,
    **options: Unpack[StateOptions],
) -> Sink:
    """A state that belongs to the subtasks of an operator, not to keys: readers ask by the subtask's number.

    Args:
        operator: See keyhole.spark.operators.Operator: what each subtask makes of its elements and its rows.
        result: The fields of what readers get of a subtask, as Spark writes a schema.
        mode: What becomes of the elements when the number of subtasks changes: "list" deals them out anew, "union"
            gives all of them to each.
        subtasks: How many there are, at most 10,000; default: as many as the batch has partitions. May change from run
            to run. One that is no more holds an empty list. A batch that is run again has as many as it had at first.
        state: As for `value`.
    """
    check_mode(state, mode, ("list", "union"))
    check_subtasks(state, subtasks)
    check_none_deletes(state, options)
    made = Subtasks(operator, mode, subtasks)
    return build(StateKind.AGGREGATING, state, options, key=(SUBTASK,), result=result, subtasks=made)


def exposed(
    processor: QueryableProcessor,
    *,
    rows: OnRows | None = None,
    write: WriteRows | None = None,
    **options: Unpack[StateOptions],
) -> Sink:
    """The exposed states of a queryable processor, each under its name, as one epoch per batch of its `transform`.

    Args:
        rows: Is called with the processor's own rows of each batch, and its id, once the batch's epoch is complete;
            again where a batch is run again.
        write: The same in the tasks, without another pass of the batch: is called in each with the own rows that it
            has, as Arrow batches, before the batch's epoch is complete. It must come to the same where it is called
            again with the same rows, also at the same time: Spark's tasks may be.
        options: Of all the states, and of the query; not `op`, `delete_when`, `codec` and `defaults`. A `ttl` is of
            those that have none of their own: by their ExposedValue and the like, or from the processor's `init`.

    Needs a Spark session, which knows how schemas are written.
    """
    return processor_sink(processor, rows, write, options)


def together(*sinks: Sink, **options: Unpack[QueryOptions]) -> Sink:
    """Several states that one query feeds: each batch is computed once, and becomes one epoch of all of them.

        queryable.together(
            queryable.map("impressions", key="tweet", map_key="hour"),
            queryable.value("top", key="hour").of(top_tweets),
        )

    A state server shows its readers the epoch of all of these states in one step.

    Args:
        sinks: Made by the functions here, without the options that concern the query. What is given to a state's `of`
            makes its rows of the batch's. The configuration is the first one's.
        options: Those of the query: see above.
    """
    own = "; a state's own are given to the state"
    refuse_unknown("together", options, known=QueryOptions.__annotations__, remedy=own)
    check_sinks(sinks)
    if sinks:
        options.setdefault("config", sinks[0].config)
    return query_sink([part for sink in sinks for part in sink.parts_alone()], options)


def _tuple(names: Columns | None) -> tuple[str, ...] | None:
    return None if names is None else columns(names)
