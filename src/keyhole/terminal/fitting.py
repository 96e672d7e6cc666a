"""A table that fits: a narrow terminal gets fewer columns, without those that matter least; at last cells are cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from keyhole.terminal.byte_counts import bytes_said
from keyhole.terminal.tables import TIMES
from keyhole.terminal.written_out import written_out

_LEAST = 12
_BETWEEN = 2


def fitted(rows: Sequence[Mapping[str, Any]], room: int, most_rows: int | None = None) -> Table:
    """Without frame, and without colours but for what is not `ok` in the column `is`.

    Args:
        rows: At least one; alike, with their columns in the order of importance. Values as `shortly` says them.
        room: How wide it may be.
        most_rows: So many at most; the last line says how many there are more. None: all.
    """
    cut = list(rows if most_rows is None or len(rows) <= most_rows else rows[: max(0, most_rows - 1)])
    names = list(rows[0])
    cells = [{name: shortly(name, row[name]) for name in names} for row in cut]
    widths = {name: max([cell_len(title_of(name)), *(cell_len(of[name]) for of in cells)]) for name in names}
    while len(names) > 2 and _needed(names, widths) > room:
        names.pop()
    table = Table(box=None, pad_edge=False, padding=(0, _BETWEEN, 0, 0), collapse_padding=True)
    for name in names:
        right = name not in ("server", "state", "is", "address", "role", "started")
        table.add_column(
            title_of(name), justify="right" if right else "left", no_wrap=True, overflow="ellipsis", header_style="bold"
        )
    for of in cells:
        wrong = of.get("is", "ok") not in ("ok", "replica")
        table.add_row(*(Text(of[name], style="bold red" if wrong and name == "is" else "") for name in names))
    if len(cut) < len(rows):
        table.add_row(Text(f"and {len(rows) - len(cut):,} more"))
    return table


def _needed(names: Sequence[str], widths: Mapping[str, int]) -> int:
    """What a person can still make something of: `is` may be cut."""
    return sum(min(widths[name], 4 * _LEAST) if name == "is" else widths[name] for name in names) + _BETWEEN * len(
        names
    )


def title_of(name: str) -> str:
    """The name of a column as a person reads it: its unit stands with its values."""
    said = TIMES.get(name) or name.removesuffix("_seconds").removesuffix("_bytes").replace("_per_second", "/s")
    return said.replace("_", " ")


def shortly(name: str, value: Any) -> str:
    """A value as briefly as a person reads it; `name` says its unit: `..._seconds`, `..._bytes`, `..._per_second`."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return written_out(value)
    if name.endswith("_seconds"):
        return _duration(float(value))
    if name.endswith("bytes"):
        return bytes_said(float(value))
    if name.endswith("_per_second") or name == "cpu_cores":
        return f"{value:.1f}" if 0 < value < 10 else f"{value:,.0f}"
    return f"{value:,}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size or unit == "min":
            return f"{seconds / size:.0f} {unit}"
    raise AssertionError("a minute or more")
