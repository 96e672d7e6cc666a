"""`keyhole savepoint restore --real-time`, killed at each of its steps, on a real Kafka: run again, it has all of it.

Of one application a query goes on in real time, and another one by epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from keyhole.changelog.base import Partition
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.errors import SavepointMismatch
from keyhole.feed.kafka.source import KafkaSource
from keyhole.model.epoch import START
from keyhole.protocol.control import QueryRecord, read_control
from keyhole.protocol.fed_sources import source_of_branch
from keyhole.protocol.seen import FeedPosition, SeenPartition
from keyhole.protocol.start import UPDATES, decide_feed
from keyhole.savepoint.moved_lane import QueriedTopic
from keyhole.savepoint.restore_plan import RestoreOptions
from tests.processes.test_killed_savepoints import Original, Restored, at_once, ended, killed
from tests.support.every_kind import MAIN, RULES, STATES
from tests.support.killable_savepoint import start, steps_in, worth_a_kill
from tests.support.waiting import LONG_SECONDS

# As the savepoint says: of its two partitions batches have read this much.
TOPIC, ENDS = "events", {0: 12, 1: 7}


@dataclass(frozen=True)
class Moved(Restored):
    """The query `rules` goes on in real time."""

    epochs: dict[str, int] = field(default_factory=lambda: {MAIN: 4, RULES: 0})

    @property
    def source(self) -> QueriedTopic:
        with closing(KafkaSource(self.original.bootstrap_servers, TOPIC)) as source:
            described = source.describe()
        return QueriedTopic(described.topic_id, described.starts)

    @property
    def options(self) -> RestoreOptions:
        places = {MAIN: str(self.directory / "checkpoints" / MAIN)}
        return RestoreOptions(
            self.application, {"sums": 3}, self.renamed, checkpoints=places, real_time={RULES: self.source}
        )

    def arguments(self, *more: str) -> list[str]:
        return super().arguments("--real-time", RULES, *more)

    def assert_whole(self) -> None:
        super().assert_whole()
        records = self.changelog.control("test").read_decided(LONG_SECONDS)
        control = read_control(records, RULES)
        assert control.query == QueryRecord(UPDATES, base=0)
        topic_id = self.source.topic_id
        seen = {partition: SeenPartition(end, 0, 0, []) for partition, end in ENDS.items()}
        wanted = FeedPosition(seen=dict.fromkeys((topic_id, source_of_branch(topic_id, RULES)), seen))
        part = Partition("rules", 0)
        with closing(self.changelog.reader()) as reader:
            pieces = list(reader.read({part: START}, reader.ends({"rules": [0]}, LONG_SECONDS), LONG_SECONDS))
        assert pieces[-1].marker is not None
        assert pieces[-1].marker.feed == wanted
        self.decide_start()

    def decide_start(self) -> None:
        """As a real-time query or `keyhole feed` of that name does. Raises SavepointMismatch."""
        of = msgspec.structs.replace(STATES["rules"], application=self.application, state="rules")
        control = read_control(self.changelog.control("test").read_decided(LONG_SECONDS), RULES)
        decide_feed(RULES, control, {of: 0}, {self.source.topic_id: TOPIC})


@pytest.fixture(scope="module")
def original(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Original:
    make_topics(kafka, {TOPIC: 2}, LONG_SECONDS)
    return Original.made(kafka, tmp_path_factory.mktemp("original"))


def moved(original: Original, name: str, directory: Path) -> Moved:
    return Moved(original, f"{original.application}-{name}", directory / name)


@pytest.fixture(scope="module")
def restoring(original: Original, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The steps of one that nothing interrupts."""
    whole = moved(original, "whole", tmp_path_factory.mktemp("restoring"))
    process = start(whole.directory, whole.arguments())
    assert ended(process) == 0, process.output()
    whole.assert_whole()
    return steps_in(whole.directory)


def test_one_that_is_killed_at_any_step_goes_on_in_both_lanes_once_it_is_run_again(
    original: Original, restoring: Sequence[str], tmp_path: Path
) -> None:
    def check(at: int) -> bool:
        restored = moved(original, f"killed-{at}", tmp_path)
        killed(restored.directory, restored.arguments(), at, restoring)
        begun = restored.restoring
        # Where it died in a transaction on the control topic, a start waits for Kafka to end that, and is refused then.
        if begun and "what was written" not in restoring[at]:
            with pytest.raises(SavepointMismatch, match="run `keyhole savepoint restore` again with the same options"):
                restored.decide_start()
        if at == len(restoring) - 1:
            with pytest.raises(SavepointMismatch, match="restored from this savepoint already: start the job"):
                restored.run()
        else:
            assert restored.run() == begun
        restored.assert_whole()
        return begun

    begun = at_once(check, worth_a_kill(restoring))
    claim = restoring.index("take the id of the restore")
    assert [at for at, of in begun.items() if of] == [at for at in begun if claim <= at + 1 < len(restoring)]
