"""Which tests go to a process together, and which are begun first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sharing import LONGEST, place, unit

ROOT = Path(__file__).resolve().parents[2]


def test_the_tests_of_a_file_go_to_one_process() -> None:
    assert unit("tests/spark/test_x.py::test_a") == unit("tests/spark/test_x.py::TestOf::test_b[a::b]")
    assert unit("tests/spark/test_x.py::test_a") != unit("tests/spark/test_y.py::test_a")


def test_each_episode_of_faults_goes_to_a_process_by_itself() -> None:
    assert unit("tests/fault/test_x.py::test_a[1]") != unit("tests/fault/test_x.py::test_a[2]")


def test_what_takes_longest_is_begun_first() -> None:
    names = ["tests/unit/test_a.py::test_a", *reversed(LONGEST), "tests/spark/test_z.py::test_z"]
    ordered = sorted(names, key=place)
    assert ordered == [*LONGEST, "tests/unit/test_a.py::test_a", "tests/spark/test_z.py::test_z"]


@pytest.mark.parametrize("begins", LONGEST)
def test_what_is_begun_first_exists(begins: str) -> None:
    file, _, rest = begins.partition("::")
    path = ROOT / file
    assert path.exists()
    function = rest.partition("[")[0]
    assert not function or f"def {function}(" in path.read_text()
