"""What a dashboard consists of, as far as Keyhole's need it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Kind(enum.StrEnum):
    """Of a panel, by Grafana's names."""

    STAT = "stat"
    GRAPH = "timeseries"
    TABLE = "table"
    HEATMAP = "heatmap"


@dataclass(frozen=True)
class Query:
    """`legend`: labels as {{label}}, without the release's; in a table: the column's name. `unit`: of that column."""

    expression: str
    legend: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Panel:
    """A graph, a number, or a table.

    Attributes:
        description: What it shows, and what is right.
        unit: By Grafana's id.
        width: Of 24 columns; height likewise in Grafana's rows.
        thresholds: From which value on which colour; below the first: green. None: a graph has none.
        stacked: The series are drawn on top of each other.
        columns: In a table, the columns' names by label; those of the release stand before them.
    """

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Kind = Kind.GRAPH
    width: int = 8
    height: int = 8
    thresholds: Mapping[float, str] = field(default_factory=dict)
    stacked: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """What may be chosen above the panels: values of the label of that name.

    Attributes:
        metric: One that has the label.
        single: Exactly one is chosen; else one, several, or all.
        within: Further variables: only what there is in their choice is offered.
    """

    label: str
    title: str
    metric: str
    single: bool = False
    within: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dashboard:
    """`name`: of its file, and behind `keyhole-` in its address. `variables`: beside those of the release."""

    name: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]


def number(
    title: str,
    description: str,
    expression: str,
    unit: str = "short",
    thresholds: Mapping[float, str] | None = None,
    width: int = 4,
) -> Panel:
    """One number, large."""
    return Panel(title, description, (Query(expression),), unit, Kind.STAT, width, 4, thresholds or {})


def graph(
    title: str,
    description: str,
    *queries: Query,
    unit: str = "short",
    width: int = 8,
    thresholds: Mapping[float, str] | None = None,
    stacked: bool = False,
) -> Panel:
    """Series over time."""
    return Panel(title, description, queries, unit, Kind.GRAPH, width, 8, thresholds or {}, stacked)
