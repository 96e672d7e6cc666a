"""What a SQL query over states gives: its rows, and what the servers were asked for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keyhole.client.arrow_tables import data_frame, polars_frame
from keyhole.errors import ValueMismatch
from keyhole.model.predicates import Predicate

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class StateScanned:
    """What a query has asked of one state.

    Attributes:
        state: APPLICATION/STATE.
        epoch: As of which; 0: the last one of each key group.
        columns: That were asked for.
        where: What the servers have tested; None: nothing.
        filter: What was tested of the rest here; empty: nothing.
        entries: That the servers have sent, so far.
        indexes: The fields by whose index servers can find the rows, where that pays.
        by_key: Servers read a range of keys alone, by what is asked of the first columns of the key.
    """

    state: str
    epoch: int
    columns: tuple[str, ...]
    where: Predicate | None
    filter: str
    entries: int = 0
    indexes: tuple[str, ...] = ()
    by_key: bool = False


@dataclass(frozen=True)
class SqlResult:
    """The rows of a query. Iterable: tuples, in the order of `columns`.

    Attributes:
        table: The rows as Arrow has them.
        scans: What was asked of each state, in order.
        plan: How DuckDB runs it, as text.
    """

    table: pa.Table
    scans: Sequence[StateScanned] = field(repr=False)
    plan: str = field(repr=False)

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in their order."""
        names: list[str] = self.table.schema.names
        return names

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for batch in self.table.to_batches():
            try:
                columns = [column.to_pylist() for column in batch.columns]
            except (OverflowError, ValueError):
                raise ValueMismatch(
                    "the result has a date or a time that Python has not, of no year from 1 to 9999: cast it to text"
                ) from None
            yield from zip(*columns, strict=True)

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self.table

    def to_pandas(self, **options: Any) -> Any:
        """The rows as a pandas DataFrame, with the types of AsyncStateScan.to_pandas. Needs the extra `pandas`.

        Args:
            options: Of pyarrow's Table.to_pandas.
        """
        return data_frame(self.table, **options)

    def to_polars(self) -> Any:
        """The rows as a polars DataFrame. Needs the extra `polars`."""
        return polars_frame(self.table)
