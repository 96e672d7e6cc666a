"""From names that states and columns have, which may be anything, to names that a program can have. Pure."""

from __future__ import annotations

import json
import keyword
import re
import unicodedata
from collections.abc import Collection

_PART = re.compile(r"[^\W_]+")
_PLAIN = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


class Spelling:
    """Gives names out, each once.

    Args:
        taken: Names that mean something else there.
    """

    def __init__(self, taken: Collection[str] = ()) -> None:
        self._taken = set(taken)

    def class_name(self, *names: str) -> str:
        """Words that begin with capitals: SensorReadings, of `sensor_readings`."""
        parts = [part for name in names for part in _parts(name)]
        return self._free("".join(part[:1].upper() + part[1:] for part in parts) or "Value")

    def constant(self, name: str) -> str:
        """Words in capitals: SENSOR_READINGS, of `sensor-readings`."""
        return self._free("_".join(_parts(name)).upper() or "STATE")

    def attribute(self, name: str) -> str:
        """The name itself where it can be one in Python, else what is left of it."""
        if name.isidentifier() and not name.startswith("_") and unicodedata.normalize("NFKC", name) == name:
            return self._free(name)
        return self._free("_".join(_parts(name)) or "field")

    def _free(self, wanted: str) -> str:
        # Of digits alone, or of digits first, no name is made.
        name = wanted if wanted.isidentifier() else f"n{wanted}"
        while name in self._taken or keyword.iskeyword(name):
            name += "_"
        self._taken.add(name)
        return name


def _parts(name: str) -> list[str]:
    return _PART.findall(unicodedata.normalize("NFKC", name))


def property_name(name: str) -> str:
    """As TypeScript has the name of a property."""
    return name if _PLAIN.fullmatch(name) else in_quotes(name)


def in_quotes(text: str) -> str:
    """A string literal of TypeScript: ASCII alone, so no line separator ends it."""
    return json.dumps(text)


def comment(text: str) -> str:
    """A text in a comment or docstring: in one line, and it can't end it."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("*/", "* /").replace('"', "'")
