"""A live state as a data frame of a batch job, in Spark's own words.

    orders = spark.read.format("keyhole").option("proxy", "localhost:7400").load("shop/orders")
    orders.join(customers, "customer").where("spent > 100").show()

Spark finds it by its name (src/pyspark_keyhole); docs/spark-reading.md has its options. What it is made of is imported
once it is used: Spark imports this module to learn of the name, in every session.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from keyhole.spark.worker.state_reading import StateToRead


class TaskKeyGroups(InputPartition):
    """What one task reads.

    Attributes:
        first, stop: From which key group on, and before which one.
        epoch: As of which; 0: the last one of each key group.
    """

    def __init__(self, first: int, stop: int, epoch: int) -> None:
        super().__init__((first, stop))
        self.first, self.stop, self.epoch = first, stop, epoch


class StateSource(DataSource):
    """All entries of a state: the columns of the key, of the map key (of a list: `position`), and the value's."""

    @classmethod
    def name(cls) -> str:
        """The word that `spark.read.format` is given for it."""
        return "keyhole"

    def schema(self) -> StructType:
        """The state's columns. Asks the proxy.

        Raises:
            InvalidConfiguration: An option is missing, or is none.
            UnknownApplication, UnknownState: There is no such state.
        """
        from keyhole.spark.worker.state_reading import options_of

        return options_of(self.options).columns()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the state.

        Args:
            schema: Its columns, or some of them, by name: the others of the value are not sent.

        Raises:
            InvalidConfiguration: An option is none, or the state has no such column.
        """
        from keyhole.spark.worker.state_reading import options_of

        return StateReader(options_of(self.options).reading(schema))


class StateReader(DataSourceReader):
    """Reads a state key group by key group.

    Spark's filters are Spark's. It would give them to a `pushFilters` here, and Spark 4.2.0 then has the next query of
    the same data frame, which has no filter, read what this one has left: wrong rows. A test waits for that to change.
    """

    def __init__(self, reading: StateToRead) -> None:
        self._reading = reading

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks' key groups, and the epoch as of which all of them read. In the driver, once for each read.

        Raises:
            KeyholeError: As Client.snapshot.
        """
        epoch, parts = self._reading.planned()
        return [TaskKeyGroups(part.start, part.stop, epoch) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of some key groups. In a task.

        Raises:
            EpochGone: The epoch is no longer kept: the read took longer than the state's `keep_epochs` are.
            KeyholeError: As Client.scan_all.
        """
        assert isinstance(partition, TaskKeyGroups)
        yield from self._reading.batches(range(partition.first, partition.stop), partition.epoch)
