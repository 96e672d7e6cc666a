"""What `keyhole demo` and `keyhole job` do until there is a first answer, with all that they start as fakes."""

from __future__ import annotations

import dataclasses
import io
import json
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from jobs.temperature_monitor.description import JOB
from keyhole import Answer, Client, Source
from keyhole.demo import recount, runner
from keyhole.demo.command import LiveAnswers
from keyhole.demo.described_jobs import JobDescription, described, job_names
from keyhole.demo.progress_line import say_starting
from keyhole.demo.recount import RecountVerdict
from keyhole.demo.runner import RunOptions
from keyhole.demo.signals import StopSignals
from keyhole.errors import MachineError, NoServer, UnknownApplication, UnknownState
from keyhole.local import base_stack
from keyhole.local.base_stack import BaseStack, StopSeconds
from keyhole.local.java import Java
from keyhole.local.job_spec import JobSpec
from keyhole.local.processes import Child
from keyhole.local.stack import Jars, Stack
from keyhole.model.read import Role


def answer(epoch: int) -> Answer:
    return Answer(False, None, Source("server-0", Role.OWNER, epoch, None, None, 1, 1, False))


class FakeClient:
    """Gives, or raises, one after the other."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self._answers = iter(answers)

    def get(self, *_: object, **__: object) -> Answer:
        given = next(self._answers)
        if isinstance(given, Exception):
            raise given
        return given


class FakeStack:
    """Of a job whose process says more and more. `supervised`: how often it was looked after."""

    proxy, http, server, bootstrap_servers = "proxy:7400", "proxy:7402", "server:7410", "kafka:9092"

    def __init__(self, directory: Path, *said: str) -> None:
        self.directory = directory
        self.checkpoint = directory / "checkpoint"
        self._said = said
        self.supervised = 0

    def supervise(self) -> None:
        self.supervised += 1

    def said(self, name: str) -> str:
        assert name == "job"
        return "".join(self._said[: self.supervised])

    def failed(self, name: str, what: str) -> MachineError:
        return MachineError(f"{name}: {what}")


def made(stack: FakeStack, job: JobDescription = JOB) -> tuple[runner._DemoRun, io.StringIO]:
    screen = io.StringIO()
    console = Console(file=screen, width=200)
    return runner._DemoRun(
        job, LiveAnswers(), RunOptions(), cast("Stack", stack), console, cast("StopSignals", Quiet()), 0.0
    ), screen


class Quiet(StopSignals):
    """Handles none."""


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr("keyhole.demo.progress_line._SAY_AGAIN_SECONDS", 0.0)


def test_until_the_first_answer_the_steps_of_the_job_are_told_and_all_is_looked_after(tmp_path: Path) -> None:
    stack = FakeStack(
        tmp_path, "Picked up\n", "Using Spark's default log4j profile\n", 'Setting default log level to "WARN".\n'
    )
    run, screen = made(stack)
    client = FakeClient(
        UnknownApplication("no application"),
        UnknownState("application 'temperature-monitor' has no state 'sensors'"),
        NoServer("no server has it"),
        answer(0),
        answer(1),
    )
    run._await_first_answer(cast("Client", client))
    assert stack.supervised == 4, "a driver that has died is started again, before the first answer as after it"
    assert [line.partition(" (")[2].rpartition(")")[0] for line in screen.getvalue().splitlines()] == [
        "its process starts",
        "Spark's JVM starts",
        "Spark's JVM is up, its session starts; no server has it",
        "Spark's JVM is up, its session starts",
    ]
    assert "has no state" not in screen.getvalue()


def test_who_has_waited_long_enough_is_told_by_the_jobs_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_FIRST_ANSWER_SECONDS", -1.0)
    run, _ = made(FakeStack(tmp_path, "Using Spark's default log4j profile\n"))
    with pytest.raises(MachineError, match=r"job: no answer within -1 s \(Spark's JVM starts\)"):
        run._await_first_answer(cast("Client", FakeClient(UnknownApplication("none"))))


@pytest.mark.parametrize("name", job_names())
def test_what_can_be_typed_beside_it_is_printed_with_its_addresses(tmp_path: Path, name: str) -> None:
    job = described(name)
    run, _ = made(FakeStack(tmp_path), job)
    ready = run._ready()
    assert f"--proxy {FakeStack.proxy} " in ready
    assert f"  curl http://{FakeStack.http}/v1/{job.application}/" in ready
    assert (
        f"KEYHOLE_JOB_SERVERS={FakeStack.server} KEYHOLE_JOB_BOOTSTRAP_SERVERS={FakeStack.bootstrap_servers}" in ready
    )


def test_another_spark_is_refused_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "find_java", lambda _: Java(tmp_path, 17))
    monkeypatch.setattr(runner, "fetch_jars", lambda *_: pytest.fail("it goes on"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(MachineError, match=r"has no bin/spark-submit: unset SPARK_HOME, so that the job runs on"):
        runner.run_locally(JOB, LiveAnswers(), RunOptions())


@pytest.mark.parametrize("why", ["job again: it said [a[/b]", "[red]it[/red]"])
def test_what_a_process_has_said_is_shown_as_it_is(why: str) -> None:
    screen = io.StringIO()
    say_starting(Console(file=screen, width=20), why)
    assert screen.getvalue() == f"starting {why}\n"


def verdict_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, output: str) -> RecountVerdict:
    stack = FakeStack(tmp_path)
    monkeypatch.setattr(stack, "stop_source", lambda: None, raising=False)
    monkeypatch.setattr(stack, "run", lambda *_: (code, output), raising=False)
    run, _ = made(stack)
    monkeypatch.setattr(run, "_await_caught_up", lambda _: 7)
    return run._verify(cast("Client", FakeClient()))


def test_the_verdict_is_found_among_what_else_was_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = RecountVerdict(epoch=7, keys=1, agreed=0, surplus=0, events=2)
    output = f"a warning\n{json.dumps(dataclasses.asdict(verdict))}\nsys:1: ResourceWarning: unclosed\n"
    assert verdict_of(tmp_path, monkeypatch, 1, output) == verdict


@pytest.mark.parametrize("code", [1, 2])
def test_a_recount_that_fails_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    with pytest.raises(MachineError, match=r"can't be counted again; .*\n.*\nKafkaException: no broker"):
        verdict_of(tmp_path, monkeypatch, code, "Traceback\nKafkaException: no broker\n")


def test_a_recount_that_can_not_be_done_ends_with_two_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    def check(*_: object) -> RecountVerdict:
        raise NoServer("no server has it")

    given = "--proxy 127.0.0.1:1 --bootstrap-servers b --topic t --epoch 1 --checkpoint c --logs l --files f"
    assert recount.main(check, given.split()) == 2
    assert capsys.readouterr() == ("", "NoServer: no server has it\n")


class Kafka:
    pid = 1


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Stack, list[str]]]:
    """One whose processes are shells: the job's ends at once, and says why under a stack trace."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    said: list[str] = []
    script = "echo 'keyhole.errors.InvalidConfiguration: no such topic'; seq -f '\tat of.Spark(%g)' 100; exit 1"

    def start(self: Stack, name: str) -> Child:
        command = script if name == "job" else "exec sleep 1000"
        return Child(name, ["/bin/sh", "-c", command], self.directory / f"{name}.log", {"PATH": "/bin:/usr/bin"})

    monkeypatch.setattr(Stack, "_start_child", start)
    environ: Mapping[str, str] = {"PATH": "/bin:/usr/bin", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with Stack(Jars((), ()), Java(tmp_path, 17), environ, said.append) as made:
        made._kafka = cast("Any", Kafka())
        made._cleanup.callback(made._stop_children)
        for name in ("server-0", "proxy", "exporter", "job"):
            made._spawn(name)
        yield made, said


def test_a_job_starts_before_all_that_it_waits_for_and_its_source_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its JVM takes as long as the rest together. It ends before what it reads from."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    started: list[str] = []
    ended: list[str] = []
    given: dict[str, str] = {}

    class Process:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_healthy(self, healthy: object, seconds: float) -> None:
            """It is."""

        def terminate(self, seconds: float) -> None:
            ended.append(self.name)

    def start(self: Stack, name: str) -> Process:
        started.append(name)
        return Process(name)

    class Broker:
        def __init__(self, *arguments: Any, **_: object) -> None:
            self.bootstrap_servers = f"127.0.0.1:{arguments[3]}"

        def start(self) -> None:
            started.append("kafka")

        def stop(self, seconds: float) -> None:
            ended.append("kafka")

    def python(self: Stack, name: str, module: str, environ: Mapping[str, str], arguments: object = ()) -> Process:
        given.update(environ)
        return start(self, name)

    monkeypatch.setattr(base_stack, "LocalKafka", Broker)
    monkeypatch.setattr(base_stack, "make_topics", lambda address, topics, seconds: started.append("topics"))
    monkeypatch.setattr(base_stack, "spawn_client_proxy", lambda name, *_, **__: start(made, name))
    monkeypatch.setattr(base_stack, "spawn_metrics_exporter", lambda name, *_, **__: start(made, name))
    monkeypatch.setattr(base_stack, "spawn_state_server", lambda name, *_, **__: start(made, name))
    monkeypatch.setattr(Stack, "_python", python)
    environ = {"PATH": "/bin:/usr/bin", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with Stack(Jars((), ()), Java(tmp_path, 17), environ, lambda _: None) as made:
        made.start(JobSpec("a.job", "a.source", "SOURCE_", {"orders": 1}, {}, {}))
        assert given["KEYHOLE_JOB_BOOTSTRAP_SERVERS"] == given["SOURCE_BOOTSTRAP_SERVERS"] == made.bootstrap_servers
        assert given["KEYHOLE_JOB_SERVERS"] == made.server
        assert given["KEYHOLE_JOB_PROXY"] == made.proxy
    assert started == ["job", "kafka", "topics", "server-0", "proxy", "exporter", "source"]
    assert ended == ["job", "source", "exporter", "proxy", "server-0", "kafka"]


def test_javas_options_have_the_folder_for_temporary_files_as_one_word(tmp_path: Path) -> None:
    environ = {"JAVA_TOOL_OPTIONS": "-Xss2m", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with BaseStack(
        (), Java(tmp_path, 17), environ, print, StopSeconds(1, 1, 1, 1, 1), directory=tmp_path / "my work"
    ) as stack:
        # Java takes quotes as a shell does.
        (_, folder, _) = shlex.split(stack._environ["JAVA_TOOL_OPTIONS"])
    assert folder == f"-Djava.io.tmpdir={tmp_path / 'my work' / 'tmp'}"


def test_a_job_that_dies_is_started_again_three_times_each_time_with_the_reason_and_then_its_log_is_kept(
    stack: tuple[Stack, list[str]],
) -> None:
    running, said = stack
    for _ in range(3):
        running._children["job"].wait(60)
        running.supervise()
    assert said == ["job again: it ended with exit code 1 (no such topic)"] * 3
    running._children["job"].wait(60)
    with pytest.raises(MachineError, match=r"job ended with exit code 1 \(no such topic\)\n") as caught:
        running.supervise()
    running.__exit__()
    kept = Path(caught.value.message.partition("kept in ")[2].partition(";")[0])
    assert kept.read_text().count("no such topic") == 4
    assert not running.directory.exists()
