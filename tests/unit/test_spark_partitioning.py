"""Which partitions hold whole key groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keyhole.spark.driver import layout as layouts
from keyhole.spark.driver.layout import HashLayout, RunLayouts
from keyhole.spark.driver.partitioning import partitions_for
from keyhole.spark.session import local_settings


@pytest.mark.parametrize(
    ("key_groups", "wanted", "partitions"),
    [(64, 200, 64), (64, 64, 64), (64, 63, 32), (64, 4, 4), (60, 7, 6), (7, 4, 1), (1, 200, 1), (64, 0, 1)],
)
def test_a_shuffle_goes_to_the_largest_divisor_of_the_key_groups_that_spark_would_take(
    key_groups: int, wanted: int, partitions: int
) -> None:
    assert partitions_for(key_groups, wanted) == partitions


@pytest.mark.parametrize(
    ("layout", "key", "reuse"),
    [
        (HashLayout(("k",), 4), ["k"], True),
        (HashLayout(("k", "g"), 4), ["k", "g"], True),
        (HashLayout(("k", "g"), 4), ["g", "k"], False),
        (HashLayout(("k",), 4), ["k", "g"], False),
        (HashLayout(("k", "g"), 4), ["k"], False),
        (HashLayout(("k",), 3), ["k"], False),
        (HashLayout(("k",), 128), ["k"], False),
    ],
)
def test_a_shuffle_is_reused_where_its_partitions_hold_whole_key_groups(
    layout: HashLayout, key: list[str], reuse: bool
) -> None:
    assert layout.has_key_groups(key, 64) is reuse


def test_spark_on_one_machine_listens_on_loopback_and_writes_into_one_directory(tmp_path: Path) -> None:
    settings = local_settings([Path("/a.jar"), Path("/b.jar")], tmp_path)
    assert settings["spark.jars"] == "/a.jar,/b.jar"
    assert settings["spark.driver.bindAddress"] == settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.local.dir"] == str(tmp_path)
    assert f'"-Djava.io.tmpdir={tmp_path}"' in settings["spark.driver.extraJavaOptions"]
    assert "spark.jars" not in local_settings([], tmp_path)


def test_rows_that_a_job_makes_are_not_planned_again_once_they_must_be_shuffled_and_else_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {"alerts": None, "last": HashLayout(("k",), 2)}
    asked: list[Any] = []

    def layout_of(rows: Any, _: Any) -> HashLayout | None:
        asked.append(rows)
        return found[rows]

    monkeypatch.setattr(layouts, "layout_of", layout_of)
    of_run: Any = RunLayouts()
    taken = [of_run.of_rows(state, state, None) for state in ("alerts", "last", "alerts", "last")]
    assert taken == [None, found["last"]] * 2
    assert asked == ["alerts", "last", "last"]
    # Where the plan of what the job makes has changed, so may the answer.
    found["last"] = None
    assert of_run.of_rows("last", "last", None) is None
