"""Of savepoints: what is taken, and what is restored."""

from __future__ import annotations

from tests.support.breakages.breakage import Breakage

_CREATE = "src/keyhole/savepoint/create.py"
_RESTORE = "src/keyhole/savepoint/restore_application.py"
_FOLDER = "src/keyhole/savepoint/folder.py"

SAVEPOINT = (
    Breakage(
        "a damaged file of a savepoint is restored",
        "savepoint",
        _FOLDER,
        "    if digest.hexdigest() != saved.sha256:\n",
        "    if not digest.hexdigest():\n",
        ("test_savepoints.py::test_any_damage_is_found_before_anything_is_written",),
    ),
    Breakage(
        "what stands for a folder in an object store is saved as a file",
        "savepoint",
        _FOLDER,
        'if not path.endswith("/")}',
        "if path}",
        ("test_savepoint_folders.py::test_what_stands_for_a_folder_is_no_file_of_it",),
    ),
    Breakage(
        "a savepoint is taken though compaction has eaten a marker",
        "savepoint",
        _CREATE,
        "            if gone:\n",
        "            if len(gone) == state.key_groups + 1:\n",
        ("test_savepoints.py::test_a_marker_that_compaction_has_eaten_is_noticed",),
    ),
    Breakage(
        "a restore is recorded as ended over an application that has gone on",
        "savepoint",
        _RESTORE,
        "            self._still_begun(self._recorded(log))\n            now_ms",
        "            now_ms",
        ("test_savepoints.py::test_a_restore_that_wakes_to_another_application_of_its_name_leaves_it_alone",),
    ),
    Breakage(
        "a restore that wakes late writes its rows over those of the job",
        "savepoint",
        _RESTORE,
        "                writer.open(self._deadline)\n                self._confirm(log)\n",
        "                writer.open(self._deadline)\n",
        ("unit/test_savepoints.py",),
    ),
    Breakage(
        "a savepoint takes along what a batch has read without the file that has it",
        "savepoint",
        "src/keyhole/savepoint/spark_checkpoint.py",
        "for number in {pin.batch, pin.contents[-1]}]\n",
        "for number in {pin.batch}]\n",
        ("test_spark_checkpoint.py::test_with_what_a_batch_has_read_goes_the_file_that_has_it",),
    ),
    Breakage(
        "Spark's metadata is laid before the rest of a checkpoint",
        "savepoint",
        "src/keyhole/savepoint/laid_checkpoint.py",
        "key=lambda names: names[0] == _METADATA):\n",
        "key=lambda names: names[0] != _METADATA):\n",
        ("test_savepoints.py::test_a_checkpoint_gets_its_metadata_when_all_the_rest_is_there",),
    ),
)
