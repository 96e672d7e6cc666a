"""Of what a reader's process does: coalescing, sessions, errors, decoding."""

from __future__ import annotations

from tests.support.breakages.breakage import Breakage

_COALESCING = "src/keyhole/client/coalescing.py"

CLIENT = (
    Breakage(
        "answers of another number than the keys are handed out",
        "client",
        _COALESCING,
        "        if len(answers.values) != len(frame.keys):\n",
        "        if len(answers.values) < 0:\n",
        ("test_coalescing.py::test_an_answer_of_another_length_fails_the_frame_instead_of_mixing_up_keys",),
    ),
    Breakage(
        "what waits for a frame has no deadline",
        "client",
        _COALESCING,
        "            late += (part for part in waiting if part.segment.deadline <= now)\n",
        "",
        ("test_coalescing.py::test_each_segment_has_its_own_deadline_waiting_or_in_flight",),
    ),
    Breakage(
        "keys for which a response had no room are taken for failed",
        "client",
        _COALESCING,
        "            if 0 < len(full) < len(frame.keys):\n",
        "            if len(full) > len(frame.keys):\n",
        ("test_coalescing.py::test_frames_shrink_by_what_a_full_response_brings_too",),
    ),
    Breakage(
        "a key for which there is never room never travels alone",
        "client",
        "src/keyhole/client/segments.py",
        "        limit = min(limit, most)\n",
        "",
        ("test_coalescing.py::test_keys_for_which_there_is_never_room_come_to_travel_alone_whatever_comes_meanwhile",),
    ),
    Breakage(
        "large keys make a frame of any size",
        "client",
        _COALESCING,
        "            if sum(map(len, keys)) > self._max_frame_bytes:\n",
        "            if not keys:\n",
        ("test_coalescing.py::test_keys_that_are_large_together_travel_in_several_frames",),
    ),
    Breakage(
        "a session does not ask for what it has seen",
        "client",
        "src/keyhole/client/session.py",
        "        return max(min_epoch, self._epochs.get((application, state), 0))\n",
        "        return min_epoch\n",
        ("test_client_session.py",),
    ),
    Breakage(
        "a session forgets the highest epoch for the last one",
        "client",
        "src/keyhole/client/session.py",
        "        self._epochs[name] = max(newest, self._epochs.get(name, 0))\n",
        "        self._epochs[name] = newest\n",
        ("test_client_session.py",),
    ),
    Breakage(
        "a child beside its parent's connection calls all the same",
        "client",
        "src/keyhole/rpc/forked.py",
        "    process.cut_off = process.cut_off or process.cuts_off\n",
        "    process.cut_off = process.cut_off and process.cuts_off\n",
        ("test_forked_clients.py::test_another_client_in_the_child_says_the_same_while_the_parents_is_open",),
    ),
    Breakage(
        "a stream whose client is closed is cut off",
        "client",
        "src/keyhole/client/lookup_stream.py",
        "            if not self._coalescer.keys:\n                await self._leave(self._runner)\n",
        "",
        ("test_event_loops.py::test_one_event_loop_after_the_other_has_a_client_without_a_word_of_grpcs",),
    ),
    Breakage(
        "the characters of a text are many keys",
        "client",
        "src/keyhole/client/lookups.py",
        "    if isinstance(keys, (str, bytes, bytearray)):\n",
        "    if isinstance(keys, bytearray):\n",
        ("test_client_arguments.py::test_many_keys_are_not_the_characters_of_one",),
    ),
    Breakage(
        "a row of a newer schema is taken for a damaged one",
        "client",
        "src/keyhole/codec.py",
        "        if (newer := _version_of(row)) > version:\n",
        "        if (newer := _version_of(row)) < 0:\n",
        ("test_evolution.py::TestRead::test_a_row_of_a_newer_schema_says_that_the_description_is_old",),
    ),
    Breakage(
        "max_staleness is cut off to whole milliseconds",
        "client",
        "src/keyhole/client/bounds.py",
        "    staleness_ms = math.ceil(round(",
        "    staleness_ms = int(round(",
        ("test_client_session.py",),
    ),
    Breakage(
        "a lookup that is refused as stale is sent again and again",
        "client",
        "src/keyhole/client/lookups.py",
        "        if batch.again or not isinstance(error, StaleDescriptor):\n",
        "        if not isinstance(error, StaleDescriptor):\n",
        ("test_client_lookups.py",),
    ),
    Breakage(
        "of two columns that Python can't tell apart one is read as the other",
        "client",
        "src/keyhole/row.py",
        "(form not in names and read.count(form) == 1)",
        "form not in names",
        ("test_names.py::test_no_attribute_is_another_columns",),
    ),
)
