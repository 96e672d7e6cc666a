"""The breakages fit the tree as it is: else nobody would see that one of them breaks nothing any more."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.breakages import BREAKAGES
from tests.support.breakages.breakage import ROOT, Breakage, UnfitError
from tests.support.breakages.trial import judged
from tests.support.of_all import of_all
from tests.support.tiers import OF_FOLDER


@of_all(BREAKAGES, lambda breakage: breakage.name)
def test_its_text_is_in_its_file_once_and_the_tests_that_should_notice_it_exist(breakage: Breakage) -> None:
    whole = (ROOT / breakage.file).read_text()
    broken = breakage.made_in(whole)
    assert broken != whole
    compile(broken, breakage.file, "exec")
    assert breakage.selected(ROOT)


@of_all(BREAKAGES, lambda breakage: breakage.name)
def test_its_tier_is_that_of_the_tests_that_should_notice_it(breakage: Breakage) -> None:
    folders = {Path(test).parts[1] for test in breakage.selected(ROOT)}
    # The contract has tests that are run in several tiers, by a parameter.
    assert {OF_FOLDER[folder] for folder in folders} == {breakage.tier} or folders == {"contract"}


def test_no_two_have_one_name() -> None:
    assert not [name for name, count in Counter(of.name for of in BREAKAGES).items() if count > 1]


def test_one_whose_text_or_test_is_not_there_is_told_by_its_name(tmp_path: Path) -> None:
    breakage = Breakage(
        "a door stands open", "security", "door.py", "if shut:", "if True:", ("test_door.py::test_shut",)
    )
    with pytest.raises(UnfitError, match=r"a door stands open.* 2 times in door.py"):
        breakage.made_in("if shut:\nif shut:\n")
    (tmp_path / "tests" / "old").mkdir(parents=True)
    with pytest.raises(UnfitError, match=r"a door stands open.* 0 times"):
        breakage.selected(tmp_path)
    (tmp_path / "tests" / "old" / "test_door.py").write_text("def test_shut() -> None: ...\n")
    assert breakage.selected(tmp_path) == ["tests/old/test_door.py::test_shut"]
    (tmp_path / "tests" / "test_door.py").write_text("def test_open() -> None: ...\n")
    assert breakage.selected(tmp_path) == ["tests/old/test_door.py::test_shut"]
    (tmp_path / "tests" / "test_door.py").write_text("async def test_shut() -> None: ...\n")
    with pytest.raises(UnfitError, match=r"a door stands open.* 2 times"):
        breakage.selected(tmp_path)


@pytest.mark.parametrize(
    ("code", "said", "outcome", "expected"),
    [
        (0, "3 passed in 1.0s", "survived", None),
        (
            1,
            "FAILED tests/unit/test_a.py::test_b[x y] - assert 1 == 2\n1 failed",
            "noticed",
            "tests/unit/test_a.py::test_b[x y]",
        ),
        (1, "ERROR tests/unit/test_a.py::test_b\n1 error", "noticed", "tests/unit/test_a.py::test_b"),
        # It can't even be imported: that says nothing of what tests look at.
        (1, "ERROR tests/unit/test_a.py - NameError: x\n1 error", "error", None),
        (2, "ERROR tests/unit/test_a.py - NameError: x\nInterrupted: 1 error", "error", None),
        (4, "ERROR: not found: tests/unit/test_a.py::test_c", "error", None),
        (5, "no tests ran", "error", None),
        (None, "", "error", None),
    ],
)
def test_only_a_test_that_fails_has_noticed_anything(
    code: int | None, said: str, outcome: str, expected: str | None
) -> None:
    judgement, what = judged(code, said)
    assert judgement == outcome
    assert what == expected or expected is None
