"""`keyhole dev` without what it starts: a file's changes, the words for how a job ends, which states are its own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
from pathlib import Path

import pytest

from keyhole.cli.main import main
from keyhole.errors import InvalidConfiguration, MachineError
from keyhole.local.java import Java
from keyhole.local.spark_home import other_spark
from keyhole.local.stack_ports import StackPorts
from keyhole.up import developing
from keyhole.up.bringing_up import UpOptions
from keyhole.up.developing import job_environ
from keyhole.up.home import Home, Recorded
from keyhole.up.job_file import JobFile, Settling
from keyhole.up.job_run import FirstAnswers, JobRun, SeenState, advice, last_line, line_in, sentence
from tests.support.waiting import until

TRACE = """\
26/11/27 12:00:00 WARN NativeCodeLoader: Unable to load native-hadoop library
Traceback (most recent call last):
  File "/home/me/shop/job.py", line 21, in <module>
    totals(orders)
  File "/home/me/shop/job.py", line 14, in totals
    return orders.groupBy("custmer")
  File "/venv/lib/pyspark/errors/exceptions/captured.py", line 264, in deco
    raise converted from None
pyspark.errors.exceptions.captured.AnalysisException: [UNRESOLVED_COLUMN] `custmer` cannot be resolved;
'Aggregate ['custmer]
"""
_SPARKS = "pyspark.errors.exceptions.captured."


def test_a_change_is_one_once_the_file_has_come_to_rest() -> None:
    settling = Settling("a", 0.4)
    assert not settling.changed("a", 1.0)
    assert not settling.changed("b", 1.1)
    assert not settling.changed("c", 1.4)
    assert not settling.changed("c", 1.7)
    assert settling.changed("c", 1.8)
    assert not settling.changed("c", 9.0)
    # Gone for a moment, as where an editor puts a new file in its place.
    assert not settling.changed(None, 9.1)
    assert not settling.changed("c", 9.2)
    assert not settling.changed("c", 20.0)


def test_what_python_can_not_read_is_told_by_its_line(tmp_path: Path) -> None:
    path, more = tmp_path / "job.py", tmp_path / "helpers.py"
    path.write_text("x = 1\n")
    more.write_text("")
    file = JobFile(path, [more])
    before, stamp = file.read(), file.stamp()
    assert before.problem == ""
    assert (file.read(), file.stamp()) == (before, stamp)
    more.write_text("y = 2\n")
    assert file.stamp() != stamp
    assert file.read().digest != before.digest
    path.write_text("x = 1\ndef broken(:\n")
    assert file.read().problem == "job.py, line 2: invalid syntax"
    path.write_text("x = 'unended\n")
    assert file.read().problem.startswith("job.py, line 1: unterminated string")
    path.write_bytes(b"x = '\xff'\n")
    assert "job.py" in file.read().problem
    path.write_text("x = '\\d'\n")  # a warning of Python's is no problem
    assert file.read().problem == ""
    path.unlink()
    assert file.read().problem == "job.py is gone"


def test_what_is_no_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", str(tmp_path / "job.py")]) == 1
    assert "job.py is not there: name the file of a job. `keyhole new DIR` makes one" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidConfiguration, match="is a folder: name the file"):
        JobFile(tmp_path)


def test_what_is_watched_and_is_no_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.py"
    job.touch()
    assert main(["dev", str(job), "--watch", str(tmp_path / "none.py")]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path / 'none.py'} is not there: --watch takes a file that the job reads" in said
    assert "keyhole new" not in said


@pytest.fixture
def ready_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has all that is fetched."""
    monkeypatch.setattr(developing, "find_java", lambda environ: Java(Path("/jdk/bin/java"), 17))
    monkeypatch.setattr(developing, "fetch_jars", lambda *_: ((), ()))


def test_a_second_one_in_a_folder_is_refused_and_told_which_one_is_there(
    tmp_path: Path, ready_machine: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # One that is not refused would run until somebody ends it.
    monkeypatch.setattr(developing, "ensure_up", lambda *_, **__: pytest.fail("it begins"))
    job, home = tmp_path / "job.py", Home(tmp_path / ".keyhole")
    job.touch()
    home.make()
    with home.developed(tmp_path / "first.py"):
        home.logs.joinpath("job.log").write_text("of the first")
        for more in ([], ["--fresh"]):
            assert main(["dev", str(job), *more]) == 1
            said = capsys.readouterr().err
            assert f"`keyhole dev {tmp_path / 'first.py'}` (process {os.getpid()}) runs in {home.path}" in said
            assert "a folder of its own by --dir" in said
        assert home.logs.joinpath("job.log").read_text() == "of the first"
    with home.developed(job), pytest.raises(MachineError, match=r"job\.py"), home.developed(job):
        raise AssertionError
    # A folder that was deleted meanwhile, and made anew, is another one.
    with home.developed(job):
        home.remove()
        home.make()
        with home.developed(job):
            assert home.there


def test_another_spark_is_refused_before_anything_starts(
    tmp_path: Path, ready_machine: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job, spark = tmp_path / "job.py", tmp_path / "spark"
    job.touch()
    (spark / "jars").mkdir(parents=True)
    for named, says in (
        (spark, "has no bin/spark-submit"),
        (spark, "has Spark 3.5, and this Python has"),
        ("", "empty"),
    ):
        monkeypatch.setenv("SPARK_HOME", str(named))
        assert main(["dev", str(job)]) == 1
        said = capsys.readouterr().err
        assert says in said
        assert "unset SPARK_HOME" in said
        (spark / "bin").mkdir(exist_ok=True)
        (spark / "bin" / "spark-submit").touch()
        (spark / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    assert {entry.name for entry in tmp_path.iterdir()} == {"job.py", "spark"}
    pyspark = Path(str(importlib.util.find_spec("pyspark").submodule_search_locations[0]))  # type: ignore[union-attr,index]
    assert other_spark({"SPARK_HOME": str(pyspark)}) == ""
    assert other_spark({}) == ""


def test_servers_and_a_temporary_folder_are_as_of_up_and_told_where_something_else_runs(
    tmp_path: Path, ready_machine: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[UpOptions] = []

    def ensure_up(home: Home, options: UpOptions, *_: object) -> bool:
        asked.append(options)
        return False

    def client(*_: object, **more: object) -> object:
        raise MachineError("that is enough")

    recorded = Recorded(ports=StackPorts(9092), data=str(tmp_path))
    monkeypatch.setattr(developing, "ensure_up", ensure_up)
    monkeypatch.setattr(developing, "running", lambda home: recorded)
    monkeypatch.setattr(developing, "Client", client)
    job = tmp_path / "job.py"
    job.touch()
    home = tmp_path / ".keyhole"
    for words, other in ([], False), (["--servers", "1"], False), (["--servers", "3"], True), (["--ephemeral"], True):
        assert main(["dev", str(job), "--topic", "orders:4", *words]) == 1
        assert asked.pop() == UpOptions(
            int(words[1]) if "--servers" in words else None, "--ephemeral" in words, topics={"orders": 4}
        )
        printed = " ".join(capsys.readouterr().out.split())
        assert ("To have it otherwise, end it first: " in printed) is other
        assert (f"keyhole down --dir {home}" in printed) is other


def test_a_run_reads_what_its_job_prints_once(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    run = JobRun(["/bin/sleep", "1000"], tmp_path, log, tmp_path / "a" / "tmp", os.environ, {}, contextlib.nullcontext)
    try:
        assert run.step() == "its process starts"
        with log.open("a") as said:
            said.write("WARN of the job's own: Using Spark's default log")
            said.flush()
            assert run.step() == "its process starts; its last line: WARN of the job's own: Using Spark's default log"
            said.write("4j profile\nSetting default log level\n")
            said.flush()
            assert run.step().startswith("Spark's JVM is up, its session starts; its last line: WARN of the job's own")
            # What was read is not read again, so that it may be gone.
            os.pwrite(said.fileno(), b" " * 60, 0)
            said.write("ResolveWriteToStream\n")
            said.flush()
            assert run.step().startswith("its queries have started")
    finally:
        run.stop()
    assert not (tmp_path / "a" / "tmp").exists()


def test_a_failure_is_one_sentence_with_the_line_of_the_job() -> None:
    assert line_in(TRACE, "/elsewhere/job.py") == ", line 14,"
    assert line_in(TRACE, "other.py") == ""
    assert sentence(TRACE) == "AnalysisException: [UNRESOLVED_COLUMN] `custmer` cannot be resolved"
    said = "Traceback (most recent call last):\nkeyhole.errors.InvalidConfiguration: KEYHOLE_JOB_SERVERS is not set"
    assert sentence(said) == "KEYHOLE_JOB_SERVERS is not set"
    assert sentence("ModuleNotFoundError: No module named 'nope'") == "ModuleNotFoundError: No module named 'nope'"


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (f"{_SPARKS}AnalysisException: Failed to find data source: kafka. Please deploy", "$(keyhole jars)"),
        ("keyhole.errors.CheckpointMismatch: query 'totals' has completed epoch 3, and it expects", "with --fresh"),
        ("keyhole.errors.StateChanged: state shop/totals can't be changed in place: orders is gone", "with --fresh"),
        (f"{_SPARKS}StateStoreException: [STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema", "begin anew"),
        (f"{_SPARKS}StateStoreException: [CANNOT_LOAD_STATE_STORE.UNEXPECTED_VERSION] An error", "begin anew"),
        (f"{_SPARKS}StateStoreValueSchemaNotCompatible: [STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] P", "begin anew"),
        ("AssertionError: There are [1] sources in the checkpoint offsets and now there are [2] sources", "begin anew"),
        # Where nothing is kept that could be wrong, to delete it mends nothing.
        ("keyhole.errors.InvalidConfiguration: query 'totals' has no checkpoint location: Spark has made", ""),
        ("keyhole.errors.InvalidConfiguration: query 'totals' has no name, so below spark.sql.streaming.check", ""),
        ("keyhole.errors.InvalidConfiguration: the checkpoint location file:/x can't be written to (java.io", ""),
        ("keyhole.errors.InvalidConfiguration: no checkpoint is given: Spark would not know where to go on", ""),
        (f"{_SPARKS}AnalysisException: checkpointLocation must be specified either through option", ""),
        (f"{_SPARKS}StateStoreException: [CANNOT_LOAD_STATE_STORE.ROCKSDB_STORE_PROVIDER_OUT_OF_MEMORY] An", ""),
        ("java.io.IOException: mkdir of file:/srv/.keyhole/checkpoints/totals failed", ""),
        ("NameError: name 'x' is not defined", ""),
    ],
)
def test_of_some_causes_it_is_told_what_to_do(said: str, says: str) -> None:
    assert says in advice(said)
    assert bool(says) == bool(advice(said))


def test_the_last_line_is_one_that_says_something_and_no_longer_than_a_terminal_shows() -> None:
    assert last_line("") == ""
    assert last_line("one\ntwo \n\n  \n") == "two"
    assert len(last_line("x" * 1000)) == 160
    assert last_line("\x1b[31mred\x1b[0m\n") == r"\x1b[31mred\x1b[0m"
    assert len(last_line("\x1b" * 1000)) == 160


# All that Spark 4.2 prints where nothing is wrong.
USUAL = """\
WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/29 21:25:18 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.0.1; using 192.0.2.2 instead
26/11/29 21:25:18 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address
26/11/29 21:25:21 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform... using builtin-java
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
Setting Spark log level to "WARN".
26/11/29 21:25:27 WARN SparkConf: Note that spark.local.dir will be overridden by the value set by the cluster manager
26/11/29 21:26:09 WARN ResolveWriteToStream: spark.sql.adaptive.enabled is not supported in streaming DataFrames
26/11/29 21:26:11 WARN MicroBatchExecution: Disabling AQE since AQE is not supported in stateful workloads.
"""


def test_what_spark_prints_at_each_start_is_no_last_line_of_a_job() -> None:
    assert last_line(USUAL) == ""
    assert last_line(f"reading orders\n{USUAL}") == "reading orders"
    assert last_line(f"{USUAL}26/11/29 21:26:12 WARN Utils: Service 'SparkUI' could not bind on port 4040") != ""


def test_why_a_job_ended_is_told_without_control_characters(tmp_path: Path) -> None:
    script = "printf 'ValueError: \\033[31mred\\n' >&2; exit 3"
    run = JobRun(
        ["/bin/sh", "-c", script],
        tmp_path,
        tmp_path / "job.log",
        tmp_path / "tmp",
        os.environ,
        {},
        contextlib.nullcontext,
    )
    try:
        until(lambda: run.exit_code is not None)
        assert run.end().endswith(r"has failed: ValueError: \x1b[31mred")
    finally:
        run.stop()


def test_states_are_told_once_the_job_that_runs_now_feeds_them() -> None:
    before = {
        "shop/old": SeenState(3, 5, True),
        "shop/lapsed": SeenState(7, 5, False),
        "other/state": SeenState(9, 1, True),
    }
    answers = FirstAnswers(before)
    assert list(answers.look(before)) == []
    fresh = {"shop/new": SeenState(0, 0, True)}
    assert list(answers.look(before | fresh)) == []
    now = before | {"shop/new": SeenState(1, 4, True), "shop/old": SeenState(4, 5, True)}
    assert list(answers.look(now)) == [("shop/old", now["shop/old"]), ("shop/new", now["shop/new"])]
    assert list(answers.look(now)) == []
    # Without new rows: its job was not heard of any more, and is again.
    assert [path for path, _ in answers.look(now | {"shop/lapsed": SeenState(7, 5, True)})] == ["shop/lapsed"]
    assert list(answers.look(now | {"other/state": SeenState(9, 1, False)})) == []
    assert [path for path, _ in answers.look(now | {"other/state": SeenState(9, 1, True)})] == ["other/state"]


def test_the_job_is_told_where_all_is_and_gets_the_connector(tmp_path: Path) -> None:
    recorded = Recorded(ports=StackPorts(9092), data="")
    jars = [tmp_path / "a.jar", tmp_path / "b.jar"]
    of = job_environ({"PATH": "/bin"}, recorded, Java(Path("/jdk/bin/java"), 17), jars)
    assert of["KEYHOLE_JOB_SERVERS"] == "127.0.0.1:7410"
    assert of["JAVA_HOME"] == "/jdk"
    assert of["PYSPARK_SUBMIT_ARGS"] == f"--jars {jars[0]},{jars[1]} pyspark-shell"
    more = job_environ(
        {"PYSPARK_SUBMIT_ARGS": "--conf a=b pyspark-shell"}, recorded, Java(Path("/j/bin/java"), 17), jars
    )
    assert more["PYSPARK_SUBMIT_ARGS"].endswith(",".join(map(str, jars[1:])) + " --conf a=b pyspark-shell")
    assert os.environ.get("PYSPARK_SUBMIT_ARGS") != of["PYSPARK_SUBMIT_ARGS"]
    spaced = job_environ({}, recorded, Java(Path("/jdk/bin/java"), 17), [tmp_path / "a b.jar", jars[1]])
    assert shlex.split(spaced["PYSPARK_SUBMIT_ARGS"]) == [
        "--jars",
        f"{tmp_path / 'a b.jar'},{jars[1]}",
        "pyspark-shell",
    ]


def test_what_python_can_not_read_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise MachineError("no way to fetch")

    monkeypatch.setattr(developing, "find_java", lambda _: Java(Path("java"), 17))
    monkeypatch.setattr(developing, "refuse_other_spark", lambda _: None)
    monkeypatch.setattr(developing, "fetch_jars", fails)
    job = tmp_path / "job.py"
    job.write_text("def f(:")
    assert main(["dev", str(job)]) == 1
    assert "job.py, line 1: invalid syntax; all that the job needs starts meanwhile" in capsys.readouterr().out
