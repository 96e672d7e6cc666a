"""What import-linter's contracts leave open: a new module must not escape those that list modules by name, and no two
files import each other.
"""

from __future__ import annotations

import ast
import graphlib
import pkgutil
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

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


def _modules() -> Mapping[str, Path]:
    """Each file of the library, the services and the jobs by its module's name."""
    found = {}
    for folder, root in (("src/keyhole", ROOT / "src"), ("services", ROOT), ("jobs", ROOT)):
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def _imported(source: str, modules: Mapping[str, object]) -> Iterator[str]:
    """The modules among these that a file imports, wherever in it that is, and if for types alone."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            for name in node.names:
                below = f"{node.module}.{name.name}"
                yield below if below in modules else node.module


def _check_no_cycle(imports: Mapping[str, set[str]]) -> None:
    """Raises graphlib.CycleError, with the modules of one."""
    graphlib.TopologicalSorter(imports).prepare()


def test_no_file_imports_one_that_imports_it_not_even_in_a_function() -> None:
    modules = _modules()
    imports = {name: {*_imported(file.read_text(), modules)} - {name} for name, file in modules.items()}
    _check_no_cycle(imports)


def test_a_circle_is_found_through_functions_and_types() -> None:
    sources = {
        "a": "from a import b",
        "a.b": "if TYPE_CHECKING:\n    import a.c",
        "a.c": "def of():\n    from a.b import D, e",
    }
    imports = {name: {*_imported(source, sources)} - {name} for name, source in sources.items()}
    assert imports == {"a": {"a.b"}, "a.b": {"a.c"}, "a.c": {"a.b"}}
    with pytest.raises(graphlib.CycleError):
        _check_no_cycle(imports)
