"""Makes the settings in the chart's README from the comments of values.yaml: `python charts/generate_readme.py`.

The comment right above a key is its description; what stands above it after an empty line is for who reads the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CHART = Path(__file__).resolve().parent / "keyhole"
BEGIN, END = "<!-- made of values.yaml by charts/generate_readme.py: begin -->", "<!-- end -->"

_KEY = re.compile(r"^( *)([A-Za-z]\w*):(?: +(.*))?$")
_COMMENT = re.compile(r"^ *# ?(.*)$")


class Setting(NamedTuple):
    """A key of values.yaml. `default`: as written there; None: it has further settings below it."""

    path: tuple[str, ...]
    default: str | None
    description: str


def settings(values: str) -> Iterator[Setting]:
    """All keys, in the file's order.

    Raises:
        ValueError: A line that is neither key, comment nor empty: the file is kept simple enough to be read so.
    """
    comment: list[str] = []
    above: list[tuple[int, str]] = []
    lines = values.splitlines()
    for number, line in enumerate(lines):
        if not line.strip():
            comment = []
        elif of_comment := _COMMENT.match(line):
            comment.append(of_comment[1])
        elif key := _KEY.match(line):
            indent = len(key[1])
            above = [parent for parent in above if parent[0] < indent] + [(indent, key[2])]
            following = next((after for after in lines[number + 1 :] if after.strip()), "")
            is_parent = not key[3] and len(following) - len(following.lstrip()) > indent
            default = None if is_parent else key[3] or ""
            yield Setting(tuple(name for _, name in above), default, " ".join(comment))
            comment = []
        else:
            raise ValueError(f"values.yaml, line {number + 1}: not key: value")


def table(values: str) -> str:
    """The settings as Markdown: a heading for each top-level key."""
    lines: list[str] = []
    for setting in settings(values):
        name = ".".join(setting.path)
        if len(setting.path) == 1:
            lines += ["", f"### {name}", *([setting.description] if setting.description else [])]
            lines += ["", "| setting | default | |", "|---|---|---|"]
        if setting.default is not None:
            default = f"`{setting.default}`" if setting.default else "none"
            description = setting.description if len(setting.path) > 1 else ""
            lines.append(f"| `{name}` | {default} | {description} |".replace("|  |", "| |"))
        elif len(setting.path) > 1 and setting.description:
            lines.append(f"| `{name}` | | {setting.description} |")
    return "\n".join(lines).strip()


def generated(readme: str, values: str) -> str:
    """The README with the table as it should be now."""
    head, _, rest = readme.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{table(values)}\n\n{END}{tail}"


if __name__ == "__main__":
    readme = CHART / "README.md"
    readme.write_text(generated(readme.read_text(), (CHART / "values.yaml").read_text()))
