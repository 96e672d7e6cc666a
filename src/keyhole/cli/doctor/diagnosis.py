"""What a look at something says: a line each. Pure."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Level(enum.StrEnum):
    """How good or bad it is. SKIPPED: it was not looked at, and the line says how it would be."""

    OK = "ok"
    SKIPPED = "skipped"
    WARNING = "warning"
    FAULT = "fault"


class Diagnosis(NamedTuple):
    """One line.

    Attributes:
        about: What was looked at: "proxy 127.0.0.1:7400", "topic keyhole.shop.totals".
        says: What was found.
        todo: What to do; empty where there is nothing.
    """

    level: Level
    about: str
    says: str
    todo: str = ""


def ok(about: str, says: str) -> Diagnosis:
    """It is as it should be."""
    return Diagnosis(Level.OK, about, says)


def skipped(about: str, says: str, todo: str = "") -> Diagnosis:
    """It was not looked at."""
    return Diagnosis(Level.SKIPPED, about, says, todo)


def warning(about: str, says: str, todo: str) -> Diagnosis:
    """It works, and may not tomorrow, or not for everybody."""
    return Diagnosis(Level.WARNING, about, says, todo)


def fault(about: str, says: str, todo: str) -> Diagnosis:
    """It does not work as it is."""
    return Diagnosis(Level.FAULT, about, says, todo)
