"""A job that is a folder below `jobs` and nothing else: it is listed, it can be run, and its settings are known.

That nothing that is written by hand lists all jobs: tests/meta/test_job_lists.py.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from keyhole.demo.described_jobs import described, job_names
from keyhole.errors import InvalidConfiguration

ROOT = Path(__file__).resolve().parents[2]
JOBS, DOCS = ROOT / "jobs", ROOT / "docs"
# Of the job that the added one is a copy of, and of the copy.
NAMES = {
    "tweet_impressions": "door_bells",
    "tweet-impressions": "door-bells",
    "TweetImpressions": "DoorBells",
    "TWEET_IMPRESSIONS": "DOOR_BELLS",
    "KEYHOLE_TWEETS_": "KEYHOLE_RINGS_",
}
ADDED = "door_bells"
# And what each is nearest to.
MISSPELT = {
    "KEYHOLE_RINGS_RAT": "KEYHOLE_RINGS_RATE",
    "KEYHOLE_DOOR_BELLS_TOPIK": "KEYHOLE_DOOR_BELLS_TOPIC",
    "KEYHOLE_JOB_SERVER": "KEYHOLE_JOB_SERVERS",
}
_EXTENDED = "import json, os, sys, jobs; jobs.__path__.append(sys.argv.pop(1)); "
_COMMAND = "from keyhole.cli.main import main; sys.exit(main(sys.argv[1:]))"
_LISTS = (
    "import runpy; lists = runpy.run_path(sys.argv[1]); page = lists['DEMO'].read_text(); "
    "print(json.dumps([lists['demo_page'](page), lists['scenario']()]))"
)
_MODULE = "import runpy; runpy.run_module(sys.argv[1], run_name='__main__', alter_sys=True)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package of the added job is."""
    found = tmp_path_factory.mktemp("added") / "jobs"
    added = found / ADDED
    added.mkdir(parents=True)
    for path in (JOBS / "tweet_impressions").glob("*.py"):
        text = path.read_text()
        for old, new in NAMES.items():
            text = text.replace(old, new)
        (added / path.name).write_text(text)
    return found


def run(folder: Path, code: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A process of Python that finds the job."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KEYHOLE_")}
    return subprocess.run(
        [sys.executable, "-P", "-c", _EXTENDED + code, str(folder), *arguments],
        env={**environ, **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command_line_lists_it(folder: Path) -> None:
    done = run(folder, _COMMAND, "job", "--help")
    assert done.returncode == 0, done.stderr
    listed = ",".join(sorted([*job_names(), ADDED]))
    assert f"{{{listed}}}" in done.stdout
    assert ADDED not in job_names()


def test_the_pages_and_the_chart_s_scenario_list_it_once_they_are_made_again(folder: Path) -> None:
    done = run(folder, _LISTS, str(DOCS / "job_lists.py"))
    assert done.returncode == 0, done.stderr
    page, scenario = json.loads(done.stdout)
    row = f"| [{ADDED}](../jobs/{ADDED}/README.md) | {described('tweet_impressions').shows} | "
    assert [line for line in page.splitlines() if ADDED in line] == [f"{row}`top_tweets`, `tweet_hours` |"]
    assert page.replace(f"{row}`top_tweets`, `tweet_hours` |\n", "") == (DOCS / "demo.md").read_text()
    topic = {"topic": "tweets"}
    source = {"enabled": True, "settingsPrefix": "KEYHOLE_RINGS_", "settings": topic | {"rate": 50}}
    job = {"name": "door-bells", "checkpoint": {"claim": {"size": "1Gi"}}, "settings": topic, "source": source}
    jobs = yaml.safe_load(scenario)["jobs"]
    assert job in jobs
    assert len(jobs) == len(job_names()) + 1


def test_no_job_is_imported_to_be_listed(folder: Path) -> None:
    code = "from keyhole.demo.described_jobs import job_names; names = job_names(); "
    done = run(folder, code + "print(json.dumps([names, [name for name in sys.modules if name.startswith('jobs.')]]))")
    names, imported = json.loads(done.stdout)
    assert ADDED in names
    assert imported == []


def test_its_own_process_takes_the_place_of_the_command(folder: Path) -> None:
    code = "os.execv = lambda program, argv: sys.exit(json.dumps(argv)); "
    done = run(folder, code + _COMMAND, "job", "--external", ADDED)
    assert json.loads(done.stderr)[1:] == ["-P", "-m", f"jobs.{ADDED}"]


def test_a_copied_description_that_still_names_the_other_job_is_refused(tmp_path: Path) -> None:
    copied = tmp_path / "jobs" / "copied"
    copied.mkdir(parents=True)
    (copied / "__init__.py").touch()
    (copied / "description.py").write_text("from jobs.tweet_impressions.description import JOB\n")
    done = run(copied.parent, _COMMAND, "job", "--external", "copied")
    assert done.returncode == 1
    assert "describes tweet_impressions; its name must be copied" in done.stderr


def test_its_settings_and_its_source_s_are_known_in_both_processes(folder: Path) -> None:
    code = (
        "from pathlib import Path; from keyhole.config import load; from keyhole.demo.described_jobs import described; "
        f"job = described({ADDED!r}); spec = job.spec(Path('here'), Path('here/checkpoint'), 'a.jar', os.environ); "
        "both = {**spec.job_environ, **spec.source_environ, job.source_prefix + 'BOOTSTRAP_SERVERS': 'k:1'}; "
        "job_config, source = (load(kind, both, job.kinds) for kind in job.kinds); "
        "print(json.dumps([job_config.topic, job_config.shuffle_partitions, source.topic, source.rate]))"
    )
    settings = {"KEYHOLE_DOOR_BELLS_SHUFFLE_PARTITIONS": "4", "KEYHOLE_RINGS_RATE": "7"}
    done = run(folder, code, **settings)
    assert done.stdout, done.stderr
    assert json.loads(done.stdout) == ["tweets", 4, "tweets", 7]


@pytest.mark.parametrize("module", [f"jobs.{ADDED}", f"jobs.{ADDED}.source"])
def test_misspelt_settings_are_refused_by_both_processes(folder: Path, module: str) -> None:
    done = run(folder, _MODULE, module, **dict.fromkeys(MISSPELT, "5"))
    assert done.returncode == 1
    assert "unknown setting" in done.stderr
    for name, nearest in MISSPELT.items():
        assert f"{name} (is it {nearest}" in done.stderr
    assert "Traceback" not in done.stderr


def misspelt(name: str) -> dict[str, str]:
    """A setting of the job and one of its source."""
    return {f"{prefix}TOPIK": "x" for prefix in (described(name).prefix, described(name).source_prefix)}


@pytest.mark.parametrize("name", job_names())
def test_every_job_s_own_process_refuses_misspelt_settings_of_the_job_and_of_its_source(name: str) -> None:
    start = importlib.import_module(f"jobs.{name}.__main__").start
    with pytest.raises(InvalidConfiguration) as caught:
        start(misspelt(name))
    for setting in misspelt(name):
        assert f"{setting} (is it {setting[:-1]}C" in caught.value.message


@pytest.mark.parametrize("name", job_names())
def test_every_source_s_process_refuses_misspelt_settings_of_the_source_and_of_its_job(
    name: str, tmp_path: Path
) -> None:
    done = run(tmp_path, _MODULE, f"jobs.{name}.source", **misspelt(name))
    assert done.returncode == 1
    for setting in misspelt(name):
        assert f"{setting} (is it {setting[:-1]}C" in done.stderr


def test_no_command_imports_another_package_of_the_name_jobs(tmp_path: Path) -> None:
    foreign = tmp_path / "jobs" / "__init__.py"
    foreign.parent.mkdir()
    foreign.write_text("raise SystemExit('imported')")
    done = subprocess.run(
        [sys.executable, "-P", "-c", "from keyhole.cli.main import main; main(['states', '--help'])"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, "imported" in done.stderr) == (0, False), done.stderr
