"""Which Java is taken, and what is said of one that won't do. The Javas are shell scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyhole.errors import JavaMissing
from keyhole.local.java import find_java

GOOD = "java.base@17\njdk.incubator.vector@17\n"


def fake_java(home: Path, version: str, modules: str = GOOD, banner: str = "openjdk version") -> Path:
    """A Java home whose java answers as the real one would."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f"*-version) printf '    java.home = {home}\\n    java.io.tmpdir = /tmp\\n{banner} \"{version}\"\\n' >&2;;\n"
        f"--list-modules) printf '{modules}';;\n"
        "esac\n"
    )
    executable.chmod(0o755)
    return executable


@pytest.mark.parametrize(("text", "version"), [("17.0.15", 17), ("21", 21), ("25-ea", 25)])
def test_java_home_is_taken_before_path(tmp_path: Path, text: str, version: int) -> None:
    executable = fake_java(tmp_path / "home", text)
    fake_java(tmp_path / "other", "99")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "other" / "bin")})
    assert found.executable == executable
    assert found.version == version
    assert found.home == (tmp_path / "home").resolve()


def test_without_java_home_the_java_on_path_is_taken(tmp_path: Path) -> None:
    executable = fake_java(tmp_path, "17.0.1")
    assert find_java({"PATH": f"/nonexistent:{tmp_path / 'bin'}"}).executable == executable


def test_the_script_of_a_version_manager_leads_to_the_java_that_it_runs(tmp_path: Path) -> None:
    executable, script = fake_java(tmp_path / "jdk 17", "17.0.1"), tmp_path / "shims" / "java"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{executable}" "$@"\n')
    script.chmod(0o755)
    found = find_java({"PATH": str(script.parent)})
    assert (found.executable, found.home) == (executable, (tmp_path / "jdk 17").resolve())
    # One that names a home where there is none of it is taken as it is.
    executable.write_text(executable.read_text().replace(f"java.home = {tmp_path}", "java.home = /nonexistent"))
    assert find_java({"PATH": str(script.parent)}).executable == script


@pytest.mark.parametrize(("text", "version"), [("1.8.0_392", 8), ("11.0.2", 11), ("16", 16)])
def test_too_old_a_java_is_refused_with_its_version_and_the_one_needed(tmp_path: Path, text: str, version: int) -> None:
    fake_java(tmp_path, text)
    with pytest.raises(JavaMissing, match=rf"is Java {version}; .* need 17 or later: install a JDK"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_a_java_without_the_module_that_spark_needs_is_refused_by_the_modules_name(tmp_path: Path) -> None:
    fake_java(tmp_path, "21.0.1", modules="java.base@21\n")
    with pytest.raises(JavaMissing, match=r"lacks the module jdk\.incubator\.vector"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_no_java_at_all_is_said_with_what_to_do() -> None:
    with pytest.raises(JavaMissing, match=r"no Java was found.*install a JDK of version 17"):
        find_java({"PATH": "/nonexistent"})


def test_a_java_home_that_is_none_is_refused_although_path_has_a_java(tmp_path: Path) -> None:
    fake_java(tmp_path / "good", "17")
    with pytest.raises(JavaMissing, match=r"JAVA_HOME is .*empty"):
        find_java({"JAVA_HOME": str(tmp_path / "empty"), "PATH": str(tmp_path / "good" / "bin")})


def test_something_that_is_not_java_is_refused_with_what_it_said(tmp_path: Path) -> None:
    fake_java(tmp_path, "17", banner="a coffee machine, model")
    with pytest.raises(JavaMissing, match=r"does not look like Java.*coffee machine"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_a_java_that_can_not_be_run_is_refused(tmp_path: Path) -> None:
    fake_java(tmp_path, "17").chmod(0o644)
    with pytest.raises(JavaMissing, match="can't be run"):
        find_java({"JAVA_HOME": str(tmp_path)})
