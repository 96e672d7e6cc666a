"""A state as DuckDB reads it: an Arrow dataset whose scan asks for the columns and rows that are wanted."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from keyhole.client.sql_result import StateScanned
from keyhole.encoding.arrow_entries import entry_batch, entry_schema
from keyhole.errors import DeadlineExceeded, KeyholeError, ValueMismatch
from keyhole.model.predicates import Predicate
from keyhole.model.read import KeyedEntry
from keyhole.model.selection import Selection
from keyhole.model.state import StateDescriptor
from keyhole.sql.pushdown import Pushed, pushed


@dataclass
class QueryReading:
    """What the scans of one query have in common.

    Attributes:
        seconds: That it may take, from now on.
        scans: What was asked, as it is asked.
        failed: What the first scan that failed has met: DuckDB only has its text.
    """

    seconds: float
    scans: list[StateScanned] = field(default_factory=list)
    failed: KeyholeError | None = None

    def __post_init__(self) -> None:
        self._until = time.monotonic() + self.seconds

    def left(self) -> float:
        """How many seconds are left of its time; below 0: it is over."""
        return self._until - time.monotonic()

    def check_time(self) -> float:
        """The same. Raises DeadlineExceeded: it is over."""
        left = self.left()
        if left <= 0:
            raise self.took_too_long()
        return left

    def took_too_long(self) -> DeadlineExceeded:
        """The error of a query whose time is over."""
        return DeadlineExceeded(
            f"the query has taken longer than {self.seconds:g} s; give it more time, or ask for less"
        )


class QueriedStates(Protocol):
    """Where the states are that a query names."""

    def names(self, application: str) -> Iterable[str]:
        """The states of an application. Raises KeyholeError."""

    def datasets(self, paths: Mapping[str, str], reading: QueryReading) -> Mapping[str, EntryDataset]:
        """What DuckDB reads, for each name that the query has of a state: by application/state.

        Raises:
            KeyholeError: There is no such state, or it can't be read now.
        """


class EntryDataset(ds.Dataset, ABC):  # type: ignore[misc]  # ships no types
    """See the module's text. Used by DuckDB's threads.

    Args:
        epoch: As of which it is read; 0: the last one.
        reading: The query's.

    Raises:
        ValueMismatch: DuckDB can't tell two of its columns apart, or a key's from a value's.
    """

    def __init__(self, descriptor: StateDescriptor, epoch: int, reading: QueryReading) -> None:
        # Arrow's own is not made: there is no C++ dataset behind this one.
        self._descriptor = descriptor
        self._epoch = epoch
        self._reading = reading
        self._schema = entry_schema(descriptor)
        _check_names(descriptor.path, self._schema)

    @property
    def schema(self) -> pa.Schema:
        """Of an entry: key, map key, value."""
        return self._schema

    def scanner(
        self,
        columns: list[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - Arrow's word
        **_: Any,
    ) -> EntryScanner:
        """What DuckDB asks for before it reads."""
        wanted = self._schema.names if columns is None else list(columns)
        asked = Pushed(None, frozenset()) if filter is None else pushed(filter, self._schema, self._descriptor)
        scanned = StateScanned(
            self._descriptor.path,
            self._epoch,
            tuple(wanted),
            asked.where,
            "" if filter is None else str(filter),
            indexes=self._indexes(asked.where),
            by_key=self._by_key(asked.where),
        )
        self._reading.scans.append(scanned)
        return EntryScanner(self, wanted, filter, asked, scanned)

    def _indexes(self, where: Predicate | None) -> tuple[str, ...]:
        """The fields by whose index rows can be found."""
        return ()

    def _by_key(self, where: Predicate | None) -> bool:
        """Whether a range of keys alone is read."""
        return False

    def batches(self, columns: list[str], asked: Pushed, scanned: StateScanned) -> Iterator[pa.RecordBatch]:
        """Entries with these columns. Raises as `pages`."""
        of, named = self._descriptor, set(columns)
        fields = tuple(one.name for one in of.value.fields if one.name in named)
        schema = pa.schema([self._schema.field(name) for name in columns])
        select = Selection(asked.where, fields or None, keys_only=not fields)
        try:
            for entries in self._pages(select):
                scanned.entries += len(entries)
                yield entry_batch(entries, of, schema)
        except KeyholeError as error:
            self._reading.failed = self._reading.failed or error
            raise

    @abstractmethod
    def _pages(self, select: Selection) -> Iterator[Sequence[KeyedEntry]]:
        """All entries that are selected, some at a time. Raises KeyholeError, and DeadlineExceeded as the query."""


def _check_names(state: str, fields: Iterable[pa.Field], of: str = "the columns") -> None:
    """Refuses names that are one to DuckDB, also in structs: it would give the values of the first for the second."""
    known: dict[bytes, str] = {}
    for field_ in fields:
        # As DuckDB compares names: of all letters, those of ASCII alone have no case.
        if (other := known.setdefault(field_.name.encode().lower(), field_.name)) != field_.name:
            raise ValueMismatch(
                f"state {state} has {of} {other!r} and {field_.name!r}, which are one name to DuckDB: it would give "
                "the values of the first for the second. Read it by a scan, as scan_all(...).to_arrow()",
                column=field_.name,
            )
        for kind in _structs(field_.type):
            _check_names(state, kind, f"in {field_.name!r} the fields")


def _structs(of: pa.DataType) -> Iterator[pa.StructType]:
    if pa.types.is_struct(of):
        yield of
    elif pa.types.is_nested(of):
        for at in range(of.num_fields):
            yield from _structs(of.field(at).type)


class EntryScanner(ds.Scanner):  # type: ignore[misc]  # ships no types
    """One scan of a state, as DuckDB reads it: once."""

    def __init__(
        self,
        dataset: EntryDataset,
        columns: list[str],
        filter: pc.Expression | None,  # noqa: A002 - Arrow's word
        asked: Pushed,
        scanned: StateScanned,
    ) -> None:
        self._dataset = dataset
        self._columns = columns
        self._filter = filter
        self._asked = asked
        self._told = scanned

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
        for batch in self._dataset.batches([*self._columns, *extra], self._asked, self._told):
            if self._filter is None:
                yield batch
                continue
            left = pa.Table.from_batches([batch]).filter(self._filter).select(self._columns)
            yield from left.to_batches()
