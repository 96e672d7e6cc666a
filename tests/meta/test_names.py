"""One name, one thing: in the library and the services no two classes have the same name, nor a class and a public type
alias, and no two modules, but those that their folders tell apart."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A fake has the name of what it stands for.
FAKES = ("src/keyhole/testing/",)


def _classes(tree: ast.Module) -> Iterator[str]:
    """The names of classes, also of those that begin with an underscore, and of public aliases; without it."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name.lstrip("_")
        elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.Subscript, ast.BinOp)):
            for target in node.targets:
                # A constant is in capitals, a type variable has another value.
                if isinstance(target, ast.Name) and target.id[0].isupper() and not target.id.isupper():
                    yield target.id


def test_no_name_of_a_class_is_used_twice() -> None:
    found = defaultdict(list)
    for folder in ("src/keyhole", "services"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            path = str(file.relative_to(ROOT))
            if not path.startswith(("src/keyhole/v1/", *FAKES)):
                for name in _classes(ast.parse(file.read_text())):
                    found[name].append(path)
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


# Which of several it is, the folder says: the counts of the coordinator, and those of the proxy.
OF_A_FOLDER = {"app", "base", "counts", "engine", "errors", "metrics"}


def test_no_name_of_a_module_is_used_twice_with_two_meanings() -> None:
    found = defaultdict(list)
    for folder in ("src/keyhole", "services"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            path = str(file.relative_to(ROOT))
            if not path.startswith(("src/keyhole/v1/", *FAKES)) and not file.stem.startswith("__"):
                found[file.stem].append(path)
    twice = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert {name: paths for name, paths in twice.items() if name not in OF_A_FOLDER} == {}
    assert OF_A_FOLDER - twice.keys() == set(), "these stand only once by now"
