"""No file becomes a hall: one of production code, or of a benchmark, has at most 400 lines.

Of what was cut once because everything went through it, a class has at most 250.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "services", "jobs", "charts", "benchmarks")
GENERATED = ROOT / "src" / "keyhole" / "v1"
MOST_LINES, MOST_OF_A_CLASS = 400, 250
CUT_ONCE = {
    "QueryHost": "services/state_server/host.py",
    "Coordinator": "src/keyhole/coordinator/coordinator.py",
    "QueryRun": "src/keyhole/coordinator/run.py",
    "Forwarding": "src/keyhole/client/routing/frame.py",
    "ProxyServicer": "services/client_proxy/grpc/query_servicer.py",
    "Sink": "src/keyhole/spark/sink.py",
    "Table": "services/state_server/read/table.py",
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_has_more_than_400_lines(folder: str) -> None:
    lines = {
        str(file.relative_to(ROOT)): len(file.read_text().splitlines())
        for file in (ROOT / folder).rglob("*.py")
        if not file.is_relative_to(GENERATED) and "node_modules" not in file.parts
    }
    assert lines
    assert {file: count for file, count in lines.items() if count > MOST_LINES} == {}, (
        "cut it where it has two subjects"
    )


@pytest.mark.parametrize(("name", "file"), CUT_ONCE.items())
def test_no_class_that_was_cut_has_grown_again(name: str, file: str) -> None:
    (found,) = [
        node
        for node in ast.parse((ROOT / file).read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    assert found.end_lineno is not None
    assert found.end_lineno - found.lineno < MOST_OF_A_CLASS
