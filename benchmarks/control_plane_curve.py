"""Draws what `benchmarks.control_plane` has measured.

    uv run python -m benchmarks.control_plane_curve OUT.svg FILE.jsonl [BEFORE.jsonl]

A column for each axis, processor time above and bytes below, both axes in powers. The number behind a step is the
exponent that its points have: 1 is linear. Dashed, and in the same colour, is what another file has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.control_plane import AXES, TOGETHER, exponents

COLORS = {
    "first assignment": "#4c78a8",
    "heartbeat": "#f58518",
    "epoch": "#54a24b",
    "a server's loss": "#e45756",
    "a server's restart": "#b279a2",
    "a proxy's start": "#9d755d",
    "scrape": "#72b7b2",
}
ROWS = {"cpu_seconds": "processor time, ms", "bytes": "sent, KiB"}
_SCALES = {"cpu_seconds": 1000.0, "bytes": 1 / 1024}

Line = Mapping[str, Any]


def main(arguments: Sequence[str]) -> None:
    """Draws all charts, and writes them as one picture."""
    out, *files = arguments
    measured, *before = [_lines(Path(file)) for file in files]
    mpl.rcParams.update({"svg.hashsalt": "keyhole", "svg.fonttype": "none", "font.size": 9})
    figure, axes = plt.subplots(len(ROWS), len(AXES), figsize=(13, 7.6), squeeze=False, constrained_layout=True)
    for row, figure_name in enumerate(ROWS):
        for column, axis in enumerate(AXES):
            _draw(axes[row][column], axis, figure_name, measured, before[0] if before else [])
    figure.savefig(out, metadata={"Date": None})


def _lines(file: Path) -> list[Line]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line for line in lines if line.get("axis") in AXES]


def _draw(on: Axes, axis: str, figure: str, measured: Sequence[Line], before: Sequence[Line]) -> None:
    slopes = exponents(measured)[axis]
    for step, color in COLORS.items():
        slope = slopes.get(step, {}).get(figure)
        if slope is None:
            continue
        on.plot(*_points(measured, axis, step, figure), "o-", color=color, markersize=3, label=f"{step}, {slope:.1f}")
        if before and figure == "cpu_seconds":
            on.plot(*_points(before, axis, step, figure), "--", color=color, linewidth=0.9)
    across = [_size(line, axis) for line in measured if line["axis"] == axis]
    on.set(xscale="log", yscale="log", xlabel=axis.replace("_", " "), ylabel=ROWS[figure])
    on.set_xticks(across, [f"{of:,}" for of in across])
    on.minorticks_off()
    on.legend(fontsize=6.5, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)


def _size(line: Line, axis: str) -> int:
    size: int = line["servers" if axis == TOGETHER else axis]
    return size


def _points(lines: Sequence[Line], axis: str, step: str, figure: str) -> tuple[list[int], list[float]]:
    of_axis = [line for line in lines if line["axis"] == axis]
    return (
        [_size(line, axis) for line in of_axis],
        [line["steps"][step][figure] * _SCALES[figure] for line in of_axis],
    )


if __name__ == "__main__":
    main(sys.argv[1:])
