"""Data frames of the driver's own session, and columns of any name in them."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everyone who writes PySpark calls it
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from keyhole.errors import Unsupported


def classic(data: DataFrame) -> ClassicDataFrame:
    """The data frame, as one whose plans can be looked into.

    Raises:
        Unsupported: It belongs to Spark Connect.
    """
    if not isinstance(data, ClassicDataFrame):
        raise Unsupported(
            "queryable states need the driver's own Spark session, and Spark Connect gives none: run the job with "
            "spark-submit, or start the session in the job's process"
        )
    return data


def column(name: str) -> Column:
    """The column of exactly this name, whatever characters it has."""
    return F.col(quoted(name))


def quoted(name: str) -> str:
    """The name as Spark reads it where a name may have parts."""
    return "`" + name.replace("`", "``") + "`"
