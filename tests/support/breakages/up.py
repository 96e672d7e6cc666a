"""Of `keyhole up` and `keyhole down`: whom they end, and what they delete."""

from __future__ import annotations

from tests.support.breakages.breakage import Breakage

_HOME = "src/keyhole/up/home.py"

UP = (
    Breakage(
        "a process that has the number of one that ended is taken for that one, and killed",
        "up",
        "src/keyhole/up/known_process.py",
        "        return bool(self.birth) and birth(self.pid) == self.birth\n",
        "        return bool(birth(self.pid))\n",
        ("test_up.py::test_a_process_with_the_number_of_one_that_has_ended_is_a_stranger",),
    ),
    Breakage(
        "a folder with other things in it is taken, and deleted with them",
        "up",
        _HOME,
        " and any(entry.name != CHECKPOINTS for entry in folder.iterdir()):\n",
        " and not folder:\n",
        ("test_up.py::test_a_folder_with_other_things_in_it_is_left_alone",),
    ),
    Breakage(
        "a second `keyhole dev` in a folder deletes what the first one writes",
        "up",
        _HOME,
        "                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n                if not os",
        "                if not os",
        ("test_developing.py::test_a_second_one_in_a_folder_is_refused_and_told_which_one_is_there",),
    ),
    Breakage(
        "what runs in a folder that was deleted and made again is never ended",
        "up",
        _HOME,
        "                    return self.file.exists() and os.path.samestat(self._running.stat(), mine)\n",
        "                    return self.file.exists()\n",
        ("test_up.py::test_the_holder_notices_that_folder_or_file_is_gone",),
    ),
    Breakage(
        "a child that outlives its supervisor is left",
        "up",
        "src/keyhole/up/taking_down.py",
        "            end_leftovers(recorded)\n",
        "",
        ("test_up.py::test_down_ends_what_holds_the_folder_and_says_so_again",),
    ),
)
