"""Which dashboards there are, and their files."""

from __future__ import annotations

from pathlib import Path

from charts.dashboards import grafana, overview, reads, recovery, state

DIRECTORY = Path(__file__).resolve().parents[1] / "keyhole" / "dashboards"

DASHBOARDS = (overview.DASHBOARD, state.DASHBOARD, reads.DASHBOARD, recovery.DASHBOARD)


def files() -> dict[str, str]:
    """The text of each file, by its name."""
    return {f"{of.name}.json": grafana.text(of) for of in DASHBOARDS}
