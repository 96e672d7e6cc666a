"""A state as DuckDB reads it: an Arrow dataset whose scan asks the servers for the columns and rows that are wanted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from keyhole.client import Client
from keyhole.client.sql_result import StateScanned
from keyhole.encoding.arrow_entries import entry_batch, entry_schema
from keyhole.model.predicates import Predicate
from keyhole.model.state import StateDescriptor
from keyhole.sql.pushdown import Pushed, pushed


class StateDataset(ds.Dataset):  # type: ignore[misc]  # ships no types
    """See the module's text. Used by DuckDB's threads.

    Args:
        epoch: As of which it is read; 0: the last one.
        scanned: Gets what is asked, as it is asked.
        seconds: That one key group may take.
    """

    def __init__(
        self, client: Client, descriptor: StateDescriptor, epoch: int, scanned: list[StateScanned], seconds: float
    ) -> None:
        # Arrow's own is not made: there is no C++ dataset behind this one.
        self._client = client
        self._descriptor = descriptor
        self._epoch = epoch
        self._scanned = scanned
        self._seconds = seconds
        self._schema = entry_schema(descriptor)

    @property
    def schema(self) -> pa.Schema:
        """Of an entry: key, map key, value."""
        return self._schema

    def scanner(
        self,
        columns: list[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - Arrow's word
        **_: Any,
    ) -> StateScanner:
        """What DuckDB asks for before it reads."""
        wanted = self._schema.names if columns is None else list(columns)
        asked = Pushed(None, frozenset()) if filter is None else pushed(filter, self._schema, self._descriptor)
        told = StateScanned(
            f"{self._descriptor.application}/{self._descriptor.state}",
            self._epoch,
            tuple(wanted),
            asked.where,
            "" if filter is None else str(filter),
        )
        self._scanned.append(told)
        return StateScanner(self, wanted, filter, asked, told)

    def batches(self, columns: list[str], where: Predicate | None, told: StateScanned) -> Iterator[pa.RecordBatch]:
        """Entries with these columns. Raises as Client.scan_all."""
        of = self._descriptor
        schema = pa.schema([self._schema.field(name) for name in columns])
        named = set(columns)
        fields = [one.name for one in of.value.fields if one.name in named]
        scan = self._client.scan_all(
            of.application,
            of.state,
            as_of=self._epoch or None,
            timeout=self._seconds,
            where=where,
            fields=fields or None,
            keys_only=not fields,
        )
        with scan:
            while entries := scan.page():
                told.entries += len(entries)
                yield entry_batch(entries, of, schema)


class StateScanner(ds.Scanner):  # type: ignore[misc]  # ships no types
    """One scan of a state, as DuckDB reads it: once."""

    def __init__(
        self,
        dataset: StateDataset,
        columns: list[str],
        filter: pc.Expression | None,  # noqa: A002 - Arrow's word
        asked: Pushed,
        told: StateScanned,
    ) -> None:
        self._dataset = dataset
        self._columns = columns
        self._filter = filter
        self._asked = asked
        self._told = told

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns that are given."""
        return pa.schema([self._dataset.schema.field(name) for name in self._columns])

    def to_reader(self) -> pa.RecordBatchReader:
        """The entries, as they come."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        looked_at = self._dataset.schema.names if self._asked.columns is None else self._asked.columns
        extra = [name for name in looked_at if name not in self._columns]
        for batch in self._dataset.batches([*self._columns, *extra], self._asked.where, self._told):
            if self._filter is None:
                yield batch
                continue
            left = pa.Table.from_batches([batch]).filter(self._filter).select(self._columns)
            yield from left.to_batches()
