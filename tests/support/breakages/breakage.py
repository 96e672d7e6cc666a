"""One breakage of the product, and which tests should notice it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[3]

Area = Literal[
    "protocol",
    "restore",
    "ttl",
    "routing",
    "security",
    "client",
    "stores",
    "kinds",
    "spark",
    "savepoint",
    "realtime",
    "up",
    "watch",
    "readers",
]
Tier = Literal["core", "spark", "processes", "fault"]


class UnfitError(Exception):
    """A breakage that can't be made, or whose tests can't be found, as the tree is now."""


@dataclass(frozen=True)
class Breakage:
    """One guard, comparison or step of the product that is not there, or is another one.

    Attributes:
        name: What the broken product does, as a part of a sentence.
        file: From the root.
        old, new: `old` is in the file exactly once.
        tests: FILE or FILE::TEST, a file by its name alone: in which folder it is may change. Where several files have
            the name, TEST says which is meant.
        tier: The cheapest one whose tests notice it.
    """

    name: str
    area: Area
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    tier: Tier = "core"

    def made_in(self, text: str) -> str:
        """The file's text, broken. Raises UnfitError."""
        found = text.count(self.old)
        if found != 1:
            raise UnfitError(f"{self.name!r}: its text is {found} times in {self.file}, not once")
        return text.replace(self.old, self.new)

    def selected(self, root: Path) -> list[str]:
        """What pytest is to run, from the root. Raises UnfitError."""
        return [self._selected(name, root) for name in self.tests]

    def _selected(self, name: str, root: Path) -> str:
        file, colons, test = name.partition("::")
        found = [path for path in (root / "tests").rglob(file) if not test or _defines(path, test)]
        if len(found) != 1:
            raise UnfitError(f"{self.name!r}: {name} is {len(found)} times below tests, not once")
        return f"{found[0].relative_to(root)}{colons}{test}"


def _defines(path: Path, test: str) -> bool:
    return all(
        re.search(rf"^\s*(async def |def |class |){re.escape(name)}\b", path.read_text(), re.MULTILINE)
        for name in test.split("::")
    )
