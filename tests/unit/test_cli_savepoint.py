"""`keyhole savepoint` as a person types it, over the changelog in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from keyhole.cli import savepoint as commands
from keyhole.cli.main import main
from keyhole.model.state import StateDescriptor
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from tests.support.applications import Application, numbers_of
from tests.support.states import descriptor

NUMBERS = {f"key-{number}": float(number) for number in range(20)}


@pytest.fixture(autouse=True)
def kafkas(monkeypatch: pytest.MonkeyPatch) -> dict[str, MemoryKafka]:
    """By bootstrap servers."""
    application = Application()
    application.run(3, NUMBERS)
    made = {"old:9092": application.kafka, "new:9092": MemoryKafka()}
    monkeypatch.setattr(commands, "KafkaChangelog", lambda servers, name: MemoryChangelog(made[servers], name))
    return made


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, object]], str]:
    """The exit code, the rows on standard output, and standard error."""
    code = main(["savepoint", *arguments, "--json"])
    shown = capsys.readouterr()
    return code, json.loads(shown.out or "[]"), shown.err


def create(capsys: pytest.CaptureFixture[str], to: Path) -> None:
    code, (state,), _ = run(capsys, "create", "app", "--to", str(to), "--bootstrap-servers", "old:9092")
    assert (code, state["state"], state["epoch"], state["rows"]) == (0, "app/counts", 3, 20)


def test_a_savepoint_is_taken_listed_and_restored_under_another_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kafkas: dict[str, MemoryKafka]
) -> None:
    create(capsys, tmp_path / "all" / "one")
    code, (listed,), _ = run(capsys, "list", str(tmp_path / "all"), "--check")
    assert (code, listed["application"], listed["epochs"], listed["sound"]) == (0, "app", {"main": 3}, True)
    arguments = ["--bootstrap-servers", "new:9092", "--application", "copy", "--key-groups", "counts=8"]
    arguments += ["--rename", "counts=sums", "--rename-query", "main=summing"]
    arguments += ["--checkpoint", f"main={tmp_path / 'checkpoint'}"]
    code, (restored,), _ = run(capsys, "restore", str(tmp_path / "all" / "one"), *arguments)
    assert (code, restored["state"], restored["query"], restored["next_epoch"]) == (0, "copy/sums", "summing", 4)
    expected: StateDescriptor = descriptor(application="copy", state="sums", key_groups=8)
    assert numbers_of(kafkas["new:9092"], expected) == NUMBERS


def test_a_folder_that_there_is_not_is_an_error_and_an_empty_one_has_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    gone, empty, file = tmp_path / "gone", tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.touch()
    for path, named in ((gone, gone), (file, f"{file}; it is a file"), ("memory://gone", "memory://gone")):
        assert main(["savepoint", "list", str(path)]) == 1
        shown = capsys.readouterr()
        assert not shown.out
        assert f"there is no folder {named}; name a savepoint, or the folder that has them" in shown.err
    assert main(["savepoint", "list", str(empty)]) == 0
    assert capsys.readouterr().out == f"{empty}: none\n"
    assert run(capsys, "list", str(empty)) == (0, [], "")


def test_a_damaged_savepoint_is_named_by_list_and_refused_by_restore(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    create(capsys, tmp_path / "one")
    (tmp_path / "one" / "states" / "counts" / "00000.arrow").write_bytes(b"")
    code, (listed,), _ = run(capsys, "list", str(tmp_path / "one"))
    assert (code, listed["sound"]) == (1, False)
    place = f"main={tmp_path / 'checkpoint'}"
    arguments = ["--bootstrap-servers", "new:9092", "--checkpoint", place]
    code, rows, error = run(capsys, "restore", str(tmp_path / "one"), *arguments)
    assert (code, rows) == (1, [])
    assert "00000.arrow has 0 bytes" in error


@pytest.mark.parametrize(
    "wrong", [("--rename", "counts"), ("--key-groups", "counts=many"), ("--rename", "a=b", "--rename", "a=c")]
)
def test_a_pair_that_is_none_is_wrong_usage(wrong: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["savepoint", "restore", "somewhere", "--bootstrap-servers", "new:9092", *wrong])
    assert caught.value.code == 2


def test_savepoints_and_comparisons_import_neither_spark_nor_a_server() -> None:
    code = (
        "import sys, keyhole.cli.savepoint, keyhole.cli.verify_state; "
        "print([name for name in ('pyspark', 'py4j', 'grpc_health.v1', 'uvloop', 'services') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed.strip() == "[]"
