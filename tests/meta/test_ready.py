"""Whatever is decoded to by its type is ready for any thread: keyhole/hints.py says why."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"src/keyhole": "keyhole", "services": "services", "jobs": "jobs"}
# By the module: a parameter, and the types that it stands for.
PARAMETERS = {
    "keyhole.protocol.control": (
        "kind",
        {
            "OpenedRecord",
            "GenerationRecord",
            "QueryRecord",
            "CompleteRecord",
            "AssignmentRecord",
            "GrantRecord",
            "SavepointRecord",
        },
    ),
    "keyhole.encoding.earlier_rows": ("kind", set()),  # of a scalar, which is stored as a built-in type
    "keyhole.encoding.row_fields": ("kind", set()),  # likewise, or made ready where it is made
    "keyhole.encoding.toml_text": ("kind", set()),  # of what calls `decode_toml`, which is looked at there
    "keyhole.protocol.receipts": ("cls", {"PartitionReceipt"}),
    "keyhole.client.typed_values": ("to", set()),  # a reader's own, made ready when the handle is made
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "msgspec" in (text := path.read_text()):
                name = ".".join((package, *path.relative_to(ROOT / folder).with_suffix("").parts))
                yield name.removesuffix(".__init__"), ast.parse(text)


def decoded_to(tree: ast.Module) -> Iterator[ast.expr]:
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "decode_toml":
            yield call.args[1]
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            if call.func.attr == "decode":
                yield from (keyword.value for keyword in call.keywords if keyword.arg == "type")
            if ast.unparse(call.func) == "msgspec.convert":
                yield call.args[1]


def types(kind: ast.expr, module: ModuleType) -> Iterator[type]:
    """Of all names in it; one that isn't a type of the module must be its listed parameter."""
    parameter, _ = PARAMETERS.get(module.__name__, ("", ()))
    for name in ast.walk(kind):
        if isinstance(name, ast.Name) and name.id != parameter:
            found = getattr(module, name.id, getattr(builtins, name.id, None))
            assert isinstance(found, type), f"what is {name.id}? If a parameter, list what it stands for in PARAMETERS"
            yield found


USES = [(name, kind) for name, tree in modules() for kind in decoded_to(tree)]


def test_there_are_some() -> None:
    assert len(USES) > 10


@pytest.mark.parametrize(("name", "kind"), USES, ids=[f"{name}-{ast.unparse(kind)}" for name, kind in USES])
def test_what_is_decoded_to_is_ready(name: str, kind: ast.expr) -> None:
    for found in types(kind, importlib.import_module(name)):
        if issubclass(found, msgspec.Struct):
            assert inspect.getsource(found).startswith("@ready\n"), f"{found} is not @ready"


@pytest.mark.parametrize(("name", "expected"), [(name, to) for name, (_, to) in PARAMETERS.items()], ids=PARAMETERS)
def test_parameters_are_of_types_that_are_ready(name: str, expected: set[str]) -> None:
    own = [kind for kind in vars(importlib.import_module(name)).values() if getattr(kind, "__module__", "") == name]
    classes = [kind for kind in own if isinstance(kind, type)]
    assert {kind.__name__ for kind in classes if inspect.getsource(kind).startswith("@ready\n")} == expected
