"""Data frames of the driver's own session, and columns of any name in them."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from py4j.java_gateway import JavaObject
from pyspark import SparkContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everyone who writes PySpark calls it
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.utils import is_remote

from keyhole.errors import Unsupported

_CONNECT = (
    "queryable states need the driver's own Spark session, and Spark Connect gives none: run the job with "
    "spark-submit, or start the session in the job's process"
)
_CHOOSE_CONNECT = ("spark.remote", "spark.api.mode")


def classic(data: DataFrame) -> ClassicDataFrame:
    """The data frame, as one whose plans can be looked into.

    Raises:
        Unsupported: It belongs to Spark Connect.
    """
    if not isinstance(data, ClassicDataFrame):
        raise Unsupported(_CONNECT)
    return data


def refuse_connect(settings: Mapping[str, str] = MappingProxyType({})) -> None:
    """Passes where the process's session is, or would be, its own; before any query is started.

    Args:
        settings: Those that a session is to be made with.

    Raises:
        Unsupported: It is a client of Spark Connect.
    """
    if SparkContext._active_spark_context is not None:
        return
    chosen = [name for name in _CHOOSE_CONNECT if settings.get(name) not in (None, "classic")]
    if chosen or "SPARK_REMOTE" in os.environ or is_remote():
        why = f" ({chosen[0]} is set)" if chosen else " (SPARK_REMOTE is set)" if "SPARK_REMOTE" in os.environ else ""
        raise Unsupported(_CONNECT + why)


def selected(data: DataFrame, expressions: Iterable[str]) -> ClassicDataFrame:
    """`data.selectExpr(*expressions)`, whose list is made once for all batches: to Spark's JVM it is a call for each
    element, and some more.
    """
    of = classic(data)
    java = of._jdf.selectExpr(texts(of.sparkSession.sparkContext, tuple(expressions)))
    return ClassicDataFrame(java, of.sparkSession)


def renamed_columns(data: DataFrame, names: Iterable[str]) -> ClassicDataFrame:
    """`data.toDF(*names)`, in one call. To Spark they are other columns, also where their names are the same."""
    of = classic(data)
    java = of._jdf.toDF(texts(of.sparkSession.sparkContext, tuple(names)))
    return ClassicDataFrame(java, of.sparkSession)


def sorted_within_partitions(data: DataFrame, by: str) -> ClassicDataFrame:
    """`data.sortWithinPartitions(by)`, in one call. `by`: the column of exactly this name."""
    of = classic(data)
    java = of._jdf.sortWithinPartitions(quoted(by), texts(of.sparkSession.sparkContext, ()))
    return ClassicDataFrame(java, of.sparkSession)


@functools.lru_cache(maxsize=256)
def texts(context: SparkContext, of: tuple[str, ...]) -> JavaObject:
    """A Scala Seq of texts."""
    jvm = context._jvm
    assert jvm is not None
    return jvm.PythonUtils.toSeq(list(of))


def column(name: str) -> Column:
    """The column of exactly this name, whatever characters it has."""
    return F.col(quoted(name))


def quoted(name: str) -> str:
    """The name as Spark reads it where a name may have parts."""
    return "`" + name.replace("`", "``") + "`"
