"""What `promtool test rules` is told: series, and what queries come to; and what it says."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_SECONDS = 300.0

Labels = Mapping[str, str]


def says(*arguments: str | Path) -> str:
    """What it prints, where it finds all as it should be."""
    command = ["promtool", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[:8000]
    return done.stdout


def agrees(folder: Path, tests: list[dict[str, Any]], *rules: Path) -> None:
    """That the tests, each with series of its own, come out; with these files of rules."""
    file = folder / "cases.yaml"
    content = {"rule_files": [str(path) for path in rules], "evaluation_interval": "15s", "tests": tests}
    file.write_text(yaml.safe_dump(content))
    says("test", "rules", file)


def series(metric: str, labels: Labels, values: str) -> dict[str, str]:
    """One series, and its course in promtool's notation."""
    return {"series": metric + selector(labels), "values": values}


def selector(labels: Labels) -> str:
    """As PromQL writes labels."""
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def expected(query: str, samples: Mapping[str, float], at: str) -> dict[str, Any]:
    """What a query comes to then. `samples`: by their name and labels, as PromQL writes them."""
    exp_samples = [{"labels": labels, "value": value} for labels, value in samples.items()]
    return {"expr": query, "eval_time": at, "exp_samples": exp_samples}
