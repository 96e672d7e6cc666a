"""Which examples a property test has: the first third in each run, the further ones where they are asked for.

`examples(60)` is 20, the same 20 in each run. With `--further-examples` it is 40 others, the same 40 each time, and the
simplest one, with which Hypothesis always begins; CI has a stage of these. With `--thorough` it is 60, and others each
time. Half of a property test's time is what Hypothesis takes to think of its examples, so there is little else to save.
"""

from __future__ import annotations

import zlib
from enum import Enum

from hypothesis import core

FEWEST = 10


class Asked(Enum):
    """Which of its examples."""

    FIRST = "the third that each run has"
    FURTHER = "the other two thirds"
    ALL = "as many as both, drawn anew"


_asked = Asked.FIRST


def ask_for(wanted: Asked) -> None:
    """Before any test module is imported: how many they have is fixed then."""
    global _asked
    _asked = wanted


def are_first() -> bool:
    """Whether it is the third that each run has, and no more."""
    return _asked is Asked.FIRST


def draw_further(nodeid: str) -> None:
    """The examples of the next test come of its name and case. The first ones come of its code."""
    core.global_force_seed = zlib.crc32(nodeid.encode())


def examples(number: int, least: int = FEWEST) -> int:
    """How many of `number` this run has: of the first ones never fewer than `least` of what there are.

    `least` is said where a breakage (tests/support/breakages) would go unnoticed with a third. Of a test whose first
    ones are all, the further one is the simplest of them once more.
    """
    first = max(min(number, least), number // 3)
    return {Asked.FIRST: first, Asked.FURTHER: number - first + 1, Asked.ALL: number}[_asked]
