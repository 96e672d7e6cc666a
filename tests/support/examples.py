"""How many examples a property test has: a third in each run, all of them where they are asked for.

Without `--all-examples`, `examples(60)` is 20, the same 20 in each run. CI has a stage with all 60. Half of a property
test's time is what Hypothesis takes to think of its examples, so there is little else to save.
"""

from __future__ import annotations

FEWEST = 10

_all = False


def ask_for_all(wanted: bool) -> None:
    """Before any test module is imported: what they ask for is fixed then."""
    global _all
    _all = wanted


def are_all() -> bool:
    """Whether they were asked for."""
    return _all


def examples(number: int, least: int = FEWEST) -> int:
    """`number` where all are asked for, else a third of it, and never fewer than `least` of what there are.

    `least` is said where a breakage (tests/support/breakages) would go unnoticed with a third.
    """
    return number if _all else max(min(number, least), number // 3)
