"""Updates that Spark's SQL makes of rows are those of docs/updates.md, and go where the keys' storage keys are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.json_values import JsonRows, key_reader
from keyhole.encoding.storage_key import group_of
from keyhole.errors import ValueMismatch
from keyhole.model.state import StateDescriptor, StateKind
from keyhole.protocol.updates import DELETE, NO_UPDATE, PUT, UpdateRecord, decode, encode
from keyhole.spark.declaration.declared import Declaration
from keyhole.spark.declaration.schema import describe
from keyhole.spark.write_path.update_records import update_columns, within
from tests.spark.test_values_from_spark import KEYS, VALUES, stored
from tests.support.hostile_names import NAMES, OF_FIELDS, OF_KEYS

ZONES = ("UTC", "America/New_York", "Asia/Tokyo")

EVENTS = r"""
    SELECT partition, offset, sub, k, m, cast(n AS bigint) n, string(n) s, gone FROM VALUES
    (0, bigint(7), 0, 'c1', date'2026-11-21', 12, false), (1, bigint(8), 3, '[é"\\]', date'1969-12-31', null, true),
    (1, bigint(9), 0, null, null, 1, null) AS rows (partition, offset, sub, k, m, n, gone)
"""


@contextlib.contextmanager
def configured(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)  # type: ignore[arg-type]  # each has a default


def updates(rows: DataFrame, of: StateDescriptor, **columns: str) -> list[tuple[int, UpdateRecord]]:
    found = []
    for partition, value in rows.selectExpr(*update_columns(of, "a1b2", **columns)).collect():
        record = decode(value.encode())
        assert isinstance(record, UpdateRecord)
        found.append((partition, record))
    return found


def test_every_value_and_key_is_stored_as_the_batch_lane_stores_it_whatever_the_session_is_set_to(
    spark: SparkSession,
) -> None:
    more = ["cast(0.0000001 as decimal(38,10))", "cast(-0.1 as float)", "cast('NaN' as double)", "'a]\"[\\\\'", "'[]'"]
    values = [*VALUES, *more, "cast('-1234567.00000001' as decimal(38,8))"]
    keys = [f"{expression} as key_{kind}" for kind, (expression, _) in KEYS.items()]
    present = [f"{expression} as v{number}" for number, expression in enumerate(values)]
    absent = [f"if(id < 1, null, {expression}) as n{number}" for number, expression in enumerate(values)]
    where = ("0 as partition", "bigint(7) as offset")
    for zone, ansi in zip(ZONES, ("true", "false", "true"), strict=True):
        with configured(spark, {"spark.sql.session.timeZone": zone, "spark.sql.ansi.enabled": ansi}):
            data = spark.range(1).selectExpr(*keys, *present, *absent)
            names = tuple(f"key_{kind}" for kind in KEYS)
            of = describe(Declaration("state", names, 64, None, None), "application", "query", data.schema)
            ((partition, record),) = updates(data.selectExpr("*", *where), of)
            ((storage_key, value),) = stored(data, of)
        key = key_reader(of.key)(record.key)
        assert StateCodec(of).storage_key(key) == storage_key
        assert partition == group_of(storage_key)
        assert JsonRows(of).row(record.schema_version, record.value or []) == value


def test_kinds_deletions_and_rows_of_one_offset_have_the_documented_records(spark: SparkSession) -> None:
    rows = spark.sql(EVENTS)

    def of(declared: Declaration, **columns: str) -> list[tuple[int, UpdateRecord]]:
        return updates(rows, describe(declared, "app", "main", rows.schema), **columns)

    def record(offset: int, sub: int, operation: int, key: object, **more: list[object] | None) -> UpdateRecord:
        return UpdateRecord("a1b2", int(offset > 7), offset, sub, operation, 1, [key], **more)

    bytewise = update_columns(describe(Declaration("s", ("k",), 8, ("n",), None), "app", "main", rows.schema), "a1b2")
    assert [row.value.encode() for row in rows.selectExpr(*bytewise).collect()] == [
        encode(record(7, 0, PUT, "c1", value=[12])),
        encode(record(8, 0, PUT, '[é"\\]', value=[None])),
        encode(record(9, 0, PUT, None, value=[1])),
    ]
    # docs/updates.md: the key group of "c1" of 64.
    value = of(Declaration("s", ("k",), 64, ("n", "s"), None), sub="sub", delete_when="gone")
    assert value[0] == (14, record(7, 0, PUT, "c1", value=[12, "12"]))
    assert [update for _, update in value[1:]] == [
        record(8, 3, DELETE, '[é"\\]'),
        record(9, 0, PUT, None, value=[1, "1"]),
    ]
    entries = of(Declaration("s", ("k",), 64, ("n",), None, kind=StateKind.MAP, map_key=("m",)), delete_when="gone")
    assert entries[0] == (14, record(7, 0, PUT, "c1", map_key=[20778], value=[12]))
    assert entries[1][1] == record(8, 0, DELETE, '[é"\\]', map_key=[-1])
    ordered = of(Declaration("s", ("k",), 64, ("s",), "n", keep_deleted_ms=60_000), delete_when="n = 12")
    assert ordered[0] == (14, record(7, 0, DELETE, "c1", value=[12]))
    assert ordered[1][1].value == [None, None]
    reduced = of(Declaration("s", ("k",), 64, ("n", "s"), None, ("sum", "count"), kind=StateKind.REDUCING))
    assert [update.value for _, update in reduced] == [[12, 1], [None, 0], [1, 1]]
    elements = of(Declaration("s", ("k",), 64, ("n",), None, kind=StateKind.LIST))
    assert elements[0] == (14, record(7, 0, PUT, "c1", value=[12]))
    everywhere = of(Declaration("s", ("k",), 1, ("n",), None, kind=StateKind.BROADCAST))
    assert [partition for partition, _ in everywhere] == [0, 0, 0]
    assert msgspec.structs.astuple(everywhere[2][1])[:4] == ("a1b2", 1, 9, 0)


def test_an_update_that_is_too_large_for_a_record_says_so_and_which_row_it_was(spark: SparkSession) -> None:
    """Kafka would refuse it for good: the query would end, and each start of it meet the row again."""
    rows = spark.sql(EVENTS)
    of = describe(Declaration("s", ("k",), 64, ("n", "s"), None), "app", "main", rows.schema)
    made = rows.selectExpr(*update_columns(of, "a1b2", sub="sub"))
    whole = [(partition, value.encode()) for partition, value in made.collect()]
    # Of the second one, by bytes: it has a letter of two.
    most = len(whole[1][1]) - 1
    assert [len(value) > most for _, value in whole] == [False, True, False]
    sent = [(partition, value.encode()) for partition, value in made.selectExpr(*within(most)).collect()]
    why = f"the update takes {most + 1} bytes, and its topic takes {most}"
    assert sent == [whole[0], (whole[1][0], f'[1,"a1b2",1,8,3,{NO_UPDATE},1,"{why}"]'.encode()), whole[2]]
    with pytest.raises(ValueMismatch, match=f"^its producer made no update of the row: {why}$"):
        decode(sent[1][1])


def test_columns_of_any_name_are_in_updates_as_keys_map_keys_values_and_fields(spark: SparkSession) -> None:
    numbers = {name: number for number, name in enumerate(NAMES)}
    struct = F.struct(*(F.lit(number).alias(name) for number, name in enumerate(OF_FIELDS))).alias("nested")
    where = F.lit(0).alias("partition"), F.lit(7).alias("offset")
    rows = spark.range(1).select(*where, struct, *(F.lit(number).alias(name) for name, number in numbers.items()))
    for turn in range(3):
        key, map_key, value = ([*OF_KEYS][(turn + role) % 3 :: 3] for role in range(3))
        declared = Declaration(
            "s", tuple(key), 64, ("", *value, "nested"), None, map_key=tuple(map_key), kind=StateKind.MAP
        )
        ((_, record),) = updates(rows, describe(declared, "app", "main", rows.schema))
        assert (record.key, record.map_key) == ([numbers[of] for of in key], [numbers[of] for of in map_key])
        assert record.value == [*(numbers[of] for of in ("", *value)), [*range(len(OF_FIELDS))]]
        reduced = Declaration("s", tuple(key), 64, tuple(value), None, ("sum",) * len(value), kind=StateKind.REDUCING)
        ((_, record),) = updates(rows, describe(reduced, "app", "main", rows.schema))
        assert record.value == [numbers[of] for of in value]


STRUCTS = """
    SELECT 0 AS partition, bigint(7) AS offset, 'c' AS c, 5 AS id,
    CAST(named_struct('a', 1, 'b', 2, 'c', named_struct('x', 'y', 'y', timestamp'2026-11-29 00:00:00Z')) AS {struct}) s,
    array(CAST(named_struct('a', 3, 'b', 4) AS {pair}), null) AS l,
    map(CAST(named_struct('a', 5, 'b', 6) AS {pair}), CAST(named_struct('a', 7, 'b', 8) AS {pair})) AS m
"""


def test_fields_of_structs_are_told_apart_by_case_and_from_columns_whatever_the_rows_are_called(
    spark: SparkSession,
) -> None:
    """To Spark's SQL `s`.`id` is the column `id` of a table that is called `s`, where there is one, and else either of
    the fields `id` and `ID`; and what stands in ${} is another text."""
    for id_, other in (("id", "v"), ("id", "ID"), ("id", "${spark.app.name}")):
        pair = f"struct<`{id_}`:int,`{other}`:int>"
        struct = f"struct<`{id_}`:int,`{other}`:int,nested:struct<`{id_}`:string,`{other}`:timestamp>>"
        with configured(spark, {"spark.sql.variable.substitute": "false"}):
            rows = spark.sql(STRUCTS.format(pair=pair, struct=struct)).alias("s")
        of = describe(Declaration("s", ("c",), 64, ("s", "l", "m"), None), "app", "main", rows.schema)
        reducers = ("last", "first", "last")
        reduced = describe(
            Declaration("s", ("c",), 64, ("s", "l", "m"), None, reducers, kind=StateKind.REDUCING),
            *("app", "main", rows.schema),
        )
        for state in (of, reduced):
            ((_, record),) = updates(rows, state)
            assert record.key == ["c"]
            assert record.value == [[1, 2, ["y", 1_795_910_400_000_000]], [[3, 4], None], [[[5, 6], [7, 8]]]]
            assert JsonRows(state).row(1, record.value)


def test_a_time_is_reduced_as_it_is_whatever_sql_calls_a_timestamp(spark: SparkSession) -> None:
    with configured(spark, {"spark.sql.timestampType": "TIMESTAMP_NTZ", "spark.sql.session.timeZone": "Asia/Tokyo"}):
        rows = spark.sql("SELECT 0 AS partition, 7 AS offset, 'a' AS k, timestamp_micros(1000001) AS t")
        of = Declaration("s", ("k",), 64, ("t",), None, ("max",), kind=StateKind.REDUCING)
        ((_, record),) = updates(rows, describe(of, "app", "main", rows.schema))
    assert record.value == [1000001]
