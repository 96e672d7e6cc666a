"""Each test is of one tier, and a tier has no fixture that it shouldn't."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.tiers import TIERS, refusal, refuse_unknown_fixtures, tier_of

TESTS = Path(__file__).resolve().parents[1]
FOLDERS = sorted({path.parent.relative_to(TESTS).parts[0] for path in TESTS.glob("*/test_*.py")})


def item(path: str, *marks: str) -> Any:
    return SimpleNamespace(
        nodeid=path, path=TESTS / path, iter_markers=lambda: [SimpleNamespace(name=mark) for mark in marks]
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_has_a_tier(folder: str) -> None:
    assert tier_of(item(f"{folder}/test_x.py")) in TIERS


def test_a_folder_without_a_tier_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match="says no tier for the folder tests/elsewhere"):
        tier_of(item("elsewhere/test_x.py"))


def test_what_a_test_is_marked_with_counts_and_not_its_folder() -> None:
    assert tier_of(item("fault/test_x.py", "core", "usefixtures")) == "core"


def test_two_tiers_for_one_test_are_refused() -> None:
    with pytest.raises(pytest.UsageError, match="several tiers: core, spark"):
        tier_of(item("unit/test_x.py", "spark", "core"))


@pytest.mark.parametrize("fixture", ["kafka", "spark", "service", "java", "jars"])
def test_a_core_test_that_asks_for_kafka_or_spark_is_refused(fixture: str) -> None:
    assert f"the fixture '{fixture}'" in refusal("core", ["tmp_path", fixture])
    assert not refusal("smoke", ["tmp_path", fixture])


def test_who_is_refused_is_told_which_tiers_there_are() -> None:
    assert "(smoke or spark or processes or fault or platform)" in refusal("core", ["kafka"])
    assert "(platform)" in refusal("processes", ["built"])


@pytest.fixture
def java() -> None:
    """Of its name only."""


def test_of_what_a_test_asks_for_as_it_runs_the_same_holds(request: pytest.FixtureRequest) -> None:
    with pytest.raises(pytest.fail.Exception, match="the tier 'core' doesn't have"):
        request.getfixturevalue("java")


@pytest.mark.parametrize("parameter", [1])
def test_a_fixture_that_nobody_defines_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, parameter: int
) -> None:
    del tmp_path, parameter
    asking = request.node
    refuse_unknown_fixtures(asking)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking, "fixturenames", [*asking.fixturenames, "nobodys"])
        with pytest.raises(pytest.UsageError, match="a fixture that there isn't: nobodys"):
            refuse_unknown_fixtures(asking)
