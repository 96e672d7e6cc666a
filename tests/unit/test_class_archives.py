"""Archives of classes: which one a JVM begins with, and what is left where one can't be made."""

from __future__ import annotations

import fcntl
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

from keyhole.class_archive import archive_path, reading
from keyhole.demo import preparing
from keyhole.demo.preparing import prepare_classes
from keyhole.errors import MachineError
from keyhole.local.class_archives import make_archives, missing, run_whole
from keyhole.local.java import Java
from keyhole.local.kafka import archive_of_kafka
from tests.support.waiting import SOON_SECONDS, until

NEVER = threading.Event()


def made(path: Path, broken_off: threading.Event = NEVER) -> None:
    path.write_bytes(b"classes")


def failed(path: Path, broken_off: threading.Event) -> None:
    path.write_bytes(b"half of it")
    raise MachineError("it did not start")


def test_another_java_and_other_jars_have_archives_of_their_own(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    java, other, jar, newer = (tmp_path / name for name in ("java", "other", "a.jar", "b.jar"))
    for file in (java, other, jar, newer):
        file.write_bytes(b"1")
    of = archive_path(environ, "kafka", java, [jar, newer])
    assert of == archive_path(environ, "kafka", java, [newer, jar])
    assert of.parent == tmp_path / "cache" / "keyhole" / "classes"
    others = {
        archive_path(environ, "spark", java, [jar, newer]),
        archive_path(environ, "kafka", other, [jar, newer]),
        archive_path(environ, "kafka", java, [jar]),
    }
    os.utime(jar, (1, 1))
    others.add(archive_path(environ, "kafka", java, [jar, newer]))
    jar.write_bytes(b"12")
    others.add(archive_path(environ, "kafka", java, [jar, newer]))
    assert len(others - {of}) == 5


def test_a_jvm_begins_with_an_archive_only_where_there_is_one(tmp_path: Path) -> None:
    archive = tmp_path / "spark-1.jsa"
    assert reading(archive) == []
    archive.touch()
    assert reading(archive) == []
    archive.write_bytes(b"classes")
    os.utime(archive, (1, 1))
    assert reading(archive)[0] == f"-XX:SharedArchiveFile={archive}"
    # In use: it is none of those that are removed.
    assert archive.stat().st_mtime > 1


def test_what_can_not_be_made_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    cache = tmp_path / "classes"
    whole, broken, none = (cache / f"{name}-1.jsa" for name in ("kafka", "spark", "other"))
    reasons = make_archives({whole: made, broken: failed, none: lambda *_: None})
    assert reasons == ["spark-1.jsa: it did not start"]
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == {"kafka-1.jsa": b"classes", "other-1.jsa": b""}


def test_of_each_kind_those_that_were_used_last_are_kept(tmp_path: Path) -> None:
    for age in range(10):
        old = tmp_path / f"spark-{age}.jsa"
        made(old)
        os.utime(old, (1000 - age,) * 2)
    assert make_archives({tmp_path / "spark-new.jsa": made, tmp_path / "kafka-new.jsa": made}) == []
    kept = ["kafka-new.jsa", *(f"spark-{age}.jsa" for age in range(7)), "spark-new.jsa"]
    assert sorted(path.name for path in tmp_path.iterdir()) == kept


def test_what_can_not_be_removed_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "spark-gone.jsa").symlink_to("nowhere")
    (tmp_path / "spark-folder.jsa").mkdir()
    os.utime(tmp_path / "spark-folder.jsa", (1, 1))
    for age in range(8):
        made(tmp_path / f"spark-{age}.jsa")
    assert make_archives({tmp_path / "spark-new.jsa": made}) == []
    assert (tmp_path / "spark-new.jsa").exists()


def test_what_a_killed_process_has_half_made_goes_with_the_next_one(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from keyhole.local.class_archives import make_archives\n"
        "def make(path, broken_off):\n"
        "    path.write_bytes(b'half of it')\n"
        "    print('begun', flush=True)\n"
        "    sys.stdin.read()\n"
        "make_archives({Path(sys.argv[1]): make})\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "kafka-1.jsa")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.kill()
    assert len(list(tmp_path.glob("making-*/*.jsa"))) == 1
    assert make_archives({tmp_path / "kafka-2.jsa": made}) == []
    assert [path.name for path in tmp_path.iterdir()] == ["kafka-2.jsa"]


def test_one_that_is_there_is_kept_for_whoever_has_asked_while_others_make_new_ones(tmp_path: Path) -> None:
    java, jar = tmp_path / "java", tmp_path / "kafka.jar"
    for file in (java, jar):
        file.write_bytes(b"1")
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    ours = archive_of_kafka(environ, java, [jar])
    ours.parent.mkdir(parents=True, exist_ok=True)
    made(ours)
    os.utime(ours, (1, 1))
    for age in range(7):
        made(ours.parent / f"kafka-{age}.jsa")
    assert missing(Java(java, 17), [jar], environ, spark=False) == {}
    assert make_archives({ours.parent / "kafka-new.jsa": made}) == []
    assert ours.exists()


def test_training_that_takes_too_long_is_killed_with_the_jvm_that_it_started(tmp_path: Path) -> None:
    jvm, log = tmp_path / "jvm", tmp_path / "log"
    # What it starts holds a lock for as long as it lives, and doesn't end with it.
    started = f"(flock 9; echo > {jvm}; exec sleep 1000) 9> {tmp_path / 'lock'} & wait"
    for seconds in (1, 10, 100):  # a slow machine takes longer to get there
        with pytest.raises(MachineError, match=f"^Spark was killed after {seconds} s:\n"):
            run_whole("Spark", ["/bin/sh", "-c", started], os.environ, log, seconds, NEVER)
        if jvm.exists():
            break
    assert jvm.exists()
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def test_what_is_broken_off_ends_all_training_and_leaves_nothing(tmp_path: Path) -> None:
    begun, ended = tmp_path / "begun", threading.Event()

    def interrupted(path: Path, broken_off: threading.Event) -> None:
        until(begun.exists)
        raise KeyboardInterrupt

    def lasts(path: Path, broken_off: threading.Event) -> None:
        try:
            command = ["/bin/sh", "-c", f"echo > {begun}; exec sleep 1000"]
            run_whole("Kafka", command, os.environ, path.parent / "log", SOON_SECONDS, broken_off)
        finally:
            if broken_off.is_set():
                ended.set()

    cache = tmp_path / "classes"
    with pytest.raises(KeyboardInterrupt):
        make_archives({cache / "spark-1.jsa": interrupted, cache / "kafka-1.jsa": lasts})
    assert ended.is_set()
    assert list(cache.iterdir()) == []


def test_kafkas_training_that_fails_is_told_with_the_end_of_what_it_said(tmp_path: Path) -> None:
    java, jar, environ = tmp_path / "java", tmp_path / "kafka.jar", {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    jar.touch()
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    (reason,) = make_archives(missing(Java(java, 17), [jar], {**os.environ, **environ}, spark=False))
    assert "Kafka ended with exit code 1:\nKafka's storage can't be formatted" in reason


def test_training_that_fails_is_told_with_the_end_of_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"^Spark ended with exit code 3:\nno room$"):
        run_whole("Spark", ["/bin/sh", "-c", "echo no room; exit 3"], os.environ, tmp_path / "log", 60, NEVER)


def test_a_person_is_told_once_that_classes_are_prepared_and_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "spark-1.jsa"
    java = Java(Path("java"), 17)

    def shown(*, terminal: bool = False) -> str:
        file = io.StringIO()
        prepare_classes(Console(file=file, width=200, force_terminal=terminal), {}, java, [])
        return file.getvalue()

    monkeypatch.setattr(preparing, "missing", lambda *_, **__: {archive: failed})
    assert "once for this Java\ngoing on without: spark-1.jsa: it did not start\n" in shown()
    assert "0:00:00" in shown(terminal=True)  # how long by now
    monkeypatch.setattr(preparing, "missing", lambda *_, **__: {})
    assert shown() == ""
