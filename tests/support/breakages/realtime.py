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
        "if number < seen.floor or number in seen.at:",
        "if number in seen.at:",
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
        "            seen.give_up_until(before)\n",
        "            pass\n",
        ("test_seen_rows.py::test_numbers_that_are_old_by_the_log_hold_nothing_back",),
    ),
    Breakage(
        "a position that is kept before all is read again forgets the rest",
        "realtime",
        _UPDATES,
        "return found if self.reads >= self.next else replace(found, refill=self._refill)",
        "return found",
        (f"{_APPLIED}::test_updates_come_to_what_a_model_says_wherever_owners_commit_and_die",),
    ),
    Breakage(
        "rules of an older run are obeyed",
        "realtime",
        _UPDATES,
        "record.generation <= self._rules.generation",
        "record.generation == self._rules.generation",
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
        "an update of a newer schema is passed over",
        "realtime",
        _UPDATES,
        "                    done.waits_for = error\n                    break\n",
        "                    done.waits_for = error\n",
        (_APPLIED,),
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
        (f"{_APPLIED}::test_what_expires_goes_by_the_log_s_timestamps_whoever_applies_and_removes_it",),
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
