"""`keyhole new`: what it writes, what it refuses, and that it leaves nothing half done."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from keyhole.cli.main import main
from keyhole.cli.project import making
from keyhole.cli.project.installed_from import Requirement, url_of
from keyhole.cli.project.making import make_project

FILES = [
    ".gitignore",
    "README.md",
    "data/orders.json",
    "job.py",
    "pyproject.toml",
    "reader.py",
    "test_project.py",
]


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_project_has_the_folders_name_and_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    assert main(["new", "shop"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("made shop, the application shop: .gitignore, README.md, data/orders.json, job.py")
    assert "Next:\n  cd shop\n  uv run keyhole dev job.py\n" in said
    assert files_of(tmp_path / "shop") == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["shop"]
    texts = {name: (tmp_path / "shop" / name).read_text() for name in FILES}
    assert not [name for name, text in texts.items() if "{{" in text]
    assert 'session("shop")' in texts["job.py"]
    assert '"shop/totals"' in texts["reader.py"]
    project = tomllib.loads(texts["pyproject.toml"])
    assert project["project"]["name"] == "shop"
    # These tests run on a clone.
    root = Path(__file__).parents[2]
    assert project["project"]["dependencies"] == [f"keyhole-spark[demo] @ {root.as_uri()}"]
    asked = [sys.executable, str(tmp_path / "shop" / "reader.py")]
    nobody = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (nobody.returncode, nobody.stderr) == (1, "name customers, as in: python reader.py c1 c2\n")
    rows = [json.loads(line) for line in texts["data/orders.json"].splitlines()]
    assert all(row.keys() == {"customer", "product", "amount"} for row in rows)
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--select",
        "E,F,I,UP,B",
        "--line-length",
        "100",
        ".",
    ]
    checked = subprocess.run(command, cwd=tmp_path / "shop", capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_project_needs_nothing_more_for_sql() -> None:
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (ours,) = [one for one in extras["optional-dependencies"]["demo"] if one.startswith("keyhole-spark[")]
    assert {"cli", "sql", "savepoint"} <= set(ours.removeprefix("keyhole-spark[").rstrip("]").split(","))


def test_an_empty_folder_stays_the_one_that_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my shop"
    folder.mkdir()
    before = folder.stat().st_ino
    monkeypatch.chdir(folder)
    assert main(["new", "."]) == 1
    assert "the application's name would be 'my shop'" in capsys.readouterr().err
    assert main(["new", ".", "--name", "shop-2"]) == 0
    assert "cd " not in capsys.readouterr().out
    assert (folder.stat().st_ino, files_of(folder)) == (before, FILES)
    assert 'session("shop-2")' in Path("job.py").read_text()
    assert main(["new", ".", "--name", "shop-2"]) == 1
    assert ". is not empty: it has .gitignore and 6 more. Name a new folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["taken"], "taken is not empty: it has notes. Name a new folder, or an empty one"),
        (["taken/notes"], "taken/notes is there, and is no folder"),
        (["no/shop"], "there is no folder no to make shop in: make it first"),
        (["größe"], "but must be 1 to 100 letters, digits, '_' or '-'"),
        (["shop-"], "with a letter or digit at both ends; give another one by --name"),
        (["a" * 101], "must be 1 to 100 letters"),
        (["shop", "--name", ""], "the application's name would be ''"),
        (["shop", "--name", "a/b"], "would be 'a/b', but must be 1 to 100 letters"),
        (["PySpark"], "'PySpark' is the name of a package that the project needs"),
        (["Keyhole_Spark"], "can't be its own; give another one by --name"),
    ],
)
def test_what_can_not_be_is_refused_and_nothing_is_made(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes").touch()
    assert main(["new", *words]) == 1
    assert says in capsys.readouterr().err
    assert files_of(tmp_path) == ["taken/notes"]
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("there", [False, True])
def test_where_it_can_not_be_written_nothing_is_left(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if there:
        (tmp_path / "shop").mkdir()
    whole, writes = Path.rename, 0

    def fails(path: Path, to: Path) -> Path:
        nonlocal writes
        writes += 1
        if writes == (3 if there else 1):
            raise OSError(28, "No space left on device")
        return whole(path, to)

    monkeypatch.setattr(Path, "rename", fails)
    assert main(["new", "shop"]) == 1
    assert "shop can't be written (no space left on device): choose another folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == (["shop"] if there else [])


@pytest.mark.parametrize(
    ("recorded", "url"),
    [
        ({"url": Path(__file__).parent.as_uri(), "dir_info": {"editable": True}}, Path(__file__).parent.as_uri()),
        ({"url": "file:///is/gone/keyhole.whl", "archive_info": {}}, ""),
        ({"url": "https://h/keyhole.whl", "archive_info": {"hash": "sha256=1"}}, "https://h/keyhole.whl"),
        (
            {"url": "https://h/p/keyhole.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            "git+https://h/p/keyhole.git@c0ffee",
        ),
        (
            {"url": "ssh://git@h/k.git", "vcs_info": {"vcs": "git"}, "subdirectory": "python"},
            "git+ssh://git@h/k.git#subdirectory=python",
        ),
        ({}, ""),
        (None, ""),
    ],
)
def test_where_it_was_installed_from_is_what_the_project_needs(recorded: object, url: str) -> None:
    assert url_of(None if recorded is None else json.dumps(recorded)) == url


def test_a_project_of_an_install_from_nowhere_says_what_to_write(tmp_path: Path) -> None:
    assert url_of("no JSON") == ""
    make_project(tmp_path / "shop", "shop", Requirement(""))
    text = (tmp_path / "shop" / "pyproject.toml").read_text()
    assert f"# {making.UNKNOWN}\n" in text
    assert tomllib.loads(text)["project"]["dependencies"] == ["keyhole-spark[demo]"]
    assert tomllib.loads(text)["dependency-groups"]["dev"] == ["keyhole-spark[testing]"]
