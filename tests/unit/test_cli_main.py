"""The command line itself: what is wrong usage, what it says where something isn't installed, what it turns into."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import runpy
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from keyhole.cli.arguments import parser_of_all
from keyhole.cli.main import main
from keyhole.cli.run_commands import SERVICES, program_of
from keyhole.config import PROXY_VARIABLE, load
from keyhole.demo import fetching
from keyhole.demo.described_jobs import described, job_names
from keyhole.local.jars import JarSet, Progress


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    """As if these were not installed."""
    find = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in missing else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["get", "app/state"],
        ["job", "nope"],
        ["states", "--timeout", "0"],
        ["states", "--timeout", "nan"],
        ["states", "--timeout", "soon"],
        ["job", "temperature_monitor", "--seconds", "0"],
        ["demo", "--sensors", "0"],
        ["demo", "--rate", "-1"],
        ["demo", "--rate", "many"],
        ["demo", "--seconds", "inf"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "keyhole" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "missing", "says"),
    [
        (["states"], "rich", "keyhole states needs rich: install keyhole-spark[cli]"),
        (["get", "a/b", "c"], "grpc", "keyhole get needs grpc: install keyhole-spark[cli]"),
        (
            ["feed", "a/b", "--topic", "t"],
            "confluent_kafka",
            "keyhole feed needs confluent_kafka: install keyhole-spark[cli,kafka]",
        ),
        (["state-server"], "lmdb", "services.state_server needs lmdb: install keyhole-spark[server,kafka]"),
        (["job", "temperature_monitor", "--external"], "pyspark", "needs pyspark: install keyhole-spark[spark]"),
        (["job", "temperature_monitor"], "jgo", "a job on this machine needs jgo: install keyhole-spark[demo]"),
        (["demo"], "jgo", "the demo needs jgo: install keyhole-spark[demo]"),
        (["up"], "jgo", "keyhole up needs jgo: install keyhole-spark[demo]"),
        (["jars"], "jgo", "keyhole jars needs jgo: install keyhole-spark[cli,jars]"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_not_installed_is_named_with_the_extra_that_brings_it(
    arguments: list[str],
    missing: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without(monkeypatch, missing)
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert says in said
    assert "from a clone or by its git URL" in said


@pytest.mark.parametrize(
    "arguments",
    [
        *([name] for name in SERVICES),
        *(["job", "--external", name] for name in job_names()),
        ["job", "temperature_monitor"],
    ],
    ids=" ".join,
)
def test_a_service_or_a_job_takes_the_place_of_the_command(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYHOLE_JOB_SERVERS", "127.0.0.1:7410")  # a job without --external is told so by this
    became: list[str] = []

    def execv(program: str, argv: list[str]) -> None:
        became.extend(argv)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(SystemExit):
        main(arguments)
    name = arguments[-1]
    program = SERVICES[name] if name in SERVICES else program_of(described(name))
    assert became == [sys.executable, "-P", "-m", program.module]
    assert importlib.util.find_spec(f"{program.module}.__main__") is not None


@pytest.mark.parametrize("option", [["--verify"], ["--json"], ["--seconds", "1"]], ids=" ".join)
def test_a_job_s_own_process_alone_counts_nothing_again(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "temperature_monitor", "--external", *option]) == 2
    assert "leave them out" in capsys.readouterr().err


def test_every_job_can_be_run_on_this_machine_with_its_source_and_its_recount() -> None:
    for job in map(described, job_names()):
        spec = job.spec(Path("here"), Path("here/checkpoint"), "a.jar", {"PATH": "/bin"})
        assert spec.job == program_of(job).module
        for module in (spec.source, job.verify):
            assert importlib.util.find_spec(module) is not None
        missing = f"{spec.source_prefix}BOOTSTRAP_SERVERS"
        kafka = {missing: "127.0.0.1:9092", "KEYHOLE_JOB_BOOTSTRAP_SERVERS": "k:1", "KEYHOLE_JOB_SERVERS": "s:1"}
        assert load(job.settings, {**spec.job_environ, **kafka}).topic in spec.topics
        assert load(job.source_settings, {**spec.source_environ, **kafka}).topic in spec.topics


@pytest.mark.parametrize("name", job_names())
def test_a_jobs_states_need_no_second_shuffle_after_that_of_the_grouping(name: str) -> None:
    key_groups = importlib.import_module(f"jobs.{name}.pipeline").KEY_GROUPS
    fields = dataclasses.fields(described(name).settings)
    (partitions,) = [field.default for field in fields if field.name == "shuffle_partitions"]
    assert key_groups % partitions == 0


def test_settings_of_the_job_and_its_source_are_taken_from_the_caller_and_no_others() -> None:
    given = {"KEYHOLE_READINGS_RATE": "5", "KEYHOLE_READINGS_TOPIC": "mine", "KEYHOLE_JOB_SERVERS": "x", "HOME": "/"}
    spec = described("temperature_monitor").spec(Path("here"), Path("here/checkpoint"), "", given)
    assert spec.source_environ == {
        "KEYHOLE_READINGS_RATE": "5",
        "KEYHOLE_READINGS_TOPIC": "readings",
        "KEYHOLE_READINGS_THRESHOLDS_TOPIC": "thresholds",
    }
    assert "KEYHOLE_JOB_SERVERS" not in spec.job_environ


@pytest.mark.parametrize(
    ("given", "place"), [("s3a://signals/files", "s3a://signals/files"), ("/mine", "here/files"), ("", "here/files")]
)
def test_a_job_on_this_machine_writes_its_files_into_an_object_store_if_it_is_given_one(given: str, place: str) -> None:
    """A folder of its own goes with it."""
    job, environ = described("vital_signs"), {"KEYHOLE_VITAL_SIGNS_FILES": given}
    spec = job.spec(Path("here"), Path("here/checkpoint"), "", environ)
    assert spec.job_environ["KEYHOLE_VITAL_SIGNS_FILES"] == job.files_in(Path("here"), environ) == place


def test_a_replica_is_told_its_role_and_what_it_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    role, applications = "KEYHOLE_STATE_SERVER_ROLE", "KEYHOLE_STATE_SERVER_APPLICATIONS"
    became: dict[str, str] = {}

    def execv(program: str, argv: list[str]) -> None:
        became.update({name: os.environ[name] for name in (role, applications)})
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execv)
    for name in (role, applications):
        monkeypatch.setenv(name, "other")  # the options come first; and both are put back afterwards
    with pytest.raises(SystemExit):
        main(["state-server", "--role", "replica", "--applications", "one,two"])
    assert became == {role: "replica", applications: "one,two"}


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"keyhole {importlib.metadata.version('keyhole-spark')}\n"


def test_python_runs_the_command_by_the_librarys_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["keyhole", "--version"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("keyhole", run_name="__main__")
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("keyhole ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["scan", "a/b", "c", "--limit", "abc"], "'abc' is no whole number"),
        (["states", "--timeout", "soon"], "'soon' is no number of seconds"),
        ([], "list the states that can be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage_is_told_in_words_of_the_command_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


WITH_PROXY = (["states"], ["get", "a/b", "c"], ["status"], ["retire", "a"])


@pytest.mark.parametrize("arguments", WITH_PROXY, ids=" ".join)
def test_the_proxy_is_that_of_the_environment_where_none_is_given(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PROXY_VARIABLE, raising=False)
    assert parser_of_all().parse_args(arguments).proxy == "127.0.0.1:7400"
    monkeypatch.setenv(PROXY_VARIABLE, "one:7400,two:7400")
    assert parser_of_all().parse_args(arguments).proxy == "one:7400,two:7400"
    assert parser_of_all().parse_args([*arguments, "--proxy", "three:1"]).proxy == "three:1"
    monkeypatch.setenv(PROXY_VARIABLE, "")
    assert parser_of_all().parse_args(arguments).proxy == "127.0.0.1:7400"


def test_a_query_alone_waits_a_minute_for_its_answer_unless_another_time_is_given() -> None:
    of_all = parser_of_all()
    for arguments in (*WITH_PROXY[:3], ["scan", "a/b"], ["watch", "a/b"], ["top"]):
        assert of_all.parse_args(arguments).timeout == 5
    assert of_all.parse_args(["sql", "select 1"]).timeout == 60
    assert of_all.parse_args(["sql", "select 1", "--timeout", "7"]).timeout == 7


@pytest.mark.parametrize(("option", "sets"), [([], ["spark-kafka"]), (["--s3"], ["spark-kafka", "spark-s3"])])
def test_the_connectors_are_printed_as_spark_submit_takes_them(
    option: list[str], sets: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetch(which: JarSet, cache: Path, show: Progress) -> list[Path]:
        show(0, 9_900_000)
        return [cache / f"{which}-{number}.jar" for number in range(2)]

    monkeypatch.setattr(fetching, "fetch", fetch)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert main(["jars", *option]) == 0
    said = capsys.readouterr()
    assert said.out == ",".join(f"/cache/keyhole/jars/{of}-{number}.jar" for of in sets for number in range(2)) + "\n"
    assert said.err == "".join(f"fetching {of} jars: 9.9 MB\n" for of in sets)
