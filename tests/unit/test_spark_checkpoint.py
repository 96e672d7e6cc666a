"""Which files of a Spark checkpoint belong to a batch; and what makes it the wrong one."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from keyhole.clock import Clock
from keyhole.errors import SavepointMismatch
from keyhole.savepoint.folder import Folder
from keyhole.savepoint.manifest import SavedCheckpoint
from keyhole.savepoint.spark_checkpoint import copy_checkpoint, parts_of_snapshot, state_files
from keyhole.savepoint.spark_log import checkpoint_of, says_all, source_offsets, unique_ids
from keyhole.spark.driver.checkpoint_files import LocalFiles
from keyhole.spark.driver.pins import BatchPins
from keyhole.testing.clock import ManualClock

ID = "4dceb7d9-171f-47ac-82ae-309038507825"
OTHER_ID = "776e40aa-2b40-4b9b-b2b2-69c065f33ccf"
ENTRY = 'v1\n{"batchWatermarkMs":0,"conf":{"a":"b"}}\n{"events":{"0":12,"1":7}}'


def files(store: str, kind: str, versions: Iterable[int]) -> list[str]:
    return [f"state/0/{store}/{version}.{kind}" for version in versions]


def test_without_a_snapshot_all_changes_up_to_the_version_are_needed() -> None:
    names = files("0", "delta", range(1, 10))
    assert state_files(names, 6, frozenset()) == files("0", "delta", range(1, 7))


def test_from_the_newest_snapshot_on_only_the_changes_since_are_needed() -> None:
    names = [*files("0", "delta", range(3, 10)), *files("0", "snapshot", [3, 5, 8])]
    assert sorted(state_files(names, 6, frozenset())) == [
        "state/0/0/5.delta",
        "state/0/0/5.snapshot",
        "state/0/0/6.delta",
    ]


def test_every_store_is_judged_by_itself() -> None:
    names = [*files("0/left", "zip", [5]), *files("0/left", "changelog", [6]), *files("1", "zip", [6, 7])]
    wanted = ["state/0/0/left/5.zip", "state/0/0/left/6.changelog", "state/0/1/6.zip"]
    assert sorted(state_files(names, 6, frozenset())) == wanted


def test_what_has_no_version_is_taken_whole_and_parts_of_snapshots_are_not() -> None:
    names = ["state/0/_metadata/metadata", "state/0/0/_metadata/schema", "state/0/0/SSTs/1-x.sst", "state/0/0/1.zip"]
    assert set(state_files(names, 1, frozenset())) == {*names} - {"state/0/0/SSTs/1-x.sst"}


def test_files_of_attempts_that_failed_are_left_out() -> None:
    names = [f"state/0/0/{version}_{unique}.zip" for version in (2, 3) for unique in (ID, OTHER_ID)]
    assert state_files([*names, f"{names[0]}.crc"], 2, frozenset({ID})) == [names[0], f"{names[0]}.crc"]


@pytest.mark.parametrize(
    "names",
    [
        files("0", "delta", [1, 2, 4]),
        files("0", "delta", [3, 4]),
        files("0", "zip", [5, 6]),
        [*files("0", "snapshot", [2]), *files("0", "delta", [4])],
    ],
)
def test_a_store_that_can_not_be_loaded_at_the_version_any_more_is_named(names: list[str]) -> None:
    with pytest.raises(SavepointMismatch, match=r"version 4 of state/0/0.*minBatchesToRetain"):
        state_files(names, 4, frozenset())


def test_a_rocksdb_snapshot_names_its_parts() -> None:
    metadata = {"sstFiles": [{"localFileName": "1.sst", "dfsSstFileName": "1-a.sst"}], "logFiles": [], "numKeys": 3}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("metadata", f"v1\n{json.dumps(metadata)}")
    assert parts_of_snapshot(archive.getvalue()) == ["SSTs/1-a.sst"]


def test_only_kafkas_offsets_say_all() -> None:
    assert says_all(ENTRY)
    assert says_all(ENTRY + '\n{"more":{"0":1}}')
    for other in ('{"logOffset":3}', '{"0":{"value":4,"runTimeMs":5}}', "-", "{}", "7", "nonsense"):
        assert not says_all(ENTRY + "\n" + other)
    assert not says_all("")
    assert not says_all(ENTRY.replace("v1", "v2"))
    assert source_offsets(ENTRY) == ('{"events":{"0":12,"1":7}}',)


def test_the_commit_log_tells_the_ids_of_files() -> None:
    assert unique_ids(f'v2\n{{"stateUniqueIds":{{"0":[["{ID}"],["{OTHER_ID}"]]}}}}') == {ID, OTHER_ID}
    assert unique_ids('v1\n{"nextBatchWatermarkMs":0}') == frozenset()


def test_a_checkpoint_that_is_made_has_two_entries_as_spark_wants_them() -> None:
    assert set(checkpoint_of(ID, 7, ENTRY, 0)) == {"metadata", "offsets/6", "offsets/7", "commits/7"}
    assert set(checkpoint_of(ID, 0, ENTRY, 0)) == {"metadata", "offsets/0", "commits/0"}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Batches 0 to 5, one store of one partition."""
    root = tmp_path / "checkpoint"
    for folder in ("offsets", "commits", "sources/0", "state/0/0"):
        (root / folder).mkdir(parents=True)
    (root / "metadata").write_text(json.dumps({"id": ID}))
    for batch in range(6):
        (root / "offsets" / str(batch)).write_text(ENTRY)
        (root / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        (root / "offsets" / f".{batch}.crc").write_bytes(b"crc")
        (root / "state" / "0" / "0" / f"{batch + 1}.delta").write_bytes(b"delta")
    (root / "sources" / "0" / "0").write_text("v1")
    return root


def copy(
    checkpoint: Path,
    batch: int,
    *,
    identity: str = ID,
    entry: str = ENTRY,
    wait: float = 0.0,
    clock: Clock | None = None,
) -> SavedCheckpoint:
    return copy_checkpoint(
        Folder(str(checkpoint)),
        Folder(str(checkpoint.parent / "copy")),
        "main",
        query="main",
        spark_query_id=identity,
        batch=batch,
        entry=entry,
        clock=clock or ManualClock(),
        wait_seconds=wait,
    )


def test_what_comes_after_the_batch_is_left_out(checkpoint: Path) -> None:
    saved = {file.path.removeprefix("main/") for file in copy(checkpoint, 3).files}
    logs = {f"{folder}/{batch}" for folder in ("offsets", "commits") for batch in range(4)}
    state = {f"state/0/0/{version}.delta" for version in range(1, 5)}
    assert saved == {"metadata", "sources/0/0"} | logs | state
    assert (checkpoint.parent / "copy" / "main" / "metadata").read_text() == json.dumps({"id": ID})


def test_what_batches_last_settled_is_taken_along(checkpoint: Path) -> None:
    for state, batches in (
        ("broadcast/app.rules", range(6)),
        ("broadcast/app.limits", (0, 1, 5)),
        ("broadcast/app.later", (4, 5)),
        ("subtasks/buffer", (0, 2, 4)),
    ):
        folder = checkpoint / "keyhole" / state
        folder.mkdir(parents=True)
        for batch in batches:
            (folder / str(batch)).write_bytes(b"read")
    saved = {file.path.removeprefix("main/") for file in copy(checkpoint, 3).files}
    read = {name for name in saved if name.startswith("keyhole/")}
    assert read == {
        "keyhole/broadcast/app.rules/3",
        "keyhole/broadcast/app.limits/1",
        "keyhole/subtasks/buffer/2",
    }


@pytest.mark.parametrize("batch", range(6))
def test_with_what_a_batch_has_read_goes_the_file_that_has_it(checkpoint: Path, batch: int) -> None:
    pins = [BatchPins(LocalFiles(checkpoint / "keyhole/broadcast/app.rules"), number, kept=9) for number in range(6)]
    for number, of in enumerate(pins):
        of.share(b"lax" if number < 2 else b"strict", str(number), of.before())
    saved = {file.path.removeprefix("main/") for file in copy(checkpoint, batch).files}
    read = {name.rpartition("/")[2] for name in saved if name.startswith("keyhole/")}
    assert read == {str(batch), str(batch if batch < 2 else 2) if batch != 1 else "0"}
    after = BatchPins(LocalFiles(checkpoint.parent / "copy/main/keyhole/broadcast/app.rules"), batch + 1, kept=2)
    before = after.before()
    assert before is not None
    assert (after.content(before), before.note) == (b"lax" if batch < 2 else b"strict", str(batch))
    now = after.share(b"strict", "9", before)
    assert after.content(now) == b"strict"


def test_spark_says_a_moment_later_than_keyhole_that_a_batch_is_done(checkpoint: Path) -> None:
    said = checkpoint / "commits" / "5"
    said.unlink()

    class Meanwhile(ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.monotonic() > 20:
                said.write_text("v1\n{}")

    with pytest.raises(SavepointMismatch, match="does not say that this batch is done"):
        copy(checkpoint, 5, wait=10, clock=Meanwhile())
    assert copy(checkpoint, 5, wait=30, clock=Meanwhile()).batch == 5


def test_a_checkpoint_that_is_not_the_right_one_is_refused(checkpoint: Path) -> None:
    with pytest.raises(SavepointMismatch, match="another query"):
        copy(checkpoint, 3, identity=OTHER_ID)
    with pytest.raises(SavepointMismatch, match="other source offsets"):
        copy(checkpoint, 3, entry=ENTRY.replace("12", "13"))
    with pytest.raises(SavepointMismatch, match="does not say that this batch is done"):
        copy(checkpoint, 6)
    (checkpoint / "offsets" / "3").unlink()
    with pytest.raises(SavepointMismatch, match="no offsets of this batch any more"):
        copy(checkpoint, 3)
    (checkpoint / "metadata").unlink()
    with pytest.raises(SavepointMismatch, match="no file `metadata`"):
        copy(checkpoint, 3)
