"""Each test is of one tier, and a tier has no fixture that it shouldn't."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import examples
from tests.support.tiers import OF_FOLDER, TIERS, refusal, refuse_unknown_fixtures, tier_of

pytest_plugins = ["pytester"]

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


# --- a run ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(pytester: pytest.Pytester) -> Callable[..., str]:
    """Runs these files, in a folder that has nothing of this one's but the plugins. Returns what the run says."""
    pytester.makeconftest("""
        from pathlib import Path

        import pytest

        from tests.support import tiers

        tiers._TESTS = Path(__file__).parent
        pytest_plugins = ["tests.support.sharing", "tests.support.tiers", "tests.support.progress"]

        @pytest.fixture
        def kafka():
            return "127.0.0.1:9092"
    """)
    marks = "\n".join(f"    {name}" for name in TIERS)
    pytester.makeini(f"[pytest]\naddopts = -m 'core or smoke' -p no:xdist\nmarkers =\n{marks}\n")

    def run(files: dict[str, str], *arguments: str) -> str:
        for name, text in files.items():
            path = pytester.path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        pytester.plugins = []
        # A process that is begun on a machine of which others want ten times as much.
        ran = pytester.run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, timeout=300.0)
        return "\n".join([*ran.outlines, *ran.errlines])

    return run


def test_a_run_says_how_far_it_is_what_it_left_out_and_how_to_run_it(run: Callable[..., str]) -> None:
    said = run({"unit/test_a.py": "def test_a(): ...", "spark/test_b.py": "def test_b(kafka): ..."})
    assert re.search(r"\d of 1, 0 failed, 0:\d\d  unit/test_a.py::test_a", said), said
    assert "1 passed, 1 deselected" in said
    assert "     1 of the tier spark      uv run pytest -m spark" in said
    assert "two thirds of each property test's examples: uv run pytest --further-examples" in said


def test_what_is_named_on_the_command_line_runs_as_it_would_without(run: Callable[..., str]) -> None:
    files = {"unit/test_a.py": "def test_a(): ...", "spark/test_b.py": "def test_b(kafka): ..."}
    for named in ("spark/test_b.py", "spark/test_b.py::test_b"):
        said = run(files, named)
        assert "1 deselected" in said, said
        assert "     1 of the tier spark      uv run pytest -m spark" in said
    assert "1 passed" in run(files, "spark/test_b.py", "-m", "spark")


def test_a_run_refuses_a_core_test_that_asks_for_kafka_also_where_it_is_left_out(run: Callable[..., str]) -> None:
    files = {"unit/test_a.py": "def test_a(kafka): ...", "unit/test_b.py": "def test_b(): ..."}
    said = run(files, "-m", "spark")
    assert "unit/test_a.py::test_a: it asks for the fixture 'kafka', which the tier 'core' doesn't have" in said
    assert "passed" not in said


def test_ci_runs_each_further_tier_from_all_folders_that_have_it() -> None:
    """But for the platform, which a machine need not have."""
    stages = dict(re.findall(r"^stage \w+ uv run pytest -m (\w+) (.*)$", (TESTS.parent / ".ci/run").read_text(), re.M))
    assert set(stages) == {"spark", "processes", "fault"}
    marked: dict[str, set[str]] = {tier: {f"tests/{f}" for f, of in OF_FOLDER.items() if of == tier} for tier in stages}
    for path in [file for folder in OF_FOLDER for file in (TESTS / folder).rglob("*.py")]:
        for tier in re.findall(r"pytest\.mark\.(\w+)\b", path.read_text()):
            if tier in marked and path != Path(__file__):
                marked[tier].add(f"tests/{path.relative_to(TESTS).parts[0]}")
    assert {tier: set(folders.split()) for tier, folders in stages.items()} == marked


def test_ci_runs_all_property_tests_with_their_further_examples() -> None:
    """Hypothesis marks them."""
    (stage,) = re.findall(r"^stage properties uv run pytest (.*)$", (TESTS.parent / ".ci/run").read_text(), re.M)
    *options, first, second = stage.split()
    assert options == ["--further-examples", "-m", '"core', "and", 'hypothesis"']
    drawn = {
        path
        for path in TESTS.rglob("test_*.py")
        if re.search(r"^from hypothesis|^import hypothesis", path.read_text(), re.M)
    }
    assert {f"tests/{path.relative_to(TESTS).parts[0]}" for path in drawn} == {first, second}


def test_each_property_test_that_says_how_many_examples_it_has_says_it_by_examples() -> None:
    for path in TESTS.rglob("*.py"):
        for number in re.findall(r"max_examples=(\w+)", path.read_text()):
            assert number == "examples", f"{path}: max_examples={number}. Write max_examples=examples({number})"


def test_a_run_has_fewer_than_ten_examples_only_where_there_are_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = (8, 12, 30, 60)
    of = {}
    for asked in examples.Asked:
        monkeypatch.setattr(examples, "_asked", asked)
        of[asked] = [examples.examples(number) for number in numbers]
    assert of[examples.Asked.FIRST] == [8, 10, 10, 20]
    assert of[examples.Asked.FURTHER] == [1, 3, 21, 41]
    assert of[examples.Asked.ALL] == [*numbers]
