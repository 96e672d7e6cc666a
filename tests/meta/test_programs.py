"""What tests and benchmarks hold as text, a program to start or a name to patch, imports what there is."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import re
from pathlib import Path

from tests.support.of_all import of_all

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted([*ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("src/keyhole/**/*.py")])
OURS = "keyhole|services|jobs|tests"
_IMPORTS = re.compile(rf"^\s*from ((?:{OURS})[\w.]*) import \(?([\w, ]+)", re.MULTILINE)
_NAMED = re.compile(r"(?:keyhole|services)(?:\.[A-Za-z_]\w*)+(?::\w+)?")
# Of Kafka's topics and the tests' applications, loggers, gRPC's services, and Spark's properties.
_NO_MODULES = re.compile(r"keyhole\.(v1|app|shop|image|audit|exposed|grouping_key|properties|x)\b")


@functools.cache
def _there_is(name: str) -> bool:
    """Whether a dotted name leads to a module, or to what a module has."""
    module, _, rest = name.partition(":")
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                raise
            continue
        try:
            for part in [*parts[end:], *filter(None, [rest])]:
                found = getattr(found, part)
        except AttributeError:
            return False
        return True
    return False


def _missing(text: str) -> list[str]:
    wanted = [
        f"{module}.{name.strip().split(' as ')[0].strip()}"
        for module, names in _IMPORTS.findall(text)
        for name in names.split(",")
        if name.strip()
    ]
    if _NAMED.fullmatch(text) and not _NO_MODULES.match(text):
        wanted.append(text)
    return [name for name in wanted if not name.endswith("__main__") and not _there_is(name)]


def _folder(file: Path) -> str:
    return "/".join(file.relative_to(ROOT).parent.parts[:3])


# A test for each folder: one for each file is slower than what it looks at.
@of_all(sorted({_folder(file) for file in FILES}))
def test_names_in_texts_lead_somewhere(folder: str) -> None:
    missing = {}
    for file in FILES:
        source = file.read_text() if _folder(file) == folder else ""
        if re.search(rf"[\"'\s](?:{OURS})\.", source):
            texts = [
                node.value
                for node in ast.walk(ast.parse(source))
                if isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and re.search(rf"(?:{OURS})\.", node.value)
            ]
            missing[str(file.relative_to(ROOT))] = [name for text in texts for name in _missing(text)]
    assert {file: names for file, names in missing.items() if names} == {}
