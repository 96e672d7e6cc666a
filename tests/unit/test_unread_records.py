"""A real-time query with a new checkpoint: records that are gone before they were read are missed, by name."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from keyhole.errors import ChangelogRecreated
from keyhole.feed.positions import SourceDescription
from keyhole.feed.unread_records import check_unread
from keyhole.protocol.updates import PUT, BoundaryRecord, FeedRules, RulesRecord, UpdateRecord, encode

SOURCE = "id-1.spent"
RULES = RulesRecord(1, FeedRules())
UPDATE = UpdateRecord(SOURCE, 0, 3, 0, PUT, 1, ["a"], None, [1.0])


def boundary(ends: dict[int, int], source: str = SOURCE) -> BoundaryRecord:
    return BoundaryRecord(source, 1, ends, "orders", "updates-1")


class Updates:
    """An updates topic of two partitions; of the first one, what is below `start` was deleted."""

    partitions = 2
    topic_id = "updates-1"
    most_bytes = 1_000

    def __init__(self, *logs: Iterable[object], start: int = 0) -> None:
        self._logs = [list(map(encode, log)) for log in logs]  # type: ignore[arg-type]  # records
        self._start = start

    def look(self) -> str:
        return self.topic_id

    def bounds(self, partition: int) -> tuple[int, int]:
        return 0 if partition else self._start, len(self._logs[partition])

    def read(self, partition: int, start: int, end: int) -> Iterable[bytes]:
        return self._logs[partition][start:end]

    def send(self, partition: int, value: bytes, done: object) -> None:
        raise AssertionError("nothing is written")

    def poll(self, seconds: float) -> None:
        raise AssertionError("nothing is written")


def check(updates: Updates, **starts: int) -> None:
    described = SourceDescription("orders", "id-1", {int(name[1:]): start for name, start in starts.items()})
    check_unread(updates, {SOURCE: described})


BOUNDED = Updates([RULES, boundary({0: 5, 1: 9}), UPDATE], [RULES])


def test_what_batches_have_read_may_be_gone() -> None:
    check(BOUNDED, p0=5, p1=9)
    check(BOUNDED, p0=0, p1=0)
    check(BOUNDED, p0=5, p1=9, p2=0)


@pytest.mark.parametrize(
    ("starts", "why"),
    [
        ({"p0": 6, "p1": 0}, "offset 5 of partition 0 is next, and it begins at 6"),
        ({"p0": 0, "p1": 10}, "offset 9 of partition 1 is next"),
        ({"p0": 0, "p1": 0, "p2": 1}, "offset 0 of partition 2 is next"),
    ],
)
def test_what_no_batch_has_read_is_missed(starts: dict[str, int], why: str) -> None:
    with pytest.raises(ChangelogRecreated, match=rf"{why}.*from_earliest=True"):
        check(BOUNDED, **starts)


def test_the_last_boundary_of_the_source_itself_counts() -> None:
    updates = Updates([RULES, boundary({0: 5}), boundary({0: 7}), boundary({0: 99}, "id-1.other")], [RULES])
    check(updates, p0=7)
    with pytest.raises(ChangelogRecreated, match="offset 7"):
        check(updates, p0=8)


def test_of_a_source_that_has_sent_nothing_nothing_is_missed() -> None:
    check(Updates([RULES], [RULES]), p0=1000)


@pytest.mark.parametrize(
    "updates", [Updates([RULES], [RULES, UPDATE]), Updates([RULES, RULES], [RULES], start=1)], ids=["sent", "gone"]
)
def test_of_a_source_of_which_no_boundary_is_there_it_is_not_known(updates: Updates) -> None:
    check(updates, p0=0)
    with pytest.raises(ChangelogRecreated, match="how far topic orders was read is not known"):
        check(updates, p0=1)
