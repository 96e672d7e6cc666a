"""Checkpoints that are set back or replaced, a changelog that is deleted: refused by name, or continued, or reset.

One application, whose query is started again and again; what each run is refused without a query stands in
tests/unit/test_decisions.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import pytest
from pyspark.errors import StreamingQueryException

from keyhole.errors import ChangelogRecreated, CheckpointMismatch, KeyholeError
from keyhole.protocol.epoch_of_batch import OnNewCheckpoint
from keyhole.spark import queryable
from keyhole.spark.sink import Sink
from tests.support.scenario import Scenario, Scenarios
from tests.support.streams import Rows
from tests.support.topics import delete_topic

FIRST: Sequence[Rows] = [[{"k": "a", "v": 1}], [{"k": "b", "v": 2}], [{"k": "c", "v": 3}]]


@dataclass(frozen=True)
class Held:
    """What readers have, and at which epoch."""

    values: Mapping[str, int]
    epoch: int


@dataclass(frozen=True)
class Job:
    """One application; its runs come from checkpoints and sources by name."""

    scenario: Scenario

    def run(
        self,
        batches: Sequence[Rows],
        checkpoint: str,
        source: str,
        on_new_checkpoint: OnNewCheckpoint = "refuse",
        refused: AbstractContextManager[object] | None = None,
    ) -> Sink:
        config = self.scenario.config
        sink = queryable.value("last", key="k", key_groups=4, config=config, on_new_checkpoint=on_new_checkpoint)
        rows = self.scenario.stream("k string, v bigint", batches, source)
        with refused or nullcontext():
            self.scenario.run(rows, "append", sink, checkpoint=checkpoint)
        return sink

    def held(self) -> Held:
        answers = dict(zip("abcdefg", self.scenario.get_many("last", list("abcdefg")), strict=True))
        values = {key: answer.value.v for key, answer in answers.items() if answer.found}
        return Held(values, max(answer.epoch for answer in answers.values()))


@dataclass
class Story:
    """What readers have after each run, and what two of them were refused with."""

    held: dict[str, Held] = field(default_factory=dict)
    refused: dict[str, KeyholeError | None] = field(default_factory=dict)


@pytest.fixture(scope="module")
def story(scenarios: Scenarios) -> Story:
    scenario, story = scenarios(), Story()
    job = Job(scenario)
    job.run(FIRST, "checkpoint", "source")
    story.held["first"] = job.held()
    gone_on = [*FIRST, [{"k": "d", "v": 4}]]
    job.run(gone_on, "checkpoint", "source")
    story.held["again"] = job.held()

    for folder in ("offsets", "commits"):
        for name in ("2", ".2.crc", "3", ".3.crc"):
            (scenario.directory / "checkpoint" / folder / name).unlink()
    ended = pytest.raises(StreamingQueryException, match="set back")
    story.refused["set back"] = job.run(gone_on, "checkpoint", "source", refused=ended).failure
    story.held["set back"] = job.held()

    job.run([[{"k": "e", "v": 5}], [{"k": "a", "v": 6}]], "another", "others", "continue")
    story.held["continue"] = job.held()
    others = [[{"k": "f", "v": 7}], [{"k": "g", "v": 8}]]
    job.run(others, "a third", "after the reset", "reset")
    story.held["reset"] = job.held()

    topic = f"keyhole.{scenario.application}.last"
    delete_topic(scenario.service.bootstrap_servers, topic)
    ended = pytest.raises(StreamingQueryException, match=topic)
    more = [*others, [{"k": "d", "v": 9}]]
    story.refused["deleted"] = job.run(more, "a third", "after the reset", refused=ended).failure
    job.run([[{"k": "e", "v": 10}]], "a fourth", "anew", "reset")
    story.held["anew"] = job.held()
    return story


def test_a_run_from_the_same_checkpoint_goes_on(story: Story) -> None:
    assert story.held["first"] == Held({"a": 1, "b": 2, "c": 3}, 3)
    assert story.held["again"] == Held({"a": 1, "b": 2, "c": 3, "d": 4}, 4)


def test_a_checkpoint_that_was_set_back_is_refused_with_the_ways_out_and_nothing_changes(story: Story) -> None:
    refused = story.refused["set back"]
    assert isinstance(refused, CheckpointMismatch)
    for way_out in ("continue", "reset", "savepoint"):
        assert way_out in refused.message
    assert story.held["set back"] == story.held["again"]


def test_continue_keeps_the_state_and_adds_to_it(story: Story) -> None:
    # Epoch 5 is never used: someone may have begun it.
    assert story.held["continue"] == Held({"a": 6, "b": 2, "c": 3, "d": 4, "e": 5}, 7)


def test_reset_empties_the_state_with_the_first_epoch(story: Story) -> None:
    assert story.held["reset"] == Held({"f": 7, "g": 8}, 10)


def test_a_changelog_that_was_deleted_is_refused(story: Story) -> None:
    assert isinstance(story.refused["deleted"], ChangelogRecreated)


def test_reset_begins_a_changelog_that_was_deleted_anew(story: Story) -> None:
    assert story.held["anew"].values == {"e": 10}
