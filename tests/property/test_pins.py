"""What batches have read is read again, whatever drivers are killed or wake late; no more of it is kept than needed.

A driver is killed before any of its file operations, or sleeps there while its successors run any number of batches.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.errors import CheckpointMismatch, Fenced
from keyhole.protocol.batch_decisions import Pin
from keyhole.spark.driver.pins import BatchPins

HEAD_BYTES = 400
LARGE = 4 * HEAD_BYTES


class Killed(Exception):
    """What a driver meets in place of its next file operation."""


class Files:
    """One driver's view of the folder, each operation whole or not at all.

    Args:
        there: The folder.
        step: Called before each operation.
    """

    def __init__(self, there: dict[str, bytes], step: Callable[[], None]) -> None:
        self._there = there
        self._step = step

    def names(self) -> list[str]:
        self._step()
        return list(self._there)

    def has(self, name: str) -> bool:
        self._step()
        return name in self._there

    def read(self, name: str) -> bytes | None:
        self._step()
        return self._there.get(name)

    def create(self, name: str, content: bytes) -> bool:
        self._step()
        return self._there.setdefault(name, content) is content

    def delete(self, name: str) -> None:
        self._step()
        self._there.pop(name, None)


class Run(NamedTuple):
    """Of a batch, by a driver.

    Attributes:
        rules: What is broadcast from now on; None: as before.
        skipped: So many batches before it read nothing.
        step: At which file operation something happens; None: nothing does.
        meanwhile: What successors run while it sleeps there; None: it is killed.
    """

    rules: int | None
    skipped: int
    step: int | None
    meanwhile: list[Run] | None  # type: ignore[misc]  # it is what it is made of


def runs(meanwhile: st.SearchStrategy[list[Run] | None]) -> st.SearchStrategy[list[Run]]:
    skipped = st.sampled_from([0, 0, 0, 0, 1, 2, 9])
    one = st.builds(Run, st.none() | st.integers(0, 2), skipped, st.none() | st.integers(0, 12), meanwhile)
    return st.lists(one, max_size=10)


RUNS = runs(st.none() | runs(st.none() | runs(st.none())))
KEPT = st.sampled_from([0, 2, 3, 5])


def content(rules: int) -> bytes:
    return bytes([rules]) * LARGE


def no_step() -> None:
    pass


@dataclass
class Model:
    """The query's drivers, one after the other, and what its batches have read.

    Attributes:
        read: By batch, the content and the note.
        late: Batches of which a driver may have written that woke when there was a successor.
    """

    kept: int
    there: dict[str, bytes] = field(default_factory=dict)
    rules: int = 0
    epoch: int = 0
    batch: int = 0
    read: dict[int, tuple[bytes, str]] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    gaps: bool = False

    def run(self, script: list[Run]) -> None:
        for each in script:
            if each.rules is not None:
                self.rules = each.rules
            if each.skipped:
                # A driver that sleeps, and was to read something in this batch, may write that it has.
                self.late.add(self.batch)
                self.batch, self.gaps = self.batch + each.skipped, True
            self.drive(each)
        self.drive(Run(None, 0, None, None))

    def drive(self, run: Run) -> None:
        """A driver runs the batch that is not done yet, and another one again, if that was killed."""
        number, left, asleep = self.batch, run.step, False

        def step() -> None:
            nonlocal left, asleep
            if left is not None:
                left -= 1
            if left == -1:
                if run.meanwhile is None:
                    raise Killed
                left, asleep = None, True
                self.run(run.meanwhile)

        try:
            pins = self.pins(number, step)
            pin = self.settled(pins)
            read = pins.content(pin), pin.note
        except Killed:
            self.drive(Run(None, 0, None, None))
            return
        except Fenced:
            assert asleep, "it has no successor"
            return
        except CheckpointMismatch:
            # It was taken for dead so long ago that nobody can ask for its batch any more.
            assert asleep
            assert number < self.oldest
            return
        if asleep:
            self.late.add(number)
            assert number < self.oldest or read == self.read.get(number, read)
        else:
            assert self.read.setdefault(number, read) == read
            self.check(number)
            self.batch = number + 1

    @property
    def oldest(self) -> int:
        """That is kept by the last batch that is done."""
        return self.batch - max(self.kept, 2)

    def pins(self, number: int, step: Callable[[], None] = no_step) -> BatchPins:
        return BatchPins(Files(self.there, step), number, self.kept)

    def settled(self, pins: BatchPins) -> Pin:
        """As BroadcastReader does."""
        if (now := pins.now()) is not None:
            return now
        before = pins.before()
        self.epoch += 1
        return pins.share(content(self.rules), str(self.epoch), before)

    def check(self, number: int) -> None:
        """What can be asked for is there, and nothing else."""
        pins = self.pins(number)
        last = max((of for of in self.read if of < number), default=None)
        before = pins.before()
        if last is not None and not self.late.intersection(range(last, number)):
            assert before is not None
            assert (pins.content(before), before.note) == self.read[last]
        oldest = number - max(self.kept, 2) + 1
        for of, read in self.read.items():
            if of >= oldest:
                pin = self.pins(of).now()
                assert pin is not None
                assert (pins.content(pin), pin.note) == read
        now = pins.now()
        assert now is not None
        needed = {*now.contents} if before is None else {*now.contents, before.batch}
        if before is not None and self.read[number][0] == pins.content(before):
            assert len(self.there[str(number)]) < HEAD_BYTES
        for name, data in self.there.items():
            # A late driver may leave its own file; and where batches read nothing, a reference may stay until the next.
            old = int(name) < oldest and int(name) not in self.late
            assert not old or int(name) in needed or (self.gaps and len(data) < HEAD_BYTES)


@settings(deadline=None)
@given(RUNS, KEPT)
def test_a_batch_reads_again_what_it_read_whoever_was_killed_or_wakes_late_and_no_more_is_kept_than_needed(
    script: list[Run], kept: int
) -> None:
    Model(kept).run(script)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=8), RUNS, KEPT)
def test_what_earlier_versions_wrote_a_whole_file_for_each_batch_is_read_and_dropped_likewise(
    before: list[int], script: list[Run], kept: int
) -> None:
    model = Model(kept, batch=len(before))
    for number, rules in list(enumerate(before))[-max(kept, 2) :]:
        model.there[str(number)] = content(rules)
        model.read[number] = content(rules), ""
    model.run(script)


def test_rules_that_stay_are_written_once_however_many_batches_read_them() -> None:
    model = Model(3)
    model.run([Run(None, 0, None, None)] * 50)
    assert sorted(map(int, model.there)) == [0, 48, 49, 50]
    assert sum(map(len, model.there.values())) < LARGE + 4 * HEAD_BYTES
    model.run([Run(1, 0, None, None)] * 5)
    assert sorted(map(int, model.there)) == [51, 54, 55, 56]


def test_a_driver_that_sleeps_before_a_batch_without_another_before_it_drops_nothing() -> None:
    one = Run(None, 0, None, None)
    # It has looked which batches there are, and finds the last one dropped.
    asleep = Run(None, 1, 3, [one, one._replace(skipped=1)])
    Model(2).run([one, one, asleep])


def test_a_content_that_is_gone_is_told_by_the_file_that_had_it() -> None:
    model = Model(3)
    model.run([Run(None, 0, None, None)] * 3)
    del model.there["0"]
    pins = model.pins(3)
    pin = pins.now()
    assert pin is not None
    with pytest.raises(CheckpointMismatch, match="batch 3 has read is in the file 0 of the same folder"):
        pins.content(pin)


def test_a_form_of_a_later_version_is_refused() -> None:
    model = Model(3)
    model.run([])
    line, _, rest = model.there["0"].partition(b"\n")
    model.there["0"] = json.dumps(json.loads(line) | {"pin": 2}).replace(" ", "").encode() + b"\n" + rest
    with pytest.raises(CheckpointMismatch, match="does not read: go on with the version that wrote it"):
        model.pins(0).now()
