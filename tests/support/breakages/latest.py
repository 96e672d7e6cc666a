"""Of reads of the latest: what is laid over what is committed, and when."""

from __future__ import annotations

from tests.support.breakages.breakage import Breakage

_CACHING = (
    "test_http_caching.py::test_an_answer_is_kept_until_the_next_epoch_is_due_and_no_longer_than_the_reader_allows"
)
_OTHERS_KEYS = (
    "test_latest_reads.py::test_a_key_that_is_none_or_whose_row_does_not_merge_fails_no_other_key_of_its_frame"
)
_BY_EVENT_TIME = (
    "test_latest_reads.py::test_what_expires_by_event_time_does_so_by_the_watermark_of_the_epoch_that_is_staged"
)
_OPEN_EPOCH = "services/state_server/write/open_epoch.py"
_OPEN_GROUP = "services/state_server/write/open_group.py"
_OF_SCANS = "test_scans_of_the_latest.py::test_it_is_what_the_commit_makes_of_it"
_WHILE_IT_IS_READ = "test_latest_scans.py::test_a_scan_has_what_was_staged_when_it_began_until_it_is_closed"

LATEST = (
    Breakage(
        "the latest has an epoch that is committed once more on top of it",
        "protocol",
        _OPEN_EPOCH,
        "part.epoch <= before.epoch",
        "part.epoch < before.epoch",
        ("test_latest_reads.py::test_whole_key_groups_are_shown_once_they_are_staged_and_until_they_are_committed",),
    ),
    Breakage(
        "the latest has what a job has staged that nobody has heard of since",
        "protocol",
        _OPEN_EPOCH,
        " or self._lease.expired:",
        ":",
        ("test_latest_reads.py::test_nothing_is_laid_over_where_it_may_not_count_any_more_or_is_not_at_hand",),
    ),
    Breakage(
        "the latest has a part of the rows of a key group, where others are on disk",
        "protocol",
        "services/state_server/write/staged.py",
        "        return rows if self.spool is None else None\n",
        "        return rows\n",
        ("test_latest_reads.py::test_nothing_is_laid_over_where_it_may_not_count_any_more_or_is_not_at_hand",),
    ),
    Breakage(
        "the latest of a key is without what clears it",
        "kinds",
        _OPEN_GROUP,
        "        if self._of.descriptor.map_key:\n",
        "        if not self._of.descriptor.map_key:\n",
        ("test_latest_reads.py::test_an_entry_depends_on_what_clears_its_key_and_an_element_on_those_before_it",),
    ),
    Breakage(
        "the latest of what expires by event time is merged by the watermark of the epoch before",
        "ttl",
        _OPEN_EPOCH,
        "        watermark_ms = part.attempt.watermark_ms\n",
        "        watermark_ms = before.watermark_ms\n",
        (_BY_EVENT_TIME,),
    ),
    Breakage(
        "the latest has rows of a task that does not say by which watermark they expire",
        "ttl",
        _OPEN_EPOCH,
        "ttl_clock is TtlClock.EVENT_TIME",
        "ttl_clock is None",
        (_BY_EVENT_TIME,),
    ),
    Breakage(
        "the latest has what has expired by the watermark of the epoch that is staged",
        "ttl",
        "services/state_server/read/copies.py",
        "show(stamp).rows(entries)",
        "show(standing.stamp).rows(entries)",
        (_BY_EVENT_TIME,),
    ),
    Breakage(
        "a row that does not merge fails the latest of all keys that are asked for with it",
        "routing",
        "services/state_server/servicers/lookup_responses.py",
        "KeyTooLong, ValueMismatch):",
        "KeyTooLong):",
        (_OTHERS_KEYS,),
    ),
    Breakage(
        "a key that is none fails the latest of all keys that are asked for with it",
        "routing",
        _OPEN_GROUP,
        "contextlib.suppress(MalformedRequest)",
        "contextlib.nullcontext()",
        (_OTHERS_KEYS,),
    ),
    Breakage(
        "a scan of the latest has entries that what is staged has cleared",
        "kinds",
        _OPEN_GROUP,
        "                is_cleared = last in cleared\n",
        "                is_cleared = False\n",
        (_OF_SCANS,),
    ),
    Breakage(
        "a scan of the latest has rows that have come before those that are staged",
        "kinds",
        _OPEN_GROUP,
        "            elif entry.merged or entries:\n",
        "            elif entry.merged:\n",
        (_OF_SCANS,),
    ),
    Breakage(
        "a scan of the latest keeps whatever is staged of a key group in memory",
        "routing",
        _OPEN_EPOCH,
        " > most_bytes)",
        " > 1 << 60)",
        (_WHILE_IT_IS_READ,),
    ),
    Breakage(
        "a scan of the latest that nobody reads on keeps the staged rows of its key group",
        "routing",
        "services/state_server/read/copies.py",
        "            self.entries = iter(())\n",
        "",
        (_WHILE_IT_IS_READ,),
    ),
    Breakage(
        "a proxy lets HTTP's caches keep what is staged for as long as what is committed",
        "routing",
        "services/client_proxy/http/caching.py",
        " or bounds.latest:",
        ":",
        (_CACHING,),
    ),
)
