"""A batch that several states are made of: computed once, and kept until all of them have it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from keyhole.spark.driver.data_frames import renamed_columns


@contextmanager
def kept(batch: ClassicDataFrame) -> Iterator[ClassicDataFrame]:
    """The same rows in the same partitions, computed at most once within the context; itself if it is kept already."""
    if batch.is_cached:
        yield batch
        return
    names = batch.columns
    # Under other names: what foreachBatch hands out of a sorting aggregation knows the order of its rows by column ids
    # that it doesn't have, and Spark 4.2 fails to persist it ("key not found"). A projection takes the order away, and
    # one that renames nothing would be optimised away.
    renamed = renamed_columns(batch, (f"_{place}" for place in range(len(names))))
    renamed.persist()
    try:
        yield renamed_columns(renamed, names)
    finally:
        renamed.unpersist()
