"""The entries of one key as a client gives them: a sequence, and a table where one is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyhole.client.arrow_tables import EntryTables, data_frame, polars_frame
from keyhole.errors import Unsupported
from keyhole.model.read import Entries, Entry, KeyedEntry
from keyhole.model.selection import EVERYTHING, Selection
from keyhole.model.state import StateDescriptor

if TYPE_CHECKING:
    import pyarrow as pa


class ScannedEntries(Entries, frozen=True):
    """As Entries, of which a table can be made.

    Attributes:
        key: Of which they are, as the caller gave it.
        descriptor: Of the state; None: made by hand, and no table can be made of it.
        select: What was asked for of each entry.
    """

    key: Any = None
    descriptor: StateDescriptor | None = None
    select: Selection = EVERYTHING

    def __repr__(self) -> str:
        return f"{type(self).__name__}(entries={self.entries!r}, source={self.source!r})"

    def to_arrow(self) -> pa.Table:
        """The entries as an Arrow table, in their order: a column for each of the key, of the map key (of a list
        `position`) and of the value. Needs the extra `arrow`.

        Raises:
            InvalidConfiguration: pyarrow is not installed.
            ValueMismatch: A column of the key and a field of the value have one name.
        """
        if self.descriptor is None:
            raise Unsupported("these entries were not given by a scan, so that nobody knows their columns")
        broadcast, key = not self.descriptor.scan_key, self.key
        if isinstance(key, list):
            key = tuple(key)
        if isinstance(key, tuple) and len(self.descriptor.key) == 1 and not broadcast:
            (key,) = key
        found = self._rows()
        # Of a broadcast state the entries' keys are its keys.
        entries = [
            KeyedEntry(map_key if broadcast else key, None if broadcast else map_key, value, self.source)
            for map_key, value in found
        ]
        tables = EntryTables(self.descriptor, self.select)
        return tables.table([tables.batch(entries)])

    def to_pandas(self, **options: Any) -> Any:
        """As a pandas DataFrame; see AsyncStateScan.to_pandas. Needs the extra `pandas`. Raises as `to_arrow`."""
        return data_frame(self.to_arrow(), **options)

    def to_polars(self) -> Any:
        """As a polars DataFrame. Needs the extra `polars`. Raises as `to_arrow`."""
        return polars_frame(self.to_arrow())

    def _rows(self) -> tuple[Entry, ...]:
        """Map keys, and rows as they are stored."""
        return self.entries
