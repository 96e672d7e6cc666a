"""Entries as Arrow's batches and tables, and these as data frames. pyarrow, pandas and polars are imported when they
are asked for; a missing one is named with the extra that brings it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from keyhole.encoding.selected_entries import given_descriptor
from keyhole.installing import require
from keyhole.model.read import KeyedEntry
from keyhole.model.selection import EVERYTHING, Selection
from keyhole.model.state import StateDescriptor

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_TOGETHER = 16_384
"""So many entries are put into one batch of a table, as long as more come."""


class EntryTables:
    """Makes batches and tables of the entries of one state. Thread-safe.

    Args:
        descriptor: Of the state when its scan began. A field that was added since is left out, and one that was dropped
            since is null.
        select: What the scan gives of each entry.

    Raises:
        InvalidConfiguration: pyarrow is not installed.
        ValueMismatch: A column of the key and a field of the value that is given have one name.
    """

    def __init__(self, descriptor: StateDescriptor, select: Selection = EVERYTHING) -> None:
        require("to_arrow, and what is made by it,", "arrow", ("pyarrow",))
        self._pa: Any = importlib.import_module("pyarrow")
        self._entries: Any = importlib.import_module("keyhole.encoding.arrow_entries")
        self._of = given_descriptor(descriptor, select)
        self.schema: pa.Schema = self._entries.entry_schema(self._of, with_value=not select.keys_only)

    def batch(self, entries: Iterable[KeyedEntry]) -> pa.RecordBatch:
        """Entries as they are stored, in their order.

        Raises:
            StaleDescriptor: A field is of another type now than when the scan began.
        """
        return self._entries.entry_batch(entries, self._of, self.schema)

    def table(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """All of them as one."""
        return self._pa.Table.from_batches(list(batches), self.schema)

    def reader(self, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
        """All of them, one after the other, as they are read."""
        return self._pa.RecordBatchReader.from_batches(self.schema, batches)


def check_pandas() -> None:
    """Raises InvalidConfiguration: pandas is not installed. Before anything is read for it."""
    require("to_pandas", "pandas", ("pyarrow", "pandas"))


def check_polars() -> None:
    """Raises InvalidConfiguration: polars is not installed."""
    require("to_polars", "polars", ("pyarrow", "polars"))


def data_frame(table: pa.Table, **options: Any) -> Any:
    """As a pandas DataFrame. Whole numbers and booleans keep their type beside nulls: they are pandas' Int64, boolean
    and the like; in lists and maps they are Python's. All else is as pyarrow's Table.to_pandas has it.

    Args:
        options: Of pyarrow's Table.to_pandas, as `types_mapper=pandas.ArrowDtype`.

    Raises:
        InvalidConfiguration: pandas is not installed.
    """
    check_pandas()
    pa, pandas = importlib.import_module("pyarrow"), importlib.import_module("pandas")
    nullable = {
        pa.int8(): pandas.Int8Dtype(),
        pa.int16(): pandas.Int16Dtype(),
        pa.int32(): pandas.Int32Dtype(),
        pa.int64(): pandas.Int64Dtype(),
        pa.bool_(): pandas.BooleanDtype(),
    }
    # The second is of numbers in lists, maps and structs.
    return table.to_pandas(**{"types_mapper": nullable.get, "integer_object_nulls": True, **options})


def polars_frame(table: pa.Table) -> Any:
    """As a polars DataFrame. Raises InvalidConfiguration: polars is not installed."""
    check_polars()
    return importlib.import_module("polars").from_arrow(table)
