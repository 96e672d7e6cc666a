"""README's first screen, word by word, in an empty directory: a project, its job, its reader, and what comes next."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.embedded import assert_none_lives, ran
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
# Kafka, three services and Spark, on a busy machine.
START_SECONDS = 900.0
_TIMES = 5


def commands(page: str, heading: str) -> list[list[str]]:
    """The blocks of commands below a heading of a page, without comments."""
    text = (ROOT / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?:^ {4}\S.*\n)+", text, re.MULTILINE)
    return [[line.partition("  #")[0].strip() for line in block.splitlines()] for block in blocks]


class Person:
    """Somebody with an empty home, who types commands. What machines keep for all (jars, packages) is kept."""

    def __init__(self, home: Path) -> None:
        self.directory = ROOT
        self.home = home
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("KEYHOLE_", "VIRTUAL_"))}
        cache = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        self.environ = environ | {
            "HOME": str(home),
            "TMPDIR": str(home),
            "XDG_CACHE_HOME": cache,
            "COLUMNS": "120",
            # The environment of these tests in place of another one of the same: minutes, and half a gigabyte.
            "UV_PROJECT_ENVIRONMENT": sys.prefix,
            "UV_NO_SYNC": "1",
        }

    def enters(self, command: str) -> None:
        """`cd`, which a shell does for itself alone."""
        self.directory = Path(command.removeprefix("cd ").replace("~", str(self.home)))

    def typed(self, command: str) -> str:
        """What it prints. A person whose machine has been too busy for an answer in time types it again."""
        for _ in range(_TIMES):
            done = ran(["/bin/sh", "-c", command], self.environ, START_SECONDS, self.directory)
            if done.returncode == 0:
                return done.stdout
            if "deadline" not in done.stderr:
                break
        raise AssertionError(f"{command}\n{done.stdout}{done.stderr}")

    def begins(self, command: str) -> subprocess.Popen[bytes]:
        with self.log.open("wb") as log:
            return subprocess.Popen(
                command.split(), cwd=self.directory, env=self.environ, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def log(self) -> Path:
        return self.home / "dev.log"


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    person = Person(tmp_path)
    yield person
    if (tmp_path / "shop").is_dir():
        person.directory = tmp_path / "shop"
        person.typed("uv run keyhole down --delete")
    assert_none_lives(tmp_path)


def test_a_project_is_made_before_anything_large_is_fetched(person: Person) -> None:
    environment = person.home / "environment"
    person.environ["UV_PROJECT_ENVIRONMENT"] = str(environment)
    del person.environ["UV_NO_SYNC"]
    try:
        ((new, _, _), _) = commands("README.md", "Your own state in five minutes")
        person.typed(new)
        listed = person.typed(f"uv pip list --quiet --format json --python {environment}")
    finally:
        person.environ |= {"UV_PROJECT_ENVIRONMENT": sys.prefix, "UV_NO_SYNC": "1"}
    assert {package["name"] for package in json.loads(listed)} == {"keyhole-spark", "msgspec"}


def test_the_test_of_a_new_project_runs_as_its_readme_says(person: Person) -> None:
    ((new, enter, _), _) = commands("README.md", "Your own state in five minutes")
    person.typed(new)
    person.enters(enter)
    for page in (ROOT / "docs/first-state.md", person.directory / "README.md"):
        assert "`uv run pytest` runs" in page.read_text()
    assert "2 passed" in person.typed("uv run pytest")


def test_a_state_of_ones_own_is_made_read_changed_and_ended(person: Person) -> None:
    (new, enter, dev), (get, read, curl) = commands("README.md", "Your own state in five minutes")
    printed = person.typed(new)
    assert "Next:\n" in printed
    assert f"{dev}\n" in printed
    person.enters(enter)
    assert commands("docs/first-state.md", "Make it and run it")[0] == [new, enter, dev]
    process = person.begins(dev)
    try:

        def says(what: str) -> None:
            def said() -> bool:
                assert process.poll() is None, person.log.read_text()
                return what in person.log.read_text()

            until(said, START_SECONDS, 0.1, person.log.read_text)

        says("shop/totals can be read, ")
        says(": 4 entries at epoch 1")
        assert '{"orders": 3, "spent": 37.25, "largest": 30.0}' in person.typed(get)
        assert person.typed(read).splitlines() == [
            "c1 has spent 37.25 in 3 orders, 30.00 at most",
            "c2 has spent 30.25 in 2 orders, 18.25 at most",
        ]
        answer = json.loads(person.typed(curl.replace("curl", "curl -s")))
        assert answer["value"] == {"orders": 3, "spent": 37.25, "largest": 30.0}

        job = person.directory / "job.py"
        good = job.read_text()
        job.write_text(f"{good}\ndef broken(:\n")
        says("job.py, line 34: invalid syntax; the job goes on as it was")
        ((write, move, again),) = commands("docs/first-state.md", "More rows")
        person.typed(write)
        person.typed(move)
        until(lambda: '"orders": 4, "spent": 58.75' in person.typed(again), START_SECONDS, 0.2, person.log.read_text)
        job.write_text(good.replace('F.max("amount")', 'F.max("amuont")'))
        says("job.py has changed: starting it again")
        says("job.py, line 18, has failed: AnalysisException: [UNRESOLVED_COLUMN")
        says("Its whole log is .keyhole/logs/job.log. Waiting for a change of job.py")
        assert '"orders": 4' in person.typed(get)

        process.send_signal(signal.SIGINT)
        assert process.wait(START_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    assert "ended; the data stay in .keyhole" in person.log.read_text()
    assert_none_lives(person.home)
    # But for locks of uv's.
    assert {path.name for path in person.home.iterdir() if path.suffix != ".lock"} == {"dev.log", "shop"}
    assert not (person.directory / ".keyhole" / "job-tmp").exists()
