"""Contracts of import-linter that list modules by name: a new one must not escape them."""

from __future__ import annotations

import pkgutil
import tomllib
from pathlib import Path

import keyhole.coordinator
import keyhole.spark

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def test_what_a_python_worker_may_not_import_is_all_of_spark_and_of_the_coordinator_but_what_it_needs() -> None:
    (contract,) = [of for of in CONTRACTS if of["name"].startswith("a Python worker has no session")]
    packages = keyhole.spark, keyhole.coordinator
    there = {f"{of.__name__}.{module.name}" for of in packages for module in pkgutil.iter_modules(of.__path__)}
    needed = {*contract["source_modules"], "keyhole.coordinator.task_stream"}
    assert there - needed == set(contract["forbidden_modules"]) - {"py4j"}
