"""Spark's mapInArrow, for columns of any name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from keyhole.spark.driver.data_frames import classic, quoted

ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(rows: DataFrame, function: ArrowFunction, schema: StructType | str) -> DataFrame:
    """`rows.mapInArrow(function, schema)`, also where a column's name has a dot or a backtick.

    Spark 4.2 takes `a.b` there for the field `b` of a column `a`, and doesn't find it. Else this is what it does.
    """
    data = classic(rows)
    made = pandas_udf(function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)  # type: ignore[call-overload]  # a kind of its own
    mapped = data._jdf.mapInArrow(made(*(data[quoted(name)] for name in data.columns))._jc, False, None)
    return ClassicDataFrame(mapped, data.sparkSession)
