"""Breakages of feeding without Spark: which rows are sent, where a feeder goes on, and what its updates say."""

from __future__ import annotations

from tests.support.breakages.breakage import Breakage

_FEEDER = "src/keyhole/feed/feeder.py"
_POSITIONS = "src/keyhole/feed/positions.py"

FEEDING: tuple[Breakage, ...] = (
    Breakage(
        "a boundary covers rows that were read and not acknowledged",
        "realtime",
        "src/keyhole/feed/progress.py",
        "partition: next(iter(self._waiting[partition]), following)",
        "partition: following",
        ("test_feeders.py::test_a_simpler_feeder_loses_records",),
    ),
    Breakage(
        "a dead letter counts as kept before Kafka has it",
        "realtime",
        _FEEDER,
        "self._progress.begin(partition, offset, 1)",
        "self._progress.begin(partition, offset, 0)",
        ("test_feeders.py::test_a_feeder_may_be_killed_at_each_of_its_calls",),
    ),
    Breakage(
        "the positions that a feeder begins with are not written",
        "realtime",
        _FEEDER,
        "        self._write_boundary(positions)\n        while",
        "        while",
        ("test_feed_positions.py",),
    ),
    Breakage(
        "a topic that was made anew is fed under its old id",
        "realtime",
        _FEEDER,
        "if topic_id != self._topic_id:",
        "if not topic_id:",
        ("test_feed_positions.py::test_a_topic_that_is_made_anew_while_it_is_fed_ends_the_feeder",),
    ),
    Breakage(
        "records that were deleted before they were read are passed over",
        "realtime",
        _POSITIONS,
        "if position < source.starts[partition]:",
        "if source.starts[partition] < 0:",
        ("test_feed_positions.py::test_records_that_are_deleted_before_they_are_read_are_never_skipped",),
    ),
    Breakage(
        "of two boundaries the older one says where a feeder goes on",
        "realtime",
        _POSITIONS,
        "ends[partition] = max(end, ends.get(partition, 0))",
        "ends.setdefault(partition, end)",
        ("test_feed_positions.py::test_the_highest_ends_count_among_what_else_is_there",),
    ),
    Breakage(
        "a feeder does not hear that another one has begun",
        "realtime",
        _FEEDER,
        "        self._lease.keep(ends)\n        old",
        "        old",
        ("test_feeders.py::test_a_second_feeder_changes_nothing_and_the_first_one_hears_of_it",),
    ),
    Breakage(
        "what a changed row had brought to a sum stays in it",
        "realtime",
        "src/keyhole/feed/debezium.py",
        'return puts if operation != "u" else',
        'return puts if operation != "" else',
        ("test_feed_mapping.py::test_the_sums_of_a_table_s_changes_are_those_of_its_rows",),
    ),
)
