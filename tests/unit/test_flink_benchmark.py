"""How the benchmark of Flink's queryable state is built and started, and what it makes of its output; without Flink."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.flink.running import Settings, build, java_command, measurements, system
from benchmarks.lookups import BY_PORT, PLAIN, summarise
from keyhole.errors import MachineError

SECOND_NS = 1_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One source, and nothing built."""
    source = tmp_path / "flink" / "src" / "main" / "java" / "Server.java"
    source.parent.mkdir(parents=True)
    source.touch()
    (tmp_path / "flink" / "pom.xml").touch()
    return tmp_path / "flink"


def fake_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A mvn in front of all others on PATH."""
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text(f"#!/bin/sh\n{script}\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{maven.parent}:{os.environ['PATH']}")


def test_a_command_has_the_settings_before_the_program_and_its_arguments_behind_it() -> None:
    command = java_command(Path("/jdk/bin/java"), "Lookups", "1g", {"proxyPort": 9069, "seconds": 2.5}, ["1", "16"])
    assert command[:2] == ["/jdk/bin/java", "-Xmx1g"]
    program = command.index("benchmark.Lookups")
    assert command[program + 1 :] == ["1", "16"]
    assert {"-DproxyPort=9069", "-Dseconds=2.5", "-cp"} < set(command[:program])


def test_the_measurements_of_a_client_are_its_lines_of_json_and_no_warning_between_them() -> None:
    output = '[main] WARN Netty - no\n{"outstanding": 1, "p50_us": 100}\n\n[main] WARN x {y}\n{"outstanding": 16}\n'
    assert measurements(output) == [{"outstanding": 1, "p50_us": 100}, {"outstanding": 16}]


def test_systems_that_differ_in_a_setting_have_different_names() -> None:
    settings = (Settings(), Settings(backend="rocksdb"), Settings(threads=2), Settings(backend="rocksdb", threads=2))
    names = [system("1.20.0", each) for each in settings]
    assert names[0] == "flink 1.20.0 hashmap"
    assert len(set(names)) == len(names)


def test_the_ratio_to_flink_is_that_of_the_medians_at_the_same_number_of_outstanding_lookups(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rates = {("keyhole", "direct"): (100, 400, 150), ("flink 1.20.0 hashmap", "proxy"): (90, 50, 60)}
    results = [
        {"system": name, "path": path, "keys": 10, "outstanding": level, "lookups_per_second": rate * level}
        | {"p50_us": 1, "p99_us": 2}
        for (name, path), measured in rates.items()
        for level in (1, 16)
        for rate in measured
    ]
    summarise(results)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["system"], line["outstanding"], line.get("ratio_to_flink")) for line in lines] == [
        ("keyhole", 1, 2.5),
        ("keyhole", 16, 2.5),
        ("flink 1.20.0 hashmap", 1, None),
        ("flink 1.20.0 hashmap", 16, None),
    ]


def test_the_ratio_of_lookups_by_a_lookup_port_is_to_those_of_the_same_path_by_grpc(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rates = {(PLAIN, "proxy"): 100, (PLAIN, "routed"): 200, (BY_PORT, "proxy"): 150, (BY_PORT, "routed"): 100}
    summarise(
        [
            {"system": system, "path": path, "keys": 10, "outstanding": 1, "lookups_per_second": rate}
            | {"p50_us": 1, "p99_us": 2}
            for (system, path), rate in rates.items()
        ]
    )
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("ratio_to_grpc") for line in lines] == [None, None, 1.5, 0.5]


def test_it_is_built_once_and_again_where_a_source_is_newer(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_maven(tmp_path, monkeypatch, "mkdir -p target && touch target/flink-benchmark.jar && echo x >> builds")
    jar, builds = folder / "target" / "flink-benchmark.jar", folder / "builds"
    build(folder)
    build(folder)
    assert builds.read_text() == "x\n"
    built_ns = jar.stat().st_mtime_ns
    os.utime(folder / "pom.xml", ns=(built_ns, built_ns + SECOND_NS))
    build(folder)
    assert builds.read_text() == "x\nx\n"


def test_a_build_that_fails_is_an_error(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_maven(tmp_path, monkeypatch, "exit 1")
    with pytest.raises(MachineError, match="Maven could not build"):
        build(folder)


def test_where_there_is_no_maven_it_is_said_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(MachineError, match="there is no mvn on PATH; install Maven and a JDK"):
        build(folder)
