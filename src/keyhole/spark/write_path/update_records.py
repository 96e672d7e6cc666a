"""SQL that makes each row of a real-time query an update of a state, as docs/updates.md has it, with its partition.

    customer "c1", amount 12.5, of partition 0 and offset 7    partition 14: [1,"a1b2",0,7,0,0,1,["c1"],null,[12.5]]

Native SQL alone, as Spark's real-time mode runs nothing else. What comes out depends on the row, and on no setting of
the session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pyspark.sql import types as spark

from keyhole.encoding.reducers import parse
from keyhole.model.state import StateDescriptor, StateKind
from keyhole.protocol.updates import DELETE, NO_UPDATE, PUT
from keyhole.spark.declaration.batch_columns import VARIABLE
from keyhole.spark.declaration.spark_types import spark_type
from keyhole.spark.driver.data_frames import quoted
from keyhole.spark.write_path.state_rows import reduced_column

# Text that has no exponent: Spark writes 0.0000001 as 1E-7, unless it is in ANSI mode.
_PLAIN_SCALE = 6
# What stands ahead of an update's operation says which row it is, and has no other comma.
_OF_THE_ROW = 5
_WHOLE = (spark.BooleanType, spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)
_TIMESTAMP = re.compile(r"\btimestamp\b")
_LOCAL_TIME = "map('timestampNTZFormat', 'yyyy-MM-dd HH:mm:ss.SSSSSS')"


def update_columns(
    descriptor: StateDescriptor,
    source: str,
    *,
    partition: str = "partition",
    offset: str = "offset",
    sub: str = "0",
    delete_when: str = "false",
    clear_when: str = "false",
    refuse_when: str = "false",
    column: Callable[[str], str] = str,
) -> tuple[str, str]:
    """Two expressions over a query's rows: `partition`, an int, and `value`, a string; Kafka's sink takes both so.

    Args:
        descriptor: Its key, map key and value are columns of the rows. Of kind value, map, list, reducing or broadcast.
        source: Names the rows' topic, by its id, and this query: letters, digits, `_`, `-`, `.`. Where topics are
            united, each has a source of its own: unite the updates, not the rows.
        partition, offset, sub: SQL that says which row it is: see keyhole.protocol.updates.SourceRow.
        delete_when: SQL, true of rows that delete. What is neither true nor false puts.
        clear_when: The same of rows that delete all entries of a key, in a state with a map key.
        column: Of the name of a reducing state's field: the column of the rows that it is made of.
        refuse_when: The same of rows that do nothing that an update can: their owner refuses them.

    A null in the key is in the update, too, and its owner refuses it.
    """
    key, map_key = ([(quoted(of.name), of.type) for of in part] for part in (descriptor.key, descriptor.map_key))
    values = [(quoted(field.name), field.type) for field in descriptor.value.fields]
    if descriptor.kind is StateKind.REDUCING:
        pairs = zip(descriptor.value.fields, map(parse, descriptor.reducers), strict=True)
        values = [(reduced_column(field, call, column), field.type) for field, call in pairs]
    put = _json_array(values)
    deletion = "'null'"
    if descriptor.keep_deleted_ms:
        deletion = _json_array([(of, kind) for of, kind in values if of == quoted(descriptor.order_by)])
    deletes, clears = f"(({delete_when}) OR ({clear_when})) IS TRUE", f"({clear_when}) IS TRUE"
    operation = f"CASE WHEN ({refuse_when}) IS TRUE THEN '{NO_UPDATE}' WHEN {deletes} THEN '{DELETE}' ELSE '{PUT}' END"
    parts = [
        f"'[1,\"{source}\"'",
        f"string({partition})",
        f"string({offset})",
        f"string({sub})",
        operation,
        f"'{descriptor.value.version}'",
        _json_array(key),
        f"if({clears}, 'null', {_json_array(map_key)})" if map_key else "'null'",
        f"if({deletes}, {deletion}, {put})",
    ]
    group = "0"
    if descriptor.kind is not StateKind.BROADCAST:
        group = f"pmod(hash({', '.join(of for of, _ in key)}), {descriptor.key_groups})"
    return f"int({group}) AS partition", f"concat(concat_ws(',', {', '.join(parts)}), ']') AS value"


def within(most_bytes: int) -> tuple[str, str]:
    """Two expressions over the columns that `update_columns` makes: `partition`, and `value` as Kafka takes it.

    A larger update becomes a record that says so, and which row it was: its owner puts that among the dead letters.
    Kafka would refuse the update for good, which ends the query, and each start of it would meet the row again.

    Args:
        most_bytes: That a value may have.
    """
    why = f"concat('the update takes ', string(octet_length(value)), ' bytes, and its topic takes {most_bytes}')"
    row = f"substring_index(value, ',', {_OF_THE_ROW})"
    none = f"concat({row}, ',{NO_UPDATE},1,\"', {why}, '\"]')"
    return "partition", f"if(octet_length(value) > {most_bytes}, {none}, value) AS value"


def _json_array(of: Sequence[tuple[str, str]]) -> str:
    """Of columns and the names of their types."""
    return _listed([_or_null(_json(column, spark_type(kind), 0)) for column, kind in of])


def _listed(texts: list[str]) -> str:
    return f"concat('[', concat_ws(',', {', '.join(texts)}), ']')"


def _or_null(text: str) -> str:
    return f"coalesce({text}, 'null')"


def _json(of: str, kind: spark.DataType, depth: int) -> str:
    """The JSON of a value in a form that docs/values.md takes; null of null.

    Not `to_json` of it all: that cuts times to milliseconds, and writes decimals as numbers and the keys of some maps
    as Spark has them in memory.

    Args:
        depth: Of arrays and maps around it, by which their elements are named apart.
    """
    element = f"_keyhole_{depth}"
    match kind:
        case spark.FloatType() | spark.DoubleType():
            return f"if(isnan({of}) OR abs({of}) = double('Infinity'), concat('\"', {of}, '\"'), string({of}))"
        case spark.DecimalType(scale=scale) if scale > _PLAIN_SCALE:
            return f"concat('\"', replace(format_number({of}, {scale}), ',', ''), '\"')"
        case spark.DecimalType():
            return f"concat('\"', {of}, '\"')"
        case spark.DateType():
            return f"string(unix_date({of}))"
        case spark.TimestampType():
            return f"string(unix_micros({of}))"
        case spark.TimestampNTZType():
            return _only(f"to_json(array({of}), {_LOCAL_TIME})", of)
        case spark.ArrayType():
            texts = f"transform({of}, {element} -> {_or_null(_json(element, kind.elementType, depth + 1))})"
            return f"concat('[', array_join({texts}, ','), ']')"
        case spark.MapType():
            pair = [
                _json(f"{element}.key", kind.keyType, depth + 1),
                _or_null(_json(f"{element}.value", kind.valueType, depth + 1)),
            ]
            return f"concat('[', array_join(transform(map_entries({of}), {element} -> {_listed(pair)}), ','), ']')"
        case spark.StructType():
            if not _told_apart(kind.names):
                return _json(f"CAST({of} AS {_numbered(kind)})", _with_numbers(kind), depth)
            # Of a call, which the optimizer leaves out: `s`.`id` is the column id of rows that are called s, if any is.
            fields = [(f"coalesce({of}).{quoted(field.name)}", field.dataType) for field in kind.fields]
            return f"if({of} IS NULL, null, {_listed([_or_null(_json(*field, depth)) for field in fields])})"
        case simple if isinstance(simple, _WHOLE):
            return f"string({of})"
    return _only(f"to_json(array({of}))", of)


def _told_apart(names: list[str]) -> bool:
    """Whether each of a struct's fields can be asked for by its name: by SQL, and whatever the session says of case."""
    return len({name.lower() for name in names}) == len(names) and not any(VARIABLE in name for name in names)


def _with_numbers(kind: spark.DataType) -> spark.DataType:
    """The type with its fields called by their places."""
    match kind:
        case spark.StructType():
            fields = enumerate(kind.fields)
            return spark.StructType([spark.StructField(f"_{n}", _with_numbers(of.dataType)) for n, of in fields])
        case spark.ArrayType():
            return spark.ArrayType(_with_numbers(kind.elementType))
        case spark.MapType():
            return spark.MapType(_with_numbers(kind.keyType), _with_numbers(kind.valueType))
    return kind


def _numbered(kind: spark.DataType) -> str:
    """The same in SQL, where a plain `timestamp` is what the session takes for one."""
    return _TIMESTAMP.sub("timestamp_ltz", _with_numbers(kind).simpleString())


def _only(array: str, of: str) -> str:
    """The only element of an array, which is in quotes, as JSON; null of null."""
    return f"if({of} IS NULL, null, trim(BOTH '[]' FROM {array}))"
