"""Savepoints over the changelog in memory: what is saved is what comes back, and what can't be is refused by name."""

from __future__ import annotations

import copy
import dataclasses
import functools
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from keyhole.changelog.base import ChangelogWriter, Partition, TopicRight
from keyhole.coordinator.new_states import DECLARING
from keyhole.errors import (
    Fenced,
    InvalidConfiguration,
    KafkaUnreachable,
    KeyholeError,
    OutcomeUnknown,
    SavepointDamaged,
    SavepointMismatch,
    TopicMismatch,
    UnknownApplication,
)
from keyhole.protocol.batch_decisions import following, plain, written
from keyhole.protocol.control import CompleteRecord, QueryRecord, SavepointRecord, read_control, record
from keyhole.savepoint import create as creating
from keyhole.savepoint import laid_checkpoint
from keyhole.savepoint import restore_application as restoring
from keyhole.savepoint.create import CreateSettings, create
from keyhole.savepoint.folder import Folder, SavedFile, copy_file, part_of
from keyhole.savepoint.listing import listing, load
from keyhole.savepoint.manifest import INCOMPLETE, MANIFEST, Savepoint
from keyhole.savepoint.restore_application import plan_of, restore
from keyhole.savepoint.restore_plan import RestoreOptions
from keyhole.spark.driver.checkpoint_files import LocalFiles
from keyhole.spark.driver.pins import BatchPins
from keyhole.stores.replayed import Replayed
from keyhole.testing.changelog import MemoryChangelog, MemoryControlLog, MemoryKafka
from keyhole.testing.clock import ManualClock
from tests.support.applications import FILE_ENTRY, Application, control_of, next_epoch, numbers_of
from tests.support.states import descriptor

NUMBERS = {f"key-{number}": float(number) for number in range(50)}
HOUR_MS = 3600 * 1000


@pytest.fixture
def saved(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "savepoint"))


@pytest.fixture
def application() -> Application:
    """Epochs 3 and 4 are complete; the second deletes a key and changes another."""
    made = Application()
    made.run(3, NUMBERS)
    made.run(4, {"key-0": None, "key-1": -1.0})
    return made


EXPECTED = {key: number for key, number in NUMBERS.items() if key != "key-0"} | {"key-1": -1.0}


def take(application: Application, target: Folder, clock: ManualClock | None = None, **settings: object) -> Savepoint:
    chosen = dataclasses.replace(CreateSettings(kafka_deadline_seconds=1), **settings)  # type: ignore[arg-type]
    return create(application.of.application, application.changelog, target, {}, clock or ManualClock(), chosen)


def bring_back(source: Folder, kafka: MemoryKafka, options: RestoreOptions) -> bool:
    _, plan = plan_of(source, options)
    return restore(source, plan, MemoryChangelog(kafka, plan.application), ManualClock(), 1)


@pytest.fixture
def options(tmp_path: Path) -> RestoreOptions:
    return RestoreOptions(checkpoints={"main": str(tmp_path / "checkpoint")})


# --- what comes back --------------------------------------------------------------------------------------------------


def test_what_was_saved_comes_back_in_an_empty_kafka(
    application: Application, saved: Folder, options: RestoreOptions
) -> None:
    savepoint = take(application, saved)
    assert [(state.descriptor, state.rows) for state in savepoint.states] == [(application.of, len(EXPECTED))]
    empty = MemoryKafka()
    assert not bring_back(saved, empty, options)
    assert numbers_of(empty, descriptor()) == EXPECTED
    assert next_epoch(empty, "app") == 5


@pytest.mark.parametrize("groups", [1, 3, 4, 64])
def test_any_number_of_key_groups_may_be_chosen(
    application: Application, saved: Folder, options: RestoreOptions, groups: int
) -> None:
    take(application, saved)
    empty = MemoryKafka()
    bring_back(saved, empty, dataclasses.replace(options, key_groups={"counts": groups}))
    assert numbers_of(empty, descriptor(key_groups=groups)) == EXPECTED


def test_the_control_records_let_the_next_run_go_on_where_the_epoch_ended(
    application: Application, saved: Folder, options: RestoreOptions
) -> None:
    take(application, saved)
    bring_back(saved, application.kafka, dataclasses.replace(options, application="copy", states={"counts": "sums"}))
    control = read_control(control_of(application.kafka, "copy"), "main")
    assert list(control.states) == ["sums"]
    assert control.generation == 2
    assert control.query == application.query
    assert control.complete is not None
    assert (control.complete.epoch, control.complete.generation, control.complete.offsets_hash) == (4, 2, 4)
    assert control.savepoint is not None
    assert (control.savepoint.states, control.savepoint.finished) == (("sums",), True)
    reader = MemoryChangelog(application.kafka, "copy").reader()
    ends = reader.ends({"sums": range(4)}, 1)
    # Every key group's last record is the marker of the complete epoch, where the coordinator looks for it.
    assert control.complete.markers == {"sums": [ends[Partition("sums", group)] - 2 for group in range(4)]}


def test_a_stateless_query_gets_a_checkpoint_that_says_its_batch_is_done(
    application: Application, saved: Folder, options: RestoreOptions, tmp_path: Path
) -> None:
    take(application, saved)
    bring_back(saved, MemoryKafka(), options)
    laid = tmp_path / "checkpoint"
    assert application.spark_query_id in (laid / "metadata").read_text()
    assert (laid / "offsets" / "1").read_text() == application.entry
    assert (laid / "commits" / "1").read_text() == 'v1\n{"nextBatchWatermarkMs":2000}'


def test_what_batches_have_settled_is_found_under_the_names_that_states_have_from_now_on(
    application: Application, saved: Folder, tmp_path: Path
) -> None:
    new = tmp_path / "checkpoint"
    rules, same = following(None, 0, b"rules", "1", 0), following(plain(0, b"rules"), 1, b"rules", "2", 0)
    settled = {
        "keyhole/subtasks/counts/1": "8",
        "keyhole/broadcast/app.counts/0": written(rules).decode(),
        "keyhole/broadcast/app.counts/1": written(same).decode(),
    }
    # The last one is of a state that is no more, whose name another one gets.
    take_with_checkpoint(application, saved, tmp_path / "old", settled | {"keyhole/subtasks/sums/1": "3"})
    named = RestoreOptions(application="copy", states={"counts": "sums"}, checkpoints={"main": str(new)})
    bring_back(saved, MemoryKafka(), named)
    laid = {str(path.relative_to(new)): path.read_text() for path in (new / "keyhole").rglob("*") if path.is_file()}
    renamed = {name.replace("app.counts", "copy.sums").replace("counts", "sums"): of for name, of in settled.items()}
    assert laid == settled | renamed
    pins = BatchPins(LocalFiles(new / "keyhole/broadcast/copy.sums"), 2, kept=100)
    before = pins.before()
    assert before is not None
    assert (pins.content(before), before.note) == (b"rules", "2")


def test_a_savepoint_with_what_batches_have_read_is_refused_by_who_reads_no_such_files(
    application: Application, tmp_path: Path
) -> None:
    for form, name in ((1, "keyhole/subtasks/counts/1"), (3, "keyhole/broadcast/app.counts/1")):
        saved = Folder(str(tmp_path / f"saved-{form}"))
        take_with_checkpoint(application, saved, tmp_path / f"checkpoint-{form}", {name: "8"})
        assert saved.read(MANIFEST).startswith(b'{"format": %d,' % form)


def take_with_checkpoint(
    application: Application, target: Folder, checkpoint: Path, settled: Mapping[str, str]
) -> None:
    files = {
        "metadata": f'{{"id":"{application.spark_query_id}"}}',
        "offsets/1": application.entry,
        "commits/1": 'v1\n{"nextBatchWatermarkMs":2000}',
        **settled,
    }
    for name, text in files.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(text)
    settings = CreateSettings(kafka_deadline_seconds=1)
    create("app", application.changelog, target, {"main": Folder(str(checkpoint))}, ManualClock(), settings)


def test_what_spark_notes_of_its_schemas_says_where_they_are_now_though_the_old_checkpoint_is_gone(
    application: Application, saved: Folder, options: RestoreOptions, tmp_path: Path
) -> None:
    old, new, moved = tmp_path / "old", Path(options.checkpoints["main"]), tmp_path / "moved"
    schema, notes = "state/0/_stateSchema/default/0_schema", "state/0/_metadata/v2/0"

    def text(of: Path) -> str:
        return f'v2\n{{"stateStoreInfo":[{{"stateSchemaFilePaths":["file:{of}/{schema}"]}}]}}'

    take_with_checkpoint(application, saved, old, {notes: text(old), schema: "of the state"})
    shutil.rmtree(old)
    Path(saved.path).rename(moved)
    bring_back(Folder(str(moved)), MemoryKafka(), options)
    assert (new / notes).read_text() == text(new)
    assert (new / schema).read_text() == "of the state"


def test_a_checkpoint_gets_its_metadata_when_all_the_rest_is_there(
    application: Application, saved: Folder, options: RestoreOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is broken off before that is no checkpoint: Spark begins a new query there, which Keyhole refuses."""
    take_with_checkpoint(
        application, saved, tmp_path / "old", {"state/0/0/1.delta": "rows", "state/0/0/2.delta": "rows"}
    )
    new = Path(options.checkpoints["main"])
    before: list[set[str]] = []

    def copied(*arguments: Any) -> SavedFile:
        before.append({str(path.relative_to(new)) for path in new.rglob("*") if path.is_file()})
        return copy_file(*arguments)

    monkeypatch.setattr(laid_checkpoint, "copy_file", copied)
    bring_back(saved, MemoryKafka(), options)
    assert (new / "metadata").exists()
    assert [len(there) for there in before] == list(range(len(before)))
    assert "metadata" not in set().union(*before)


def test_the_original_is_untouched_and_nobody_is_fenced(application: Application, saved: Folder) -> None:
    before = control_of(application.kafka, "app")
    take(application, saved)
    assert control_of(application.kafka, "app") == before
    application.run(5, {"key-2": 9.0})


def test_what_a_later_epoch_has_written_is_left_out(
    application: Application, saved: Folder, options: RestoreOptions
) -> None:
    application.commit(5, {"key-2": 9.0, "new": 1.0}, commit_time_ms=ManualClock().now_ms())
    take(application, saved)
    empty = MemoryKafka()
    bring_back(saved, empty, options)
    assert numbers_of(empty, descriptor()) == EXPECTED


def test_two_queries_are_saved_each_at_its_own_epoch(saved: Folder, tmp_path: Path) -> None:
    first = Application()
    first.run(3, NUMBERS)
    second = Application(first.kafka, descriptor(state="other", query="second"), spark_query_id="another")
    second.run(8, {"x": 1.0})
    take(first, saved)
    empty = MemoryKafka()
    places = {name: str(tmp_path / name) for name in ("main", "second")}
    bring_back(saved, empty, RestoreOptions(checkpoints=places))
    assert (next_epoch(empty, "app", "main"), next_epoch(empty, "app", "second")) == (4, 9)
    assert numbers_of(empty, descriptor(state="other")) == {"x": 1.0}


def test_a_query_without_a_complete_epoch_is_left_out_and_named(application: Application, saved: Folder) -> None:
    Application(application.kafka, descriptor(state="young", query="newcomer"), spark_query_id="another")
    savepoint = take(application, saved)
    assert savepoint.skipped_queries == ("newcomer",)
    assert [state.descriptor.state for state in savepoint.states] == ["counts"]


def test_a_savepoint_may_be_in_any_folder_that_fsspec_reaches(
    application: Application, options: RestoreOptions
) -> None:
    target = Folder("memory://savepoints/one")
    take(application, target)
    empty = MemoryKafka()
    bring_back(target, empty, options)
    assert numbers_of(empty, descriptor()) == EXPECTED
    target.clear()


# --- what can't be saved ----------------------------------------------------------------------------------------------


def test_an_application_without_a_complete_epoch_is_refused(saved: Folder) -> None:
    with pytest.raises(UnknownApplication, match="complete epoch"):
        take(Application(), saved)
    with pytest.raises(UnknownApplication, match="nobody"):
        create("nobody", MemoryChangelog(MemoryKafka(), "nobody"), saved, {}, ManualClock(), CreateSettings(1))


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: Application(stateful=True), "state of its own"),
        (lambda: Application(entry=FILE_ENTRY), "sources' offsets"),
        (lambda: Application(entry=""), "sources' offsets"),
    ],
)
def test_a_query_that_needs_its_checkpoint_is_refused_by_name(
    saved: Folder, made: Callable[[], Application], why: str
) -> None:
    application = made()
    application.run(3, NUMBERS)
    with pytest.raises(SavepointMismatch, match=f"'main'.*{why}.*--checkpoint main="):
        take(application, saved)


def test_a_checkpoint_for_a_query_that_is_not_there_is_refused(application: Application, saved: Folder) -> None:
    with pytest.raises(SavepointMismatch, match="mian"):
        create("app", application.changelog, saved, {"mian": Folder("x")}, ManualClock(), CreateSettings(1))


def test_a_query_that_has_just_begun_from_a_new_checkpoint_is_refused(application: Application, saved: Folder) -> None:
    anew = QueryRecord("another", base=6, first_epoch=6)
    application.control.append(record("query", "main", anew), 1)
    with pytest.raises(SavepointMismatch, match="new checkpoint"):
        take(application, saved)


def test_queries_of_one_checkpoint_at_different_batches_are_waited_for_and_then_refused(
    application: Application, saved: Folder
) -> None:
    other = Application(application.kafka, descriptor(state="other", query="second"))
    other.run(3, {"x": 1.0})
    with pytest.raises(SavepointMismatch, match="'second' at batch 0"):
        take(application, saved, kafka_deadline_seconds=0.1)
    other.run(4, {"x": 2.0})
    take(application, saved)


def test_a_part_of_the_next_epoch_that_is_old_is_refused_because_compaction_may_have_passed(
    application: Application, saved: Folder
) -> None:
    clock = ManualClock()
    application.commit(5, {"key-2": 9.0}, commit_time_ms=clock.now_ms() - HOUR_MS)
    with pytest.raises(SavepointMismatch, match="compaction"):
        take(application, saved, clock)
    application.complete(5)
    take(application, saved, clock)


def test_reading_for_longer_than_the_compaction_lag_is_tried_again_and_then_refused(
    application: Application, saved: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, tries = ManualClock(), list[float]()

    class Slow(Replayed):
        def advance(self, *arguments: object) -> None:
            super().advance(*arguments)  # type: ignore[arg-type]  # passed on
            tries.append(clock.monotonic())
            clock.advance(601 if len(tries) < 3 else 1)

    monkeypatch.setattr(creating, "Replayed", Slow)
    take(application, saved, clock)
    assert len(tries) == 3
    saved.clear()
    tries.clear()
    with pytest.raises(SavepointMismatch, match=r"min\.compaction\.lag\.ms"):
        take(application, saved, clock, attempts=2)
    assert MANIFEST not in saved.files()


@pytest.mark.parametrize("replaced", [NUMBERS, list(NUMBERS)[:10]])
def test_a_marker_that_compaction_has_eaten_is_noticed(
    application: Application, saved: Folder, monkeypatch: pytest.MonkeyPatch, replaced: Collection[str]
) -> None:
    """The job runs on, and Kafka compacts without regard to the lag, between the look at the epoch and the reading."""
    plain = creating._SavepointTry._save_state

    def late(self: creating._SavepointTry, *arguments: object) -> object:
        application.run(5, dict.fromkeys(replaced, 7.0))
        application.kafka.compact(application.of.topic)
        return plain(self, *arguments)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(creating._SavepointTry, "_save_state", late)
    with pytest.raises(SavepointMismatch, match="marker of counts key group"):
        take(application, saved, attempts=1)


def test_an_interrupted_savepoint_has_no_manifest_and_may_be_taken_anew(
    application: Application, saved: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        application.kafka.down = True
        raise KafkaUnreachable("gone")

    with monkeypatch.context() as patched:
        patched.setattr(creating._SavepointTry, "_save_queries", broken)
        with pytest.raises(KafkaUnreachable):
            take(application, saved)
    files = saved.files()
    assert MANIFEST not in files
    assert INCOMPLETE in files
    with pytest.raises(SavepointMismatch, match="incomplete"):
        load(saved)
    application.kafka.down = False
    take(application, saved)
    assert INCOMPLETE not in saved.files()
    assert load(saved).application == "app"


@pytest.mark.parametrize("remains", [(), ("states/counts/00000.arrow",)])
def test_the_remains_of_one_that_had_hardly_begun_are_told_and_may_be_taken_anew(
    application: Application, saved: Folder, remains: Sequence[str]
) -> None:
    """It ended before its first file had its name; or in the middle of removing what an earlier one had left."""
    for name in (part_of(INCOMPLETE), *remains):
        with saved.writing(name) as file:
            file.write(b"{")
    (listed,) = listing(saved, checksums=False)
    assert "incomplete" in listed.problem
    take(application, saved)
    assert saved.files().keys() == {MANIFEST, "states/counts/00000.arrow"}


def test_what_one_that_was_broken_off_has_left_is_told_as_long_as_there_is_any(
    application: Application, saved: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes one anew may end, too, while these files are removed."""
    for name in (INCOMPLETE, "states/a/00000.arrow", "states/b/00000.arrow"):
        saved.write_whole(name, b"{}")

    def first(files: LocalFileSystem, path: str, **_: object) -> None:
        files.rm_file(min(files.find(path)))
        raise OSError("power cut")

    with monkeypatch.context() as patched:
        patched.setattr(LocalFileSystem, "rm", first)
        with pytest.raises(InvalidConfiguration, match="power cut"):
            take(application, saved)
    (listed,) = listing(saved, checksums=False)
    assert "incomplete" in listed.problem
    take(application, saved)
    assert saved.files().keys() == {MANIFEST, "states/counts/00000.arrow"}


def test_a_savepoint_is_whole_from_its_manifest_on(application: Application, saved: Folder) -> None:
    """It ended before it could remove the note that it was not."""
    take(application, saved)
    saved.write_whole(INCOMPLETE, b"{}")
    with pytest.raises(SavepointMismatch, match="a savepoint already"):
        take(application, saved)
    (listed,) = listing(saved, checksums=True)
    assert listed.problem == ""


def test_a_folder_that_is_in_use_is_left_alone(application: Application, saved: Folder, tmp_path: Path) -> None:
    take(application, saved)
    with pytest.raises(SavepointMismatch, match="a savepoint already"):
        take(application, saved)
    (tmp_path / "diary").mkdir()
    (tmp_path / "diary" / "monday.txt").write_text("dear diary")
    with pytest.raises(SavepointMismatch, match="no savepoint"):
        take(application, Folder(str(tmp_path / "diary")))
    assert (tmp_path / "diary" / "monday.txt").exists()


def test_a_place_that_fsspec_does_not_know_is_named() -> None:
    with pytest.raises(InvalidConfiguration, match="nowhere"):
        Folder("nowhere://bucket")


# --- damage -----------------------------------------------------------------------------------------------------------


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [Path.unlink, _truncate, _flip])
@pytest.mark.parametrize("file", [MANIFEST, "states/counts/00000.arrow"])
def test_any_damage_is_found_before_anything_is_written(
    application: Application,
    saved: Folder,
    options: RestoreOptions,
    tmp_path: Path,
    file: str,
    damage: Callable[[Path], None],
) -> None:
    take(application, saved)
    damage(tmp_path / "savepoint" / file)
    empty = MemoryKafka()
    with pytest.raises(SavepointDamaged):
        bring_back(saved, empty, options)
    assert empty.topic_id("keyhole.app.control") is None
    assert not (tmp_path / "checkpoint").exists()
    (listed,) = listing(saved, checksums=True)
    assert "damaged" in listed.problem


def test_a_list_tells_savepoints_from_other_folders(application: Application, tmp_path: Path) -> None:
    for name in ("b", "a"):
        take(application, Folder(str(tmp_path / "all" / name)))
    (tmp_path / "all" / "c").mkdir()
    (tmp_path / "all" / "c" / INCOMPLETE).write_text("{}")
    (tmp_path / "all" / "d").mkdir()
    (tmp_path / "all" / "b" / "states" / "counts" / "00000.arrow").unlink()
    found = listing(Folder(str(tmp_path / "all")), checksums=False)
    assert [(Path(each.path).name, bool(each.problem)) for each in found] == [("a", False), ("b", True), ("c", True)]
    assert "incomplete" in found[2].problem


def test_a_later_format_is_refused(application: Application, saved: Folder) -> None:
    take(application, saved)
    manifest = saved.read(MANIFEST).replace(b'"format": 1', b'"format": 4')
    saved.write_whole(MANIFEST, manifest)
    with pytest.raises(SavepointMismatch, match="format 4; this version of Keyhole reads formats 1 to 3"):
        load(saved)


# --- what can't be restored -------------------------------------------------------------------------------------------


@pytest.fixture
def taken(application: Application, saved: Folder) -> Folder:
    take(application, saved)
    return saved


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"key_groups": {"counts": 0}}, "0 key groups"),
        ({"key_groups": {"counts": 65_537}}, "65537 key groups"),
        ({"key_groups": {"sums": 8}}, "no state 'sums'"),
        ({"states": {"sums": "counts"}}, "no state 'sums'"),
        ({"states": {"counts": "control"}}, "'control'"),
        ({"states": {"counts": "a b"}}, "'a b'"),
        ({"application": "a.b"}, r"'a\.b'"),
        ({"queries": {"other": "main"}}, "no query 'other'"),
        ({"checkpoints": {}}, "--checkpoint main="),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(
    taken: Folder, options: RestoreOptions, changes: dict[str, object], why: str
) -> None:
    with pytest.raises(SavepointMismatch, match=why):
        plan_of(taken, dataclasses.replace(options, **changes))  # type: ignore[arg-type]


def test_names_that_clash_and_checkpoints_that_are_mixed_up_are_refused(saved: Folder) -> None:
    first = Application()
    first.run(3, NUMBERS)
    Application(first.kafka, descriptor(state="other", query="second"), spark_query_id="another").run(8, {"x": 1.0})
    take(first, saved)
    places = {"main": "a", "second": "b"}
    with pytest.raises(SavepointMismatch, match="both become 'other'"):
        plan_of(saved, RestoreOptions(states={"counts": "other"}, checkpoints=places))
    with pytest.raises(SavepointMismatch, match="both become 'second'"):
        plan_of(saved, RestoreOptions(queries={"main": "second"}, checkpoints=places))
    with pytest.raises(SavepointMismatch, match="share a folder"):
        plan_of(saved, RestoreOptions(checkpoints={"main": "a", "second": "a"}))


def test_an_application_in_use_is_refused_and_its_coordinator_goes_on(
    application: Application, taken: Folder, options: RestoreOptions
) -> None:
    with pytest.raises(SavepointMismatch, match="in use"):
        bring_back(taken, application.kafka, options)
    application.run(5, {"key-2": 9.0})  # it was not fenced


def test_a_topic_with_records_that_no_control_topic_knows_is_refused(taken: Folder, options: RestoreOptions) -> None:
    other = Application()
    other.run(3, NUMBERS)
    other.kafka.delete_topic("keyhole.app.control")
    with pytest.raises(SavepointMismatch, match=r"keyhole\.app\.counts holds records"):
        bring_back(taken, other.kafka, options)


def test_a_folder_with_another_checkpoint_is_refused(taken: Folder, options: RestoreOptions, tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "checkpoint" / "offsets" / "7").write_text("v1")
    empty = MemoryKafka()
    with pytest.raises(SavepointMismatch, match="empty folder"):
        bring_back(taken, empty, options)
    assert empty.topic_id("keyhole.app.control") is None


def with_a_topic(kafka: MemoryKafka, *, partitions: int = 4, records: bool = False) -> None:
    kafka.ensure("keyhole.app.other", partitions)
    if records:
        kafka.commit("foreign", kafka.bump("foreign"), [("keyhole.app.other", 0, [(b"\0\0k", b"row")])])


def with_a_restore(kafka: MemoryKafka) -> None:
    of = SavepointRecord("another", "fingerprint", ("counts",), finished=False)
    with closing(MemoryChangelog(kafka, "app").control("restoring")) as log:
        log.open(1)
        log.append(record("savepoint", "main", of), 1)


def without_rights(kafka: MemoryKafka, topic: str) -> None:
    """Another application's restore has left the topic there, and this user may not write it."""
    kafka.ensure(topic, 1 if topic.endswith(".control") else 4)
    kafka.denied = {(topic, TopicRight.WRITE)}


@pytest.mark.parametrize(
    ("arrange", "error", "why"),
    [
        *(
            (functools.partial(without_rights, topic=topic), InvalidConfiguration, f"WRITE topic {topic}")
            for topic in ("keyhole.app.control", "keyhole.app.other")
        ),
        (lambda kafka: Application(kafka).run(3, NUMBERS), SavepointMismatch, "in use"),
        (with_a_restore, SavepointMismatch, "is under way, or was broken off, with other options"),
        (functools.partial(with_a_topic, records=True), SavepointMismatch, r"keyhole\.app\.other holds records"),
        (functools.partial(with_a_topic, partitions=5), TopicMismatch, "it has 5 partitions"),
    ],
)
def test_a_restore_that_is_refused_changes_nothing(
    saved: Folder, tmp_path: Path, arrange: Callable[[MemoryKafka], None], error: type[KeyholeError], why: str
) -> None:
    """Neither a topic is made, nor anything recorded, nor a query of the application fenced."""
    both = Application()
    both.run(3, NUMBERS)
    # Its topic comes after that of the other state.
    Application(both.kafka, descriptor(state="other", query="second"), spark_query_id="another").run(8, {"x": 1.0})
    take(both, saved)
    places = {query: str(tmp_path / query) for query in ("main", "second")}
    kafka = MemoryKafka()
    arrange(kafka)
    before = copy.deepcopy((kafka._topics, kafka._epochs))
    with pytest.raises(error, match=why):
        bring_back(saved, kafka, RestoreOptions(checkpoints=places))
    assert (kafka._topics, kafka._epochs) == before
    assert not any(Path(place).exists() for place in places.values())


def test_a_restore_that_can_not_read_yet_that_it_was_begun_is_not_refused_for_the_rows_that_are_there(
    broken_off: MemoryKafka, taken: Folder, options: RestoreOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = MemoryControlLog.read
    monkeypatch.setattr(MemoryControlLog, "read", lambda log, seconds: {} if log._epoch < 0 else read(log, seconds))
    monkeypatch.setattr(MemoryControlLog, "read_decided", read)
    assert bring_back(taken, broken_off, options)
    assert numbers_of(broken_off, descriptor()) == EXPECTED


@pytest.fixture
def broken_off(taken: Folder, options: RestoreOptions) -> MemoryKafka:
    """A restore that ended in the middle of its rows."""
    kafka = MemoryKafka()
    written: list[None] = []

    def end() -> None:
        written.append(None)
        if len(written) > 2:
            raise KafkaUnreachable("power cut")

    kafka.before_commit = end
    with pytest.raises(KafkaUnreachable):
        bring_back(taken, kafka, options)
    kafka.before_commit = lambda: None
    return kafka


def test_a_restore_that_was_broken_off_is_told_and_can_be_started_again(
    broken_off: MemoryKafka, taken: Folder, options: RestoreOptions
) -> None:
    control = read_control(control_of(broken_off, "app"), "main")
    assert control.savepoint is not None
    assert (control.savepoint.finished, control.states, control.complete) == (False, {}, None)
    assert bring_back(taken, broken_off, options)
    assert numbers_of(broken_off, descriptor()) == EXPECTED
    assert next_epoch(broken_off, "app") == 5


def test_a_restore_that_has_ended_is_told_so_where_it_is_begun_again(taken: Folder, options: RestoreOptions) -> None:
    kafka = MemoryKafka()
    bring_back(taken, kafka, options)
    with pytest.raises(SavepointMismatch, match="restored from this savepoint already: start the job"):
        bring_back(taken, kafka, options)


def writes_of_a_restore(taken: Folder, options: RestoreOptions) -> int:
    kafka, written = MemoryKafka(), list[None]()
    kafka.before_commit = lambda: written.append(None)
    bring_back(taken, kafka, options)
    return len(written)


@pytest.mark.parametrize("after_its_rows", [False, True])
def test_a_restore_that_wakes_to_another_application_of_its_name_leaves_it_alone(
    taken: Folder, options: RestoreOptions, after_its_rows: bool
) -> None:
    # As it looks whether it is still begun: before it takes the rows' id, or before it records its end.
    wakes_at = writes_of_a_restore(taken, options) - 1 if after_its_rows else 3
    kafka = MemoryKafka()
    written: list[None] = []

    def made_anew() -> None:
        written.append(None)
        if len(written) == wakes_at:
            kafka.before_commit = lambda: None
            kafka.delete_topic("keyhole.app.control")
            Application(kafka, descriptor(state="sums", query="another"))

    kafka.before_commit = made_anew
    with pytest.raises(SavepointMismatch, match="in use"):
        bring_back(taken, kafka, options)
    assert set(read_control(control_of(kafka, "app"), "main").states) == {"sums"}


def test_another_restore_over_one_that_was_broken_off_is_refused(
    broken_off: MemoryKafka, taken: Folder, options: RestoreOptions
) -> None:
    with pytest.raises(SavepointMismatch, match="broken off"):
        bring_back(taken, broken_off, dataclasses.replace(options, key_groups={"counts": 8}))


def before_commit(kafka: MemoryKafka, number: int, do: Callable[[], object]) -> None:
    """Once, before the transaction of this number takes effect, from 1 on."""
    counted: list[None] = []

    def count() -> None:
        counted.append(None)
        if len(counted) == number:
            do()

    kafka.before_commit = count


# Of a restore: opened, begun, opened twice around the taking of the rows' id, rows.
CLAIM, ROWS = 2, 5


def test_a_restore_that_another_one_has_overtaken_before_its_claim_is_told_that_all_is_done(
    taken: Folder, options: RestoreOptions
) -> None:
    kafka = MemoryKafka()
    before_commit(kafka, CLAIM, lambda: bring_back(taken, kafka, options))
    with pytest.raises(SavepointMismatch, match="restored from this savepoint already: start the job"):
        bring_back(taken, kafka, options)
    assert numbers_of(kafka, descriptor()) == EXPECTED


def test_a_restore_that_a_start_has_ended_just_before_its_claim_is_told_who_has_the_application(
    taken: Folder, options: RestoreOptions
) -> None:
    kafka = MemoryKafka()

    def start() -> None:
        with closing(MemoryChangelog(kafka, "app").control(DECLARING)) as log:
            log.open(1)
        Application(kafka, descriptor(state="sums", query="another"))

    before_commit(kafka, CLAIM, start)
    with pytest.raises(SavepointMismatch, match="in use"):
        bring_back(taken, kafka, options)
    assert set(read_control(control_of(kafka, "app"), "main").states) == {"sums"}


def test_a_restore_whose_ids_are_taken_all_the_time_says_what_to_do(taken: Folder, options: RestoreOptions) -> None:
    kafka = MemoryKafka()

    def take_over() -> None:
        with closing(MemoryChangelog(kafka, "app").control(DECLARING)) as log:
            log.open(1)

    kafka.before_commit = take_over
    with pytest.raises(Fenced, match=r"started at the same moment.* Run this again with the same options"):
        bring_back(taken, kafka, options)
    kafka.before_commit = lambda: None
    assert not bring_back(taken, kafka, options)
    assert numbers_of(kafka, descriptor()) == EXPECTED


def test_of_two_processes_with_one_restore_the_later_one_goes_on_and_the_other_says_so(
    taken: Folder, options: RestoreOptions
) -> None:
    kafka = MemoryKafka()
    before_commit(kafka, ROWS, lambda: bring_back(taken, kafka, options))
    with pytest.raises(Fenced, match=r"another process has begun .*, and goes on with it.* Wait for the other"):
        bring_back(taken, kafka, options)
    assert numbers_of(kafka, descriptor()) == EXPECTED


def test_a_restore_that_has_been_overtaken_does_not_end_the_one_that_goes_on(
    taken: Folder, options: RestoreOptions
) -> None:
    """It stood still before it took the id of the rows, and takes it from the other one, which is writing them."""
    kafka = MemoryKafka()

    def take_the_id_of_the_rows() -> None:
        with closing(MemoryChangelog(kafka, "app").writer("keyhole.app.restore")) as writer:
            writer.open(1)

    before_commit(kafka, ROWS, take_the_id_of_the_rows)
    assert not bring_back(taken, kafka, options)
    assert numbers_of(kafka, descriptor()) == EXPECTED


def test_a_restore_that_stood_still_while_another_process_ended_it_changes_nothing(
    broken_off: MemoryKafka, taken: Folder, options: RestoreOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topics = restoring._Restore._make_topics

    def stand_still(standing: restoring._Restore, resumed: bool) -> dict[str, str]:
        monkeypatch.setattr(restoring._Restore, "_make_topics", make_topics)
        assert bring_back(taken, broken_off, options)
        return make_topics(standing, resumed)

    monkeypatch.setattr(restoring._Restore, "_make_topics", stand_still)
    with pytest.raises(SavepointMismatch, match="restored from this savepoint already: start the job"):
        bring_back(taken, broken_off, options)
    savepoint = read_control(control_of(broken_off, "app"), "main").savepoint
    assert savepoint is not None
    assert savepoint.finished
    assert numbers_of(broken_off, descriptor()) == EXPECTED


def test_a_restore_that_stood_still_before_it_took_the_id_of_the_rows_writes_none_once_another_process_has_ended_it(
    taken: Folder, options: RestoreOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, writer = MemoryKafka(), MemoryChangelog.writer

    def stand_still(changelog: MemoryChangelog, grant: str) -> ChangelogWriter:
        monkeypatch.setattr(MemoryChangelog, "writer", writer)
        assert bring_back(taken, kafka, options)
        ends.update(ends_of(kafka))
        return changelog.writer(grant)

    ends: dict[Partition, int] = {}
    monkeypatch.setattr(MemoryChangelog, "writer", stand_still)
    with pytest.raises((Fenced, SavepointMismatch)):
        bring_back(taken, kafka, options)
    assert any(ends.values())
    assert ends_of(kafka) == ends


def ends_of(kafka: MemoryKafka) -> Mapping[Partition, int]:
    with closing(MemoryChangelog(kafka, "app").reader()) as reader:
        return reader.ends({"counts": range(descriptor().key_groups)}, 1)


def test_a_restore_that_kafka_has_kept_from_its_end_says_what_to_do(taken: Folder, options: RestoreOptions) -> None:
    for failing in (KafkaUnreachable("Kafka is away."), OutcomeUnknown("It is not known.")):
        kafka = MemoryKafka()

        def fail(error: KeyholeError = failing) -> None:
            raise error

        before_commit(kafka, ROWS, fail)
        with pytest.raises(type(failing), match=r"restored in part.*run this again with the same options"):
            bring_back(taken, kafka, options)
        assert bring_back(taken, kafka, options)
        assert numbers_of(kafka, descriptor()) == EXPECTED


def test_a_savepoint_record_is_read_as_it_was_written() -> None:
    written = SavepointRecord("id", "fingerprint", ("a", "b"), finished=True)
    records = {key: value for key, value in record("savepoint", "main", written).items() if value is not None}
    assert read_control(records, "main").savepoint == written
    assert CompleteRecord(1, 1, 1, 0, 0, {}).offsets == ""
