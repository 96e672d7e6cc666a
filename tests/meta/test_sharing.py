"""Which tests go to a process together, and which are begun first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sharing import LONGEST, WITH_SPARK, place, unit, unshared, workers

ROOT = Path(__file__).resolve().parents[2]


def test_the_tests_of_a_file_go_to_one_process() -> None:
    assert unit("tests/spark/test_x.py::test_a") == unit("tests/spark/test_x.py::TestOf::test_b[a::b]")
    assert unit("tests/spark/test_x.py::test_a") != unit("tests/spark/test_y.py::test_a")


def test_each_episode_of_faults_goes_to_a_process_by_itself() -> None:
    assert unit("tests/fault/test_x.py::test_a[1]") != unit("tests/fault/test_x.py::test_a[2]")


def test_what_runs_spark_in_the_tests_own_process_shares_one() -> None:
    assert len({unit(f"{file}::test_x") for file in WITH_SPARK}) == 1
    assert unit("tests/processes/test_demo.py::test_x") == "tests/processes/test_demo.py"


def test_a_file_that_begins_to_use_spark_is_refused_until_it_shares_one() -> None:
    wrong = unshared("tests/processes/test_new.py", ["tmp_path", "spark"])
    assert wrong is not None
    assert "add it to WITH_SPARK" in wrong
    assert unshared("tests/processes/test_new.py", ["tmp_path"]) is None
    assert unshared("tests/spark/test_new.py", ["spark"]) is None
    assert unshared(WITH_SPARK[0], ["spark"]) is None


def test_tests_that_wait_more_have_more_processes() -> None:
    tiers = ("core or smoke", "core and hypothesis", "spark", "processes", "fault", "")
    assert [workers(tier, 2) for tier in tiers] == [4, 4, 4, 5, 3, 3]


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
