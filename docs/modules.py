"""Prints what each module of a folder is, by the first sentence of its text: `uv run python docs/modules.py rpc`.

A folder is named from the root, or below src/keyhole; without one, all of the library and the services are listed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARY, SERVICES = ROOT / "src" / "keyhole", ROOT / "services"
_END = re.compile(r"(?<=\.)\s")


def module_lines(folder: Path) -> Iterator[str]:
    """A line for each module of the folder and of those in it; generated ones are left out."""
    for file in sorted(folder.rglob("*.py")):
        if not file.is_relative_to(LIBRARY / "v1"):
            text = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split())
            of = file.parent if file.stem == "__init__" else file
            yield f"{of.relative_to(folder).as_posix():<36} {_END.split(text, maxsplit=1)[0]}".rstrip()


def main(names: Iterable[str]) -> int:
    """Returns 1 where there is no such folder."""
    folders = [next((base / name for base in (ROOT, LIBRARY) if (base / name).is_dir()), None) for name in names]
    if None in folders:
        sys.stderr.write("there is no such folder; docs/architecture.md lists those of the library\n")
        return 1
    for folder in filter(None, folders or [LIBRARY, SERVICES]):
        sys.stdout.writelines(f"{line}\n" for line in module_lines(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
