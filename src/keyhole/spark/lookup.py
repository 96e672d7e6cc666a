"""Rows of a job with the live state of another application beside them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from keyhole.client import Client
from keyhole.client.bounds import Duration, StalePolicy
from keyhole.encoding.arrow_times import to_python
from keyhole.errors import InvalidConfiguration, KeyMismatch
from keyhole.model.read import Answer, Stale
from keyhole.model.state import StateDescriptor, StateKind
from keyhole.model.state_path import state_path
from keyhole.model.type_names import TypeName, not_stored, parsed
from keyhole.rpc.frames import portions
from keyhole.security.credentials import PLAIN, Credentials
from keyhole.spark.declaration.argument_types import Columns, columns, wrong_names
from keyhole.spark.declaration.batch_columns import case_sensitive, check_all_columns
from keyhole.spark.driver.arrow_map import map_in_arrow
from keyhole.spark.worker.settings import hasten_rows

# How large values are is known once the first ones are there.
_FIRST_KEYS, _MOST_KEYS, _GROWTH = 64, 4_096, 4
# Of the values that are asked for at once, as far as can be told before; and of those in one batch of Arrow's.
_BYTES = 16 << 20

GetMany = Callable[[Sequence[Any]], Sequence[Answer]]

_SIMPLE: Mapping[str, spark.DataType] = {
    of.simpleString(): of
    for of in (
        spark.BooleanType(),
        spark.ByteType(),
        spark.ShortType(),
        spark.IntegerType(),
        spark.LongType(),
        spark.FloatType(),
        spark.DoubleType(),
        spark.StringType(),
        spark.BinaryType(),
        spark.DateType(),
        spark.TimestampType(),
        spark.TimestampNTZType(),
    )
}


def lookup(
    data: DataFrame,
    state: str,
    *,
    key: Columns,
    proxy: str,
    into: str | None = None,
    stale: StalePolicy = Stale.WHEN_NEEDED,
    timeout: Duration = 30.0,
    credentials: Credentials = PLAIN,
) -> DataFrame:
    """Each row with the state's value of its key, as of when its task asks: a stream's rows, or a batch's.

    The tasks ask, with many keys at a time. What they get is what is committed then: a batch that is run again may get
    something newer, so what must be exactly once can't depend on it. A broadcast state can be read so that it does not
    change: see BroadcastReader.

    Args:
        state: APPLICATION/STATE.
        key: The columns of `data` that are the key, in the order of the state's; of a map state then those of the map
            key. They may have other names, but must be of the same types. Rows in which one is null find nothing.
        proxy: host:port of a client proxy, or of several, separated by commas.
        into: The name of the column with the value, a struct, null where there is none; default: the state's name.
        stale, timeout: As for Client.get; the timeout is that of one request.
        credentials: As for Client; their files must be there on each executor.

    Raises:
        UnknownApplication, UnknownState: Now; what the tasks meet ends the query, also a KeyMismatch where a key has a
            date or timestamp outside the years 1 to 9999.
        KeyMismatch: The key's columns don't fit.
        InvalidConfiguration: `state` is no APPLICATION/STATE, or a list; `key` names no columns; or there is a column
            `into` already.
    """
    application, name = state_path(state)
    names, target = columns(key), into or name
    for problem in wrong_names("key", names):
        raise InvalidConfiguration(problem, state=name)
    with Client(proxy, timeout=timeout, credentials=credentials) as client:
        descriptor = client.describe_state(application, name)
    if descriptor.kind is StateKind.LIST:
        raise InvalidConfiguration(
            f"state {state} is a list, which has no one value of a key; look up a state of another kind, or scan the "
            "list with a Client",
            state=name,
        )
    _check_key(data, descriptor, names)
    check_all_columns(f"lookup of {state}", data)
    taken = [
        name for name in data.columns if name == target or (name.lower() == target.lower() and not case_sensitive(data))
    ]
    if taken:
        raise InvalidConfiguration(f"there is a column {taken[0]!r} already; name another one with into=")
    value = value_schema(descriptor)
    schema = spark.StructType([*data.schema.fields, spark.StructField(target, value)])
    task = functools.partial(
        _enriched,
        (application, name),
        proxy,
        names,
        target,
        to_arrow_type(value, timezone="UTC"),
        stale,
        timeout,
        credentials,
    )
    return map_in_arrow(data, task, schema)


def value_schema(descriptor: StateDescriptor) -> spark.StructType:
    """The value's fields as Spark's types."""
    fields = descriptor.value.fields
    return spark.StructType([spark.StructField(field.name, spark_type(field.type)) for field in fields])


@functools.lru_cache(maxsize=256)
def spark_type(name: str) -> spark.DataType:
    """Of a type's name as descriptors have it. Not as Spark's SQL reads it: field names stand there without quotes."""
    return _made(parsed(name))


def _made(of: TypeName) -> spark.DataType:
    parts = [_made(part) for part in of.parts]
    match of.kind:
        case "decimal":
            return spark.DecimalType(*of.digits)
        case "array":
            return spark.ArrayType(parts[0])
        case "map":
            return spark.MapType(parts[0], parts[1])
        case "struct":
            fields = zip(of.names, parts, strict=True)
            return spark.StructType([spark.StructField(name, part) for name, part in fields])
        case simple if simple in _SIMPLE:
            return _SIMPLE[simple]
    raise not_stored(of.kind)


def _check_key(data: DataFrame, descriptor: StateDescriptor, names: Sequence[str]) -> None:
    wanted = (*descriptor.key, *descriptor.map_key)
    given = {field.name: field.dataType.simpleString() for field in data.schema.fields}
    missing = [name for name in names if name not in given]
    if missing:
        raise KeyMismatch(f"the rows have no column {', '.join(missing)}; they have {', '.join(given)}")
    if [given[name] for name in names] != [column.type.value for column in wanted]:
        raise KeyMismatch(
            f"state {descriptor.application}/{descriptor.state} is looked up by "
            f"{', '.join(f'{column.name} {column.type}' for column in wanted)}; the columns that are given are "
            f"{', '.join(f'{name} {given[name]}' for name in names)}. Cast them"
        )


def _enriched(
    state: tuple[str, str],
    proxy: str,
    key: Sequence[str],
    target: str,
    value: pa.DataType,
    stale: StalePolicy,
    timeout: Duration,
    credentials: Credentials,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    hasten_rows()
    client = _client(proxy, timeout, credentials)

    def get_many(keys: Sequence[Any]) -> Sequence[Answer]:
        return client.get_many(*state, keys, stale=stale)

    yield from with_values(get_many, key, pa.field(target, value), batches)


def with_values(
    get_many: GetMany, key: Sequence[str], target: pa.Field, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The rows with the values of their keys. Large values are asked for few at a time, and stand in small batches.

    Args:
        get_many: Gives the answers to keys, of which none comes twice.
        key: The key's columns.
        target: The column of the values; null where there is none.
    """
    portion = _FIRST_KEYS
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            rows = batch.slice(start, portion)
            start += rows.num_rows
            keys = list(zip(*(to_python(rows.column(name), name, KeyMismatch) for name in key), strict=True))
            asked = list(dict.fromkeys(one for one in keys if None not in one))
            answers = get_many([one if len(one) > 1 else one[0] for one in asked])
            found = [(one, as_arrow(answer.value)) for one, answer in zip(asked, answers, strict=True) if answer.found]
            values = pa.array([value for _, value in found], target.type)
            sizes = [values.slice(place, 1).nbytes for place in range(len(values))]
            place_of = {one: place for place, (one, _) in enumerate(found)}
            places = [place_of.get(one) for one in keys]
            # Many rows may have the same large value.
            for part in portions((0 if place is None else sizes[place] for place in places), _BYTES):
                of_part = values.take(pa.array(places[part], pa.int32()))
                yield rows.slice(part.start, part.stop - part.start).append_column(target, of_part)
            mean = values.nbytes // max(1, len(values)) + 1
            portion = max(1, min(_GROWTH * portion, _MOST_KEYS, _BYTES // mean))


def as_arrow(value: Any) -> Any:
    """A row, or what is in it, as Arrow takes it: a row as a dict, a map as pairs."""
    convert: Callable[[Any], Any] = as_arrow
    if hasattr(value, "asdict"):
        return {name: convert(value[name]) for name in value}
    if isinstance(value, Mapping):
        return [(key, convert(item)) for key, item in value.items()]
    return [convert(item) for item in value] if isinstance(value, tuple) else value


@functools.lru_cache(maxsize=8)
def _client(proxy: str, timeout: Duration, credentials: Credentials) -> Client:
    """For the life of the Python worker process."""
    return Client(proxy, timeout=timeout, credentials=credentials)
