"""Spark's mapInArrow, for columns of any name, and with few questions to Spark's JVM."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from py4j.java_gateway import JavaClass, JavaObject
from pyspark import SparkContext
from pyspark.core.rdd import _prepare_for_python_RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from keyhole.spark.driver.data_frames import classic
from keyhole.spark.driver.jvm import java_class

ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_FUNCTION = "org.apache.spark.api.python.SimplePythonFunction"
_UDF = "org.apache.spark.sql.execution.python.UserDefinedPythonFunction"


def map_in_arrow(rows: DataFrame, function: ArrowFunction, schema: StructType) -> DataFrame:
    """`rows.mapInArrow(function, schema)`, also where a column's name has a dot or a backtick.

    Spark 4.2 takes `a.b` there for the field `b` of a column `a`, and doesn't find it. And it asks its JVM for each
    column, each variable of the environment and the schema anew, some dozens of times, for each batch of a query again.
    """
    data = classic(rows)
    session = data.sparkSession
    name = getattr(function, "__name__", type(function).__name__)
    kind = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    made = java_class(session, _UDF)(
        name, _function(session, function, schema), _type(session.sparkContext, schema.json()), kind, True
    )
    # It gets all columns; that it refers to them keeps Spark from leaving some out.
    call = made.fromUDFExpr(made.builder(data._jdf.queryExecution().analyzed().output()))
    return ClassicDataFrame(data._jdf.mapInArrow(call, False, None), session)


def _function(session: SparkSession, function: ArrowFunction, schema: StructType) -> JavaObject:
    context = session.sparkContext
    command, broadcast, environment, includes = _prepare_for_python_RDD(context, (function, schema))
    assert context._jvm is not None
    variables, modules = _worker_settings(context, tuple(sorted(environment.items())), tuple(includes))
    return java_class(session, _FUNCTION)(
        bytearray(command),
        variables,
        modules,
        context.pythonExec,
        context.pythonVer,
        broadcast,
        context._javaAccumulator,
    )


@functools.lru_cache(maxsize=16)
def _worker_settings(
    context: SparkContext, environment: tuple[tuple[str, str], ...], includes: tuple[str, ...]
) -> tuple[JavaObject, JavaObject]:
    """What all functions of a driver send along, as the JVM has it."""
    jvm = context._jvm
    assert jvm is not None
    variables, modules = jvm.java.util.HashMap(), jvm.java.util.ArrayList()
    for name, value in environment:
        variables.put(name, value)
    for module in includes:
        modules.add(module)
    return variables, modules


@functools.lru_cache(maxsize=64)
def _type(context: SparkContext, schema: str) -> JavaObject:
    """A schema as the JVM has it. Types belong to no session."""
    assert context._gateway is not None
    return JavaClass("org.apache.spark.sql.types.DataType", context._gateway._gateway_client).fromJson(schema)
