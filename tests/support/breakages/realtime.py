"""Breakages of the real-time lane: which rows count, what a log of updates comes to, and what stands over a store."""

from __future__ import annotations

from tests.support.breakages.breakage import Breakage

_SEEN = "src/keyhole/protocol/seen.py"
_UPDATES = "services/state_server/write/updates.py"
_MERGE = "services/state_server/write/update_merge.py"
_FEED = "services/state_server/write/state_feed.py"
_TAIL = "src/keyhole/changelog/kafka/updates_tail.py"
_APPLIED = "test_updates_applied.py"
_OWNERS = "test_state_feed.py"

REALTIME: tuple[Breakage, ...] = (
    Breakage(
        "rows below a boundary are believed when they come late",
        "realtime",
        _SEEN,
        "        if _number(offset, sub) < self.floor:\n            return False\n",
        "",
        ("test_seen_rows.py",),
    ),
    Breakage(
        "a restored key group bounds its memory by other rules",
        "realtime",
        _SEEN,
        "self._rules = FeedRules() if was.rules is None else was.rules.rules",
        "self._rules = FeedRules()",
        ("test_seen_rows.py::test_what_was_restored_is_bounded_by_the_rules_in_force",),
    ),
    Breakage(
        "a restored key group has forgotten which sources have ended",
        "realtime",
        _SEEN,
        "self._ended = dict(was.ended)",
        "self._ended = {}",
        ("test_seen_rows.py::test_an_end_forgets_a_source_and_holds_nothing_back",),
    ),
    Breakage(
        "a source that is gone holds its numbers for ever",
        "realtime",
        _SEEN,
        "                self._give_up(seen, max(old))\n",
        "                pass\n",
        ("test_seen_rows.py::test_numbers_that_are_old_by_the_log_hold_nothing_back",),
    ),
    Breakage(
        "a source that comes back finds rows taken for seen that were passed over",
        "realtime",
        _SEEN,
        "            self._ended[source] = self._time_ms\n            return False\n",
        "            return False\n",
        ("test_seen_rows.py::test_rows_that_were_passed_over_behind_an_end_are_not_read_again_as_seen",),
    ),
    Breakage(
        "what retention took is taken for never seen",
        "realtime",
        _SEEN,
        "floor = max([_number(one.offset, one.sub), *gone])",
        "floor = _number(one.offset, one.sub)",
        ("test_seen_rows.py::test_a_producer_may_stop_for_longer_than_its_updates_are_kept",),
    ),
    Breakage(
        "a restored key group begins another segment than the one that is open",
        "realtime",
        _SEEN,
        "used = set() if self._segment is None else {self._segment.at}",
        "used: set[int] = set()",
        ("test_seen_rows.py::test_what_is_taken_depends_on_the_log_alone_whatever_is_forgotten_and_deleted",),
    ),
    Breakage(
        "floors of producers that died are kept for ever",
        "realtime",
        _SEEN,
        "            del self._partitions[name]\n",
        "            pass\n",
        ("test_seen_rows.py::test_producers_that_died_without_an_end_are_forgotten_where_they_are_many",),
    ),
    Breakage(
        "rules of an older run are obeyed",
        "realtime",
        _UPDATES,
        "record.generation > self._rules.generation",
        "record.generation != self._rules.generation",
        (f"{_APPLIED}::test_rules_of_an_older_run_and_rules_that_do_not_fit_change_nothing",),
    ),
    Breakage(
        "updates before the first rules are applied by the descriptor's",
        "realtime",
        _UPDATES,
        "        if self._rules is None:\n            # Not",
        "        if False:\n            # Not",
        (f"{_APPLIED}::test_an_update_before_the_first_rules_is_refused_and_counts_when_it_is_sent_again",),
    ),
    Breakage(
        "rules of a newer schema are passed over",
        "realtime",
        _UPDATES,
        "                done.waits_for = why\n                break\n",
        "                done.waits_for = why\n",
        (f"{_APPLIED}::test_rules_of_a_newer_schema_wait_for_the_descriptor_and_an_update_of_one_does_not",),
    ),
    Breakage(
        "a row is merged by the newest schema that its owner knows",
        "realtime",
        "src/keyhole/protocol/updates.py",
        "        value = self._value(descriptor)\n        assert value is not None\n",
        "        value = descriptor.value\n",
        (f"{_APPLIED}::test_a_sum_is_refused_by_the_rules_schema_though_the_new_owner_s_descriptor_has_not_the_field",),
    ),
    Breakage(
        "a run that wakes late takes the identity of a deletion",
        "realtime",
        "services/state_server/write/update_reader.py",
        "        if record.value is not None:\n            ordered",
        "        if record.value is not None or self._remembers:\n            ordered",
        (f"{_APPLIED}::test_a_deletion_counts_in_either_form_so_a_run_that_wakes_late_takes_no_identity_away",),
    ),
    Breakage(
        "a list of which all has expired counts on where it was",
        "realtime",
        _MERGE,
        "if self._lives is not None and self._list_expires:",
        "if False:",
        (f"{_APPLIED}::test_a_list_of_which_all_has_expired_counts_from_0_removed_or_not",),
    ),
    Breakage(
        "the last element of a list is removed while others live",
        "realtime",
        _MERGE,
        "        if self._list_expires:\n            found",
        "        if False:\n            found",
        (f"{_APPLIED}::test_a_list_keeps_what_lives_in_it_though_its_last_element_has_expired",),
    ),
    Breakage(
        "a late commit takes away what was applied again since",
        "realtime",
        _FEED,
        "[changes.partition.key_group for changes in here])\n",
        "list(commit.feeds))\n",
        (f"{_OWNERS}::test_a_commit_that_is_told_of_late_leaves_a_deletion_that_was_applied_again",),
    ),
    Breakage(
        "deletions that were remembered are never removed",
        "realtime",
        _MERGE,
        "        if deletions:\n",
        "        if False:\n",
        (f"{_APPLIED}::test_deletions_that_come_after_a_round_that_found_none_are_removed_in_their_time",),
    ),
    Breakage(
        "a late commit of an earlier time as owner is written",
        "realtime",
        _FEED,
        "return same and changes.marker.stamp.epoch > self._committed[group]",
        "return changes.marker.stamp.epoch > self._committed[group]",
        (f"{_OWNERS}::test_a_commit_of_an_earlier_time_as_owner_writes_nothing_before_the_first_of_this_one",),
    ),
    Breakage(
        "updates that were deleted before they were read are passed over",
        "realtime",
        _TAIL,
        '"auto.offset.reset": "error",',
        '"auto.offset.reset": "earliest",',
        ("test_updates_topics.py::test_updates_that_were_deleted_before_they_were_read_are_not_passed_over",),
        "spark",
    ),
    Breakage(
        "a producer's clock ages what comes after it",
        "realtime",
        _TAIL,
        "time_ms if kind == TIMESTAMP_LOG_APPEND_TIME else 0",
        "time_ms",
        ("test_updates_topics.py::test_a_producer_s_time_is_none_where_a_topic_had_it_once",),
        "spark",
    ),
    Breakage(
        "an updates topic made anew is taken for the one before",
        "realtime",
        "src/keyhole/changelog/kafka/topic_watch.py",
        "        self._ids.update((topic, found) for topic, found in self._known.items() if topic in wanted)\n",
        "",
        ("test_updates_topics.py::test_a_topic_that_was_made_anew_is_another_one",),
        "spark",
    ),
)
