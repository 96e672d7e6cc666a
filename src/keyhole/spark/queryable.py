"""How a job makes its states queryable.

    from keyhole.spark import queryable

    df.writeStream.outputMode("update").queryName("max-temperature").foreachBatch(
        queryable.value("max_temperature", key="sensor")
    ).start()

docs/spark.md tells what each output mode means, and what the job must keep to for exactly once.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from keyhole.changelog.kafka import KafkaChangelog
from keyhole.clock import SystemClock
from keyhole.config import JobConfig, job_config
from keyhole.coordinator.coordinator import Coordinator
from keyhole.coordinator.decisions import OnNewCheckpoint
from keyhole.errors import InvalidConfiguration
from keyhole.reducers import problems
from keyhole.spark.executors import ServerAddresses
from keyhole.spark.schema import Declaration
from keyhole.spark.sink import Addresses, OnCommit, Sink, checked_name
from keyhole.steps import StepObserver

MAX_KEY_GROUPS = 65_536
_RESERVED_STATES = ("control",)  # its changelog would be the application's control topic


def value(
    state: str,
    *,
    key: str | Sequence[str],
    key_groups: int = 64,
    value: Sequence[str] | None = None,
    order_by: str | None = None,
    on_new_checkpoint: OnNewCheckpoint = "refuse",
    standbys: int = 0,
    strict: bool = False,
    allow_dropped_states: bool = False,
    on_commit: OnCommit | None = None,
    query: str | None = None,
    config: JobConfig | None = None,
    observer: StepObserver | None = None,
) -> Sink:
    """A state with one value per key: the last row of each key. Returns the function for `foreachBatch`.

    Args:
        state: The name under which readers find it; unique in the application.
        key: The key column, or columns: string, binary, boolean, smallint, int, bigint, date or timestamp.
        key_groups: How many pieces the state can ever be split into, 1 to 65,536; fixed for its life. Choose a multiple
            of `spark.sql.shuffle.partitions`, and a stream grouped by the key needs no second shuffle.
        value: The value columns, in the order in which readers get them; default: all but the key's.
        order_by: The value column whose highest value wins, among the rows of a batch and against the stored value;
            added to the value if it isn't in it. Without it, two rows of one key in one batch are refused.
        on_new_checkpoint: What to do where the checkpoint isn't the one that the state came from: "refuse", "continue"
            (keep the state, add to it) or "reset" (empty it with the first batch).
        standbys: On how many other state servers each key group has a copy, if there are as many: it answers when the
            owner is away, and takes over when the owner is lost.
        strict: Whether a batch that gives other rows when it is run again ends the query, or is only logged.
        allow_dropped_states: Whether states of a savepoint that the query was restored from, and that no sink declares,
            are dropped for good; else they are refused by name.
        on_commit: Is called with each epoch once it is complete, in order, in the driver, on the thread that Spark
            calls; again where a batch is run again. What it raises ends the query.
        query: The query's stable name; default: Spark's `queryName`, else the state's name. Each sink of one streaming
            query needs its own.
        config: Default: from `KEYHOLE_JOB_*`.
        observer: Is told the steps of each epoch, on the thread that takes them.

    Raises:
        InvalidConfiguration: An argument is wrong; it names which.
    """
    values = None if value is None else tuple(value)
    declaration = Declaration(state, _columns(key), key_groups, values, order_by, standbys=standbys)
    return _sink(
        declaration, query, config, _Options(on_new_checkpoint, strict, allow_dropped_states, observer), on_commit
    )


def reducing(
    state: str,
    *,
    key: str | Sequence[str],
    reducers: Mapping[str, str],
    key_groups: int = 64,
    on_new_checkpoint: OnNewCheckpoint = "refuse",
    standbys: int = 0,
    strict: bool = False,
    allow_dropped_states: bool = False,
    on_commit: OnCommit | None = None,
    query: str | None = None,
    config: JobConfig | None = None,
    observer: StepObserver | None = None,
) -> Sink:
    """A state with one value per key, into which each row of the stream is merged, once. Returns the function for
    `foreachBatch`.

        queryable.reducing("spent", key="customer", reducers={"amount": "sum", "order_id": "count"})

    The stream brings what is new, not running results: it is not aggregated by Spark, or in append mode only. Complete
    mode, and update mode over a streaming aggregation, are refused at the first batch.

    Args:
        reducers: By value column, in the order in which readers get them, how its values are merged: "sum", "min",
            "max", "count" (of values that are not null), "any", "all", "first", "last", "min_by(column)" or
            "max_by(column)". keyhole.reducers says what each takes and gives.
        state, key, key_groups, on_new_checkpoint, standbys, strict, allow_dropped_states, on_commit, query, config,
            observer: As for `value`.

    Raises:
        InvalidConfiguration: An argument is wrong; it names which.
    """
    if not isinstance(reducers, Mapping) or not reducers:
        raise InvalidConfiguration(
            f'state {state!r}: reducers says by column how its values are merged, as {{"amount": "sum"}}; '
            "name at least one",
            state=state,
        )
    fields, names = tuple(reducers), tuple(reducers.values())
    declaration = Declaration(state, _columns(key), key_groups, fields, None, reducers=names, standbys=standbys)
    return _sink(
        declaration, query, config, _Options(on_new_checkpoint, strict, allow_dropped_states, observer), on_commit
    )


@dataclass(frozen=True)
class _Options:
    """What a sink passes on to the coordinator of each of its runs."""

    on_new_checkpoint: OnNewCheckpoint
    strict: bool
    allow_dropped_states: bool
    observer: StepObserver | None


def _columns(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def _sink(
    declaration: Declaration, query: str | None, config: JobConfig | None, options: _Options, on_commit: OnCommit | None
) -> Sink:
    if config is None:
        config = job_config()
    checked_name("the application's name", config.application, "set KEYHOLE_JOB_APPLICATION to another one")
    checked_name("the state's name", declaration.state, "choose another one")
    if query is not None:
        checked_name("query", query, "choose another one")
    for problem in _problems(declaration, options.on_new_checkpoint):
        raise InvalidConfiguration(f"state {declaration.state!r}: {problem}", state=declaration.state)
    ServerAddresses(config.servers, list)  # refuses wrong ones here, before a query is started

    def make(config: JobConfig, query: str, addresses: Addresses) -> Coordinator:
        changelog = KafkaChangelog(config.bootstrap_servers, config.application)
        return Coordinator(
            config,
            query,
            changelog,
            SystemClock(),
            on_new_checkpoint=options.on_new_checkpoint,
            strict=options.strict,
            observer=options.observer,
            addresses=addresses,
            allow_dropped_states=options.allow_dropped_states,
        )

    return Sink(declaration, query, config, make, on_commit)


def _problems(of: Declaration, on_new_checkpoint: str) -> Iterator[str]:
    key, key_groups, value = of.key, of.key_groups, of.value
    if of.state in _RESERVED_STATES:
        yield "the name is reserved; choose another one"
    if not key or not all(key):
        yield "key is empty; name the column, or the columns, that the state is looked up by"
    if len(set(key)) < len(key):
        yield f"key names a column twice ({', '.join(key)})"
    if type(key_groups) is not int or not 1 <= key_groups <= MAX_KEY_GROUPS:
        yield f"key_groups is {key_groups!r}; it must be a whole number from 1 to {MAX_KEY_GROUPS}"
    if type(of.standbys) is not int or of.standbys < 0:
        yield f"standbys is {of.standbys!r}; it must be a whole number, 0 or more"
    if value is not None and not value:
        yield "value is empty; name at least one column, or leave it out to take all but the key's"
    if value is not None and len(set(value)) < len(value):
        yield f"value names a column twice ({', '.join(value)})"
    twice = sorted(set(key) & {*(value or ()), *((of.order_by,) if of.order_by is not None else ())})
    if twice:
        names = ", ".join(twice)
        yield f"{names} is part of the key, which every reader knows; leave it out of value, reducers and order_by"
    yield from problems(dict(zip(value or (), of.reducers, strict=False)))
    choices = typing.get_args(OnNewCheckpoint)
    if on_new_checkpoint not in choices:
        yield f"on_new_checkpoint is {on_new_checkpoint!r}; it must be one of {', '.join(choices)}"
