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
        "        self._write_boundary(positions)\n",
        "",
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
        "a feeder goes on into an updates topic that was made anew",
        "realtime",
        _FEEDER,
        "if topic_id != self._updates.topic_id:",
        "if not topic_id:",
        ("test_feed_positions.py::test_an_updates_topic_that_is_made_anew_while_it_is_fed_ends_the_feeder",),
    ),
    Breakage(
        "a boundary of another updates topic says where a feeder goes on",
        "realtime",
        _POSITIONS,
        "elif found.updates_id != self._updates_id:",
        "elif not found.updates_id:",
        ("test_feed_positions.py::test_a_boundary_of_the_updates_topic_before_is_refused",),
    ),
    Breakage(
        "of two topics that are gone only the older one ends",
        "realtime",
        _FEEDER,
        "for other_id in found.other_ids:",
        "for other_id in found.other_ids[-1:]:",
        ("test_feed_positions.py::test_a_topic_that_is_made_anew_twice_has_ended_each_time",),
    ),
    Breakage(
        "a feeder goes on before the topics that are gone have ended everywhere",
        "realtime",
        _FEEDER,
        "                self._write_everywhere(EndRecord(other_id))\n            self._await_written()",
        "                self._write_everywhere(EndRecord(other_id))",
        ("test_feed_positions.py::test_what_is_gone_has_ended_everywhere_before_its_successor_is_fed",),
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
        "        self._lease.keep(ends)\n",
        "",
        ("test_feeders.py::test_a_second_feeder_changes_nothing_and_the_first_one_hears_of_it",),
    ),
    Breakage(
        "a row whose summed column is not told takes nothing back",
        "realtime",
        "src/keyhole/feed/debezium.py",
        "if name not in before or",
        "if",
        ("test_feed_records.py::test_what_can_t_be_read_is_refused_and_not_quoted",),
    ),
    Breakage(
        "a decimal is taken back rounded to the digits of Python's context",
        "realtime",
        "src/keyhole/feed/mapping.py",
        "number.copy_negate()",
        "-number",
        ("test_feed_records.py::test_a_decimal_of_all_its_digits_is_taken_back_to_the_last_one",),
    ),
    Breakage(
        "what breaks the reading of a record ends the feeder, at each start",
        "realtime",
        _FEEDER,
        "except Exception as error:",
        "except RequestError as error:",
        ("test_feed_positions.py::test_what_breaks_its_reading_is_a_dead_letter_that_quotes_nothing",),
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
