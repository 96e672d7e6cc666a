"""From the arguments of queryable's functions to a sink, or an error that names the argument."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypedDict

from pyspark import SparkContext
from pyspark.sql import Column

from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.clock import SystemClock
from keyhole.config import JobConfig, job_config
from keyhole.config.spelling import with_the_nearest
from keyhole.coordinator.caretaker import Caretaker
from keyhole.coordinator.coordinator import Coordinator
from keyhole.coordinator.counts import QueryCounts
from keyhole.coordinator.fleet import Addresses
from keyhole.coordinator.stats import stats_of
from keyhole.encoding.reducers import problems
from keyhole.errors import InvalidConfiguration
from keyhole.model.names import checked_name
from keyhole.model.state import DEFAULT_KEY_GROUPS, MAX_KEY_GROUPS, StateKind, TtlClock
from keyhole.protocol.epoch_of_batch import OnNewCheckpoint
from keyhole.protocol.failpoints import StepObserver
from keyhole.spark.declaration.argument_types import Columns, columns, wrong_types
from keyhole.spark.declaration.class_version import version_of, version_problems
from keyhole.spark.declaration.declared import RANKED_KINDS, Declaration
from keyhole.spark.declaration.deletions import Deletes, keep_deleted_ms
from keyhole.spark.declaration.ttl import Ttl, ttl_of
from keyhole.spark.declaration.value_codec import ENCODED, VERSION, ValueCodec
from keyhole.spark.driver.data_frames import refuse_connect
from keyhole.spark.driver.executors import ServerAddresses
from keyhole.spark.exposed import PREFIX
from keyhole.spark.operators import Subtasks
from keyhole.spark.sink import OnCommit, OnRows, Sink
from keyhole.spark.worker.aggregating import Aggregator
from keyhole.spark.write_path.sink_states import SinkState

_METHODS = {
    "aggregator": ("create", "add", "merge", "result"),
    "operator": ("process", "result"),
    "codec": ("encode",),
    "processor": ("init", "handleInputRows", "close"),
}
_VERSIONED = ("aggregator", "operator", "codec")
_RESERVED_STATES = ("control",)  # its changelog would be the application's control topic


class QueryOptions(TypedDict, total=False):
    """What the query takes; keyhole.spark.queryable says what each means."""

    on_new_checkpoint: OnNewCheckpoint
    strict: bool
    allow_dropped_states: bool
    on_commit: OnCommit | None
    query: str | None
    config: JobConfig | None
    observer: StepObserver | None


class StateOptions(QueryOptions, total=False):
    """What all states take, and what the query takes of a state that is alone in it."""

    key_groups: int
    standbys: int
    keep_epochs: int
    index: Columns
    ttl: timedelta | None
    ttl_clock: Literal["processing_time", "event_time"]
    op: str | None
    delete_when: str | Column | None
    defaults: Mapping[str, object]
    codec: ValueCodec | None


class RankedOptions(StateOptions, total=False):
    """What kinds take, beside these, of which the highest row counts."""

    deletes: Deletes
    keep_deleted: timedelta | None


def build(
    kind: StateKind,
    state: str,
    options: StateOptions | RankedOptions,
    *,
    aggregator: Aggregator | None = None,
    subtasks: Subtasks | None = None,
    ttl: Ttl | None = None,
    **declared: Any,
) -> Sink:
    """A sink of one state.

    Args:
        ttl: Its own, in place of that of the options.

    Raises:
        InvalidConfiguration: An option can't be.
    """
    of_query, given = parted(options)
    ranked = kind in RANKED_KINDS
    known = (RankedOptions if ranked else StateOptions).__annotations__
    refuse_unknown("operator" if subtasks is not None else kind, options, declared.keys(), known=known)
    codec: ValueCodec | None = given.pop("codec", None)
    given["index"] = columns(given.pop("index", ()))
    declared |= {"encoded": codec is not None, "versioned": hasattr(codec, "version")}
    as_option = given.pop("ttl", None), given.pop("ttl_clock", TtlClock.PROCESSING_TIME)
    lives = ttl or ttl_of(state, *as_option)
    deletions = given.pop("deletes", "by_order"), given.pop("keep_deleted", None)
    declaration = Declaration(
        state,
        kind=kind,
        ttl_ms=lives.ms,
        ttl_clock=lives.clock,
        keep_deleted_ms=keep_deleted_ms(state, declared.get("order_by"), *deletions) if ranked else 0,
        **({"key_groups": DEFAULT_KEY_GROUPS, "value": None, "order_by": None} | declared | given),
    )
    checked_name("the state's name", declaration.state, "choose another one")
    classes: dict[str, object] = {} if codec is None else {"codec": codec}
    if subtasks is not None:
        classes["operator"] = subtasks.operator
    elif kind is StateKind.AGGREGATING:
        classes["aggregator"] = aggregator
    # In this order: each takes for granted what the one before it has seen to.
    for problem in itertools.chain(wrong_types(declaration), _problems(declaration), class_problems(**classes)):
        raise InvalidConfiguration(f"state {declaration.state!r}: {problem}", state=declaration.state)
    for of in classes.values():
        declaration = dataclasses.replace(declaration, class_version=version_of(of))
    return query_sink([SinkState(declaration, aggregator, subtasks, codec)], of_query)


def parted(options: Mapping[str, Any]) -> tuple[QueryOptions, dict[str, Any]]:
    """What concerns the query, and what concerns its states."""
    of_query = {name: value for name, value in options.items() if name in QueryOptions.__annotations__}
    of_states = {name: value for name, value in options.items() if name not in of_query}
    return typing.cast("QueryOptions", of_query), of_states


def refuse_unknown(
    function: str,
    options: Mapping[str, Any],
    own: Collection[str] = (),
    *,
    known: Collection[str] = tuple(StateOptions.__annotations__),
    remedy: str = "",
) -> None:
    """Raises TypeError, as Python does, where an option is not known; the message has what may have been meant.

    Args:
        function: Of queryable.
        own: The arguments that it takes beside `known`.
        remedy: Where what it does not take may belong.
    """
    if unknown := options.keys() - set(known):
        taken = {*known, *own} - unknown
        named = ", ".join(with_the_nearest(name, taken) for name in sorted(unknown))
        raise TypeError(f"queryable.{function}() got unexpected arguments: {named}{remedy}")


def query_sink(parts: Sequence[SinkState], options: QueryOptions, on_rows: OnRows | None = None) -> Sink:
    """A sink of the states of one query. Raises InvalidConfiguration; PortTaken, as `stats_of`."""
    refuse_connect()
    settings = _QuerySettings(**options)
    for problem in _setting_problems(settings):
        raise InvalidConfiguration(problem)
    config = settings.config or job_config()
    checked_name("the application's name", config.application, "set KEYHOLE_JOB_APPLICATION to another one")
    if settings.query is not None:
        checked_name("query", settings.query, "choose another one")
    choices = typing.get_args(OnNewCheckpoint)
    if settings.on_new_checkpoint not in choices:
        raise InvalidConfiguration(
            f"on_new_checkpoint is {settings.on_new_checkpoint!r}; it must be one of {', '.join(choices)}"
        )
    names = [part.declaration.state for part in parts]
    if not names:
        raise InvalidConfiguration("no state is given; give at least one")
    if len(set(names)) < len(names):
        raise InvalidConfiguration(f"a state is given twice ({', '.join(names)}); each has a name of its own")
    _check_servers(config)
    # Who asks a driver for its figures finds one whose first batch waits for a quiet source, too. A Python worker that
    # imports the module of a sink declares it again, and is no driver.
    if SparkContext._active_spark_context is not None:
        stats_of(config)

    def make(config: JobConfig, query: str, addresses: Addresses) -> Coordinator:
        changelog = KafkaChangelog(config.bootstrap_servers, config.application)
        return Coordinator(
            config,
            query,
            changelog,
            SystemClock(),
            on_new_checkpoint=settings.on_new_checkpoint,
            strict=settings.strict,
            observer=settings.observer,
            addresses=addresses,
            allow_dropped_states=settings.allow_dropped_states,
            counts=stats_of(config).counts.query(query),
        )

    def make_caretaker(
        config: JobConfig, query: str, standbys: Mapping[str, int], spark_query_id: str, addresses: Addresses
    ) -> Caretaker:
        changelog = KafkaChangelog(config.bootstrap_servers, config.application)

        def counts() -> QueryCounts:
            return stats_of(config).counts.query(query)

        return Caretaker(config, query, standbys, spark_query_id, changelog, SystemClock(), addresses, counts=counts)

    return Sink(
        tuple(parts),
        settings.query,
        config,
        make,
        settings.on_commit,
        frozenset(options) - {"config"},
        on_rows,
        settings.on_new_checkpoint,
        make_caretaker,
    )


def _check_servers(config: JobConfig) -> None:
    """Refuses wrong ones here, before a query is started."""
    with contextlib.closing(ServerAddresses(config.servers, list)) as addresses:
        addresses.check()


@dataclass(frozen=True)
class _QuerySettings:
    """The options of a query, with the defaults of those that were not given."""

    on_new_checkpoint: OnNewCheckpoint = "refuse"
    strict: bool = False
    allow_dropped_states: bool = False
    on_commit: OnCommit | None = None
    query: str | None = None
    config: JobConfig | None = None
    observer: StepObserver | None = None


def _setting_problems(settings: _QuerySettings) -> Iterator[str]:
    for argument in ("strict", "allow_dropped_states"):
        if not isinstance(given := getattr(settings, argument), bool):
            yield f"{argument} is {given!r}; it must be True or False"
    if settings.on_commit is not None and not callable(settings.on_commit):
        yield f"on_commit is {settings.on_commit!r}; it must be a function, which is called with each epoch"
    if settings.config is not None and not isinstance(settings.config, JobConfig):
        yield f"config is a {type(settings.config).__name__}; it must be a keyhole.config.JobConfig"


def class_problems(**given: object) -> Iterator[str]:
    """What is wrong with the objects of the user's own classes, by argument."""
    for argument, of in given.items():
        if isinstance(of, type):
            yield f"{argument} is the class {of.__name__}; give an object of it, {of.__name__}()"
        needed = _METHODS[argument]
        if lacking := [name for name in needed if not callable(getattr(of, name, None))]:
            yield f"{argument} ({type(of).__name__}) has no {', '.join(lacking)}; it needs {', '.join(needed)}"
        if argument in _VERSIONED:
            yield from version_problems(argument, of, upgrades=argument != "codec")


def _problems(of: Declaration) -> Iterator[str]:
    key, map_key, key_groups, value = of.key, of.map_key, of.key_groups, of.value
    if of.state in _RESERVED_STATES:
        yield "the name is reserved; choose another one"
    if not key or not all(key):
        yield "key is empty; name the column, or the columns, that the state is looked up by"
    if not all(map_key) or (of.kind is StateKind.MAP and not map_key):
        instead = "use queryable.value, which has one value per key" if of.kind is StateKind.MAP else "leave it out"
        yield f"map_key is empty; name the column that tells the entries of a key apart, or {instead}"
    for what, names in (("key", key), ("map_key", map_key)):
        if len(set(names)) < len(names):
            yield f"{what} names a column twice ({', '.join(names)})"
    if both := sorted(set(key) & set(map_key)):
        yield f"{', '.join(both)} is in key and in map_key; a column is in one of them"
    if type(key_groups) is not int or not 1 <= key_groups <= MAX_KEY_GROUPS:
        yield f"key_groups is {key_groups!r}; it must be a whole number from 1 to {MAX_KEY_GROUPS}"
    if type(of.standbys) is not int or of.standbys < 0:
        yield f"standbys is {of.standbys!r}; it must be a whole number, 0 or more"
    if value is not None and not value:
        yield "value is empty; name at least one column, or leave it out to take all but the key's"
    if value is not None and len(set(value)) < len(value):
        yield f"value names a column twice ({', '.join(value)})"
    others = {*(value or ()), *((of.order_by,) if of.order_by is not None else ())}
    # What orders a batch's elements needn't be part of them.
    value_columns = set(value or ()) if of.kind is StateKind.LIST else others
    if len(set(of.index)) < len(of.index):
        yield f"index names a field twice ({', '.join(of.index)})"
    if in_key := sorted({*key, *map_key} & set(of.index)):
        yield f"index names {', '.join(in_key)}, which is part of the key; an index is of fields of the value"
    if twice := sorted({*key, *map_key} & value_columns):
        those = ", ".join(twice)
        if of.kind is StateKind.REDUCING:
            yield (
                f"reducers names {those}, which is part of the key, and of which a field is made that would be called "
                "like it. To count the rows of each key, name a field for it: "
                'reducers={"rows": count()}, by keyhole.spark.reductions'
            )
        yield f"{those} is part of the key, which every reader knows; leave it out of value and order_by"
    if of.encoded and of.kind in (StateKind.REDUCING, StateKind.AGGREGATING):
        yield f"what {of.kind} makes of the columns is the value; codec can't take its place"
    made = ((ENCODED, of.encoded), (VERSION, of.versioned))
    if taken := [name for name, has in made if has and name in {*key, *map_key}]:
        yield f"the key has a column {taken[0]!r}, as the field is called that codec makes; rename the column"
    if of.encoded and of.order_by is not None and of.kind is not StateKind.LIST:
        yield "order_by compares stored values, which codec hides; leave one of the two out"
    if of.op is not None and of.delete_when is not None:
        yield "op and delete_when both say what a row does; give one of them"
    if of.op is not None and of.op in {*key, *map_key, *others}:
        yield f"{of.op} says what a row does; it can't be part of the key or of the value"
    if value is not None and of.result is None and (unknown := sorted(of.defaults.keys() - others)):
        yield f"defaults names {', '.join(map(repr, unknown))}, which is not part of the value"
    yield from _alias_problems(of)
    yield from problems(dict(zip(value or (), of.reducers, strict=False)))


def _alias_problems(of: Declaration) -> Iterator[str]:
    """Of fields with names of their own, which are not looked at as columns are."""
    names = (of.value or ()) if of.columns else ()
    lower = [name.lower() for name in names]
    for name in names:
        if not name or "\0" in name or "${" in name or name.lower().startswith(PREFIX):
            yield f"no field can be called {name!r}; choose another name"
        if lower.count(name.lower()) > 1:
            yield (
                f"the fields {', '.join(repr(other) for other in names if other.lower() == name.lower())} differ by "
                "case alone; choose other names"
            )
