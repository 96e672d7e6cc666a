"""Of a state server's reader processes: what they can't read, what they are told, and what they pass on."""

from __future__ import annotations

from tests.support.breakages.breakage import Breakage

_AT_THE_DRAIN = (
    "test_lookup_port_of_several.py::test_a_connection_that_was_not_taken_yet_at_the_drain_is_told_where_to_ask"
)
_LEFT_OF_ITS_TIME = (
    "test_server_readers.py::"
    "test_a_frame_that_is_passed_on_has_what_is_left_of_its_time_and_is_dropped_unread_behind_that"
)
_LOGGED_ONCE = (
    "test_server_readers.py::"
    "test_whatever_keeps_a_reader_from_a_store_is_told_once_with_its_cause_and_the_reader_goes_on"
)
_BEHIND_AN_INDEX = (
    "test_reader_processes.py::"
    "test_a_reader_that_begins_behind_an_index_that_was_built_answers_itself_without_another_epoch"
)

READERS = (
    Breakage(
        "a store that is damaged is one that comes later",
        "readers",
        "src/keyhole/stores/lmdb/environment.py",
        "if error.code == errno.ENOENT:",
        "if True:",
        ("test_lmdb_readers.py::test_a_reader_says_of_a_store_that_cant_be_read_why_not_and_not_that_it_comes_later",),
    ),
    Breakage(
        "a reader ends by a bug of one table",
        "readers",
        "services/state_server/readers/read_tables.py",
        "except Exception as error:",
        "except KeyholeError as error:",
        (_LOGGED_ONCE,),
    ),
    Breakage(
        "a reader that can't be heard any more lives on",
        "readers",
        "services/state_server/readers/reader_process.py",
        """can't be heard any more", extra={"number": self.number})
            self.kill()""",
        """can't be heard any more", extra={"number": self.number})""",
        ("test_server_readers.py::test_a_reader_that_the_server_cant_hear_any_more_is_ended_and_the_cause_is_told",),
    ),
    Breakage(
        "connections that wait at the drain are reset",
        "readers",
        "src/keyhole/rpc/accepting.py",
        "                self._accept(listening)\n            except OSError",
        "                pass\n            except OSError",
        (_AT_THE_DRAIN,),
    ),
    Breakage(
        "a reader that drains leaves what it was given untaken",
        "readers",
        "services/state_server/readers/reader_child.py",
        "if asyncio.get_running_loop().remove_reader(self._socket):",
        "if not asyncio.get_running_loop().remove_reader(self._socket):",
        ("test_server_readers.py::test_connections_that_a_reader_has_not_taken_yet_as_it_drains_are_taken_to_be_told",),
    ),
    Breakage(
        "a frame that is passed on has all of its time again",
        "readers",
        "services/state_server/readers/reader_frames.py",
        "(request.timeout_ms - late_ms)",
        "request.timeout_ms",
        (_LEFT_OF_ITS_TIME,),
    ),
    Breakage(
        "what is passed on is answered however late it is",
        "readers",
        "services/state_server/readers/passed_on.py",
        "if self._late_seconds is None or self._late_seconds < 0:",
        "if True:",
        (_LEFT_OF_ITS_TIME,),
    ),
    Breakage(
        "a reader that begins behind the store is shown nothing until the next epoch",
        "readers",
        "services/state_server/readers/read_tables.py",
        "CopiesBehind(shown.number, not owned, not standby)",
        "CopiesBehind(shown.number, owned=False, standby=False)",
        (_BEHIND_AN_INDEX,),
    ),
    Breakage(
        "a later view is shown as an epoch that it is behind",
        "readers",
        "services/state_server/read/copies.py",
        "if any(positions[group].epoch > epoch for group, epoch in shown.items()):",
        "if False:",
        ("test_read_tables.py",),
    ),
)
