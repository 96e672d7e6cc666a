"""Draws what `benchmarks.executor_memory` has measured.

    uv run python -m benchmarks.memory_curve OUT.svg TITLE=FILE.csv ...

One chart for each file, one above the other, in MiB over minutes. A line is the limit; a cross on it is where the
kernel has killed a process.
"""

from __future__ import annotations

import csv
import itertools
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

PARTS = {"heap": "the JVM's heap", "java": "the JVM beside its heap", "python": "Python"}
# MiB of mapped files, which count in a process and need not in its group.
_SHARED = 100
COLORS = ("#4c78a8", "#f58518", "#54a24b")


def main(arguments: list[str]) -> None:
    """Draws a chart below the other of each measurement, and writes them as one picture."""
    out, *charts = arguments
    mpl.rcParams.update({"svg.hashsalt": "keyhole", "svg.fonttype": "none", "font.size": 9})
    figure, axes = plt.subplots(len(charts), 1, figsize=(8, 2.6 * len(charts)), squeeze=False, constrained_layout=True)
    for (axis,), chart in zip(axes, charts, strict=True):
        title, _, file = chart.rpartition("=")
        _draw(axis, title, Path(file))
    figure.savefig(out, metadata={"Date": None})


def _draw(axis: Axes, title: str, file: Path) -> None:
    with file.open(newline="") as rows:
        samples = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(rows)]
    # A process that the JVM has forked at that moment, with all of its memory, is none of Python's.
    samples = [of for of in samples if sum(of[part] for part in PARTS) < 1.25 * of["working"] + _SHARED]
    minutes = [sample["seconds"] / 60 for sample in samples]
    shares = [[sample[part] for sample in samples] for part in PARTS]
    axis.stackplot(minutes, shares, labels=list(PARTS.values()), colors=COLORS, alpha=0.85)
    axis.plot(minutes, [sample["working"] for sample in samples], color="black", linewidth=0.9, label="counted in all")
    limit = samples[0]["limit"]
    axis.axhline(limit, color="#e45756", linewidth=1.2, label=f"limit, {limit:.0f}")
    kills = [
        sample["seconds"] / 60 for before, sample in itertools.pairwise(samples) if sample["killed"] > before["killed"]
    ]
    axis.plot(kills, [limit] * len(kills), "x", color="#e45756", markersize=8, label=f"killed, {len(kills)}")
    axis.set(title=title, xlabel="minutes", ylabel="MiB", xlim=(0, minutes[-1]), ylim=(0, limit * 1.12))
    axis.legend(loc="lower right", fontsize=7, ncols=3)


if __name__ == "__main__":
    main(sys.argv[1:])
