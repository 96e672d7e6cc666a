"""docs/acceptance.md accounts for every case, and names only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "acceptance.md").read_text()

EXPECTED = (
    {f"F{n:02}" for n in range(1, 80)}
    | {f"F{n:02}" for n in range(80, 87)}
    | {f"K{n:02}" for n in range(1, 15)}
    | {f"U{n:02}" for n in range(1, 16)}
)


def named_cases() -> set[str]:
    cases: set[str] = set()
    for first, last in re.findall(r"^\| ([FKU]\d\d)(?:-[FKU](\d\d))? \|", PAGE, re.MULTILINE):
        end = int(last or first[1:])
        cases |= {f"{first[0]}{n:02}" for n in range(int(first[1:]), end + 1)}
    return cases


def test_every_case_has_a_row() -> None:
    assert named_cases() == EXPECTED


def test_every_row_names_a_test_or_says_why_there_is_none() -> None:
    rows = re.findall(r"^\| [FKU]\d\d.*$", PAGE, re.MULTILINE)
    assert not [row for row in rows if "`tests/" not in row and not re.match(r" none: \w", row.split("|")[3])]


def test_every_test_that_is_named_exists() -> None:
    missing = sorted({path for path in re.findall(r"`(tests/[^`]+\.py)`", PAGE) if not (ROOT / path).exists()})
    assert not missing
