"""Puts each key group into one partition: uses the shuffle that the batch already had, or adds one."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everyone who writes PySpark calls it
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from keyhole.spark.driver.data_frames import quoted
from keyhole.spark.driver.layout import HashLayout


def partitions_for(key_groups: int, wanted: int) -> int:
    """The largest divisor of `key_groups` that is at most `wanted` (at least 1)."""
    return next(n for n in range(min(key_groups, max(wanted, 1)), 0, -1) if key_groups % n == 0)


def by_key_group(
    batch: ClassicDataFrame, layout: HashLayout | None, key: Sequence[str], key_groups: int
) -> tuple[DataFrame, int]:
    """The batch so partitioned that every key group is in one partition, and the number of partitions.

    Args:
        layout: What `layout_of` says of it.

    Returns:
        The batch itself where its partitions are already so; else one more shuffle, over `shuffle_partitions`.
    """
    if layout is not None and layout.has_key_groups(key, key_groups):
        return batch, layout.partitions
    partitions = shuffle_partitions(batch, key_groups)
    # Not repartition(partitions, key): where the plan has a shuffle by the same expressions and number already, Spark
    # drops that one as redundant, and then coalesces the other (seen with Spark 4.2). What says outright which
    # partition a row belongs to is neither dropped nor coalesced.
    partition = F.expr(f"pmod(hash({', '.join(map(quoted, key))}), {partitions})")
    return batch.repartitionById(partitions, partition), partitions


def shuffle_partitions(batch: ClassicDataFrame, key_groups: int) -> int:
    """The largest divisor of `key_groups` that is at most `spark.sql.shuffle.partitions`."""
    return partitions_for(key_groups, int(batch.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1))
