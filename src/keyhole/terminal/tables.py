"""Rows for a person, as wide as the terminal is: a table where its columns have room, else lines for each row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from keyhole import Source
from keyhole.terminal.written_out import written_out

# Of the one column that may be folded. With fewer, values stand in it letter by letter.
_LEAST_FOLDED = 30
TIMES = {"commit_age_seconds": "committed", "staleness_seconds": "age"}
"""What a person calls the times of an answer, by the names that they have for programs: see docs/reads-reference.md."""
# By the names that fields have for programs.
_SAID = {
    **TIMES,
    "lag_epochs": "lag",
    "lag_updates": "updates behind",
    "updates_lag_seconds": "for",
    "restored_records": "restored",
}
_OF = {"key_groups": "all_key_groups", "restored_records": "records_to_restore"}
_FRAME = 3  # a border and two blanks, for each column; and one border more


def age(source: Source, now: datetime) -> str:
    """How long ago it was that the copy held all that was complete; docs/reads-reference.md says how it differs from
    how long ago its epoch was committed.
    """
    return "-" if source.as_of is None else f"{max(0.0, (now - source.as_of).total_seconds()):.1f} s"


def as_said(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of numbers for programs, with their units in their names, as a person says it: `4 of 8`, `0.3 s`."""
    said: dict[str, Any] = {}
    for name, value in row.items():
        if name in _OF.values():
            continue
        whole = row.get(_OF.get(name, ""))
        if whole is not None:
            value = f"{value:,} of {whole:,}" if whole else None
        elif name.endswith("_seconds") and value is not None:
            value = f"{value:.1f} s"
        said[_SAID.get(name, name)] = value
    return said


def show(console: Console, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Prints them. What isn't a terminal, a pipe say, has as much room as a row takes: one line.

    Args:
        rows: Same fields in each row; nothing but the title where there are none.
    """
    title = written_out(title)
    if not rows:
        console.print(f"{title}: none", markup=False, soft_wrap=True)
        return
    console.print(title, style="italic", markup=False, soft_wrap=True)
    cells = [[_shown(value) for value in row.values()] for row in rows]
    names = list(rows[0])
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    whole = sum(widths) + _FRAME * len(widths) + 1
    if not console.is_terminal:
        console = Console(file=console.file, width=whole)
    console.print(laid_out(names, cells, widths, console.width))


def laid_out(names: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int], room: int) -> RenderableType:
    """A table that has at most its widest column folded, or the rows one below the other.

    Args:
        names: Of the columns.
        cells: Of each row.
        widths: How wide each column is, with its name.
        room: How wide all may be.
    """
    widest = max(range(len(widths)), key=widths.__getitem__)
    others = sum(widths) - widths[widest] + _FRAME * len(widths) + 1
    if others + min(widths[widest], _LEAST_FOLDED) <= room:
        return _table(names, cells, folded=widest)
    blocks: list[RenderableType] = []
    for row in cells:
        block = Table.grid(padding=(0, 2))
        block.add_column(no_wrap=True, style="bold")
        block.add_column(overflow="fold")
        for name, cell in zip(names, row, strict=True):
            block.add_row(Text(f"  {name}"), Text(cell))
        blocks += [block, Text()]
    return Group(*blocks)


def _table(names: Sequence[str], cells: Sequence[Sequence[str]], folded: int) -> Table:
    table = Table()
    for number, name in enumerate(names):
        table.add_column(name, overflow="fold", no_wrap=number != folded)
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if value is None:
        return "-"
    return written_out(value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False))
