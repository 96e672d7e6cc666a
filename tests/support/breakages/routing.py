"""Of where a read goes, and what a copy may answer."""

from __future__ import annotations

from tests.support.breakages.breakage import Breakage

_RANKING = "src/keyhole/protocol/ranking.py"
_FORWARDING = "services/client_proxy/forwarding/frame.py"
_BOUNDS = "services/state_server/read/bounds_check.py"

ROUTING = (
    Breakage(
        "a proxy gathers the answers of any number of servers into one message",
        "routing",
        "services/client_proxy/forwarding/gathering.py",
        "        fits = size <= self._room or not self.begun\n",
        "        fits = True\n",
        ("test_forwarding.py::test_what_has_no_room_beside_the_answers_of_other_servers_is_left_for_another_frame",),
    ),
    Breakage(
        "what a full frame has no room for is asked for all the same",
        "routing",
        _FORWARDING,
        "            asked.segment.dropped = True\n",
        "            asked.segment.dropped = False\n",
        ("test_forwarding.py::test_what_has_no_room_beside_the_answers_of_other_servers_is_left_for_another_frame",),
    ),
    Breakage(
        "a state server looks at no value's size",
        "routing",
        "services/state_server/servicers/lookup_responses.py",
        "    if answers.large or lookup.as_json or len(",
        "    if len(",
        ("test_large_values.py::test_json_is_cut_by_its_own_size_and_says_where_it_is_too_large",),
    ),
    Breakage(
        "an owner that was replaced is believed where it has said so first",
        "routing",
        _RANKING,
        "    owner = max((claim for claim in claims if claim.owner), default=None)\n",
        "    owner = next((claim for claim in claims if claim.owner), None)\n",
        (
            "test_routing.py::test_the_newest_assignment_is_the_owners_and_the_old_one_answers_until_the_new_one_is_ready",
        ),
    ),
    Breakage(
        "a higher assignment version counts more than a newer generation",
        "routing",
        _RANKING,
        "    owner: bool\n    generation: int\n    assignment_version: int\n    ready: bool\n    staying",
        "    owner: bool\n    assignment_version: int\n    generation: int\n    ready: bool\n    staying",
        ("test_routing.py::test_a_newer_generation_wins_over_a_higher_assignment_version",),
    ),
    Breakage(
        "a server that keeps silent is asked first",
        "routing",
        _RANKING,
        "    if not claim.answering:\n        return _UNREADY + 1\n",
        "",
        ("test_routing.py::test_standbys_come_after_their_owner_and_before_it_while_it_restores_is_silent_or_lost",),
    ),
    Breakage(
        "of two owners alike the one that drains is chosen",
        "routing",
        _RANKING,
        "        staying=not view.draining,\n",
        "        staying=True,\n",
        ("test_routing.py::test_among_equals_the_ready_one_wins_and_a_draining_one_loses",),
    ),
    Breakage(
        "a reader that wants nothing stale is answered by a standby",
        "routing",
        "services/client_proxy/forwarding/routes.py",
        "    if stale is Stale.NEVER:\n",
        "    if stale is Stale.ALWAYS:\n",
        ("test_forwarding.py",),
    ),
    Breakage(
        "nobody watches for a server that keeps silent",
        "routing",
        "services/client_proxy/forwarding/asked.py",
        "        self._timer = loop.call_later(hop_seconds, self._is_overdue, hop_seconds, hop_seconds / 2)\n",
        "",
        ("test_forwarding.py",),
    ),
    Breakage(
        "an owner that was not heard of within its lease answers who wants nothing stale",
        "routing",
        _BOUNDS,
        "        if bounds.stale is Stale.NEVER and self._lease.expired:\n",
        "        if bounds.stale is Stale.NEVER and not self._lease.clock:\n",
        ("test_table_standby.py",),
    ),
    Breakage(
        "keys are answered together though one of them is before min_epoch",
        "routing",
        _BOUNDS,
        "            self._check_epoch(min(standing.stamp.epoch for standing in standings), bounds.min_epoch)\n",
        "            self._check_epoch(max(standing.stamp.epoch for standing in standings), bounds.min_epoch)\n",
        ("test_table.py",),
    ),
    Breakage(
        "a scan that broke off begins again with the pages it had",
        "routing",
        "src/keyhole/client/wire/scans.py",
        "            answer = _Answer(codec)\n",
        '            answer = locals().get("answer") or _Answer(codec)\n',
        ("test_scanning.py::test_the_client_begins_again_and_the_answer_is_of_one_copy_and_one_epoch",),
    ),
    Breakage(
        "a scan of all keys gives the entry of its token once more",
        "routing",
        "src/keyhole/encoding/codec.py",
        '        return EntryRange(prefix, after + b"\\0" if after else prefix, None)\n',
        "        return EntryRange(prefix, after or prefix, None)\n",
        ("test_scan_all.py::test_a_scan_goes_on_behind_its_token_wherever_it_was_left",),
    ),
    Breakage(
        "the token of a scan of all keys counts a page whose entries were not all given",
        "routing",
        "src/keyhole/client/wire/key_group_reads.py",
        "        if given < len(self.keys):\n",
        "        if given < 0:\n",
        ("test_scan_all.py::test_a_scan_goes_on_behind_its_token_wherever_it_was_left",),
    ),
    Breakage(
        "a scan of all keys that broke off within a key group begins that one again",
        "routing",
        "src/keyhole/client/wire/key_group_reads.py",
        "                if begun:\n                    raise self._broken_off(error) from error.__cause__\n",
        "",
        ("test_scan_all.py::test_what_breaks_off_within_a_key_group_says_so_and_goes_on_behind_its_token",),
    ),
    Breakage(
        "a scan waits for a silent owner alone",
        "routing",
        "services/client_proxy/forwarding/scan.py",
        "        if not done and self._hope and self._loop.time() >= self._due:\n",
        "        if not done and not self._hope and self._loop.time() >= self._due:\n",
        (
            "test_scanning.py::test_where_the_owner_is_silent_the_standby_is_scanned_and_the_owner_again_once_it_is_heard",
        ),
    ),
    Breakage(
        "a proxy that drains takes frames on",
        "routing",
        "services/client_proxy/grpc/lookup_session.py",
        "                if not self._reading:\n                    break\n",
        "",
        ("test_lookup_session.py",),
    ),
)
