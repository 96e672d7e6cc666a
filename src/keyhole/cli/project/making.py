"""Makes a project of the template's files, whole or not at all."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from keyhole.cli.project.installed_from import DISTRIBUTION, Requirement
from keyhole.errors import InvalidConfiguration, MachineError

# What is both an application's name, which is part of topics' names, and a Python project's.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,98}[A-Za-z0-9])?")
# A project can't depend on one of its own name.
_TAKEN = ("keyhole", DISTRIBUTION, "pyspark", "pytest")
_TEMPLATE = resources.files("keyhole.cli.project").joinpath("template")
_SUFFIX = ".in"


def project_name(folder: Path, given: str | None) -> str:
    """The application's name: the one that is given, or the folder's.

    Raises:
        InvalidConfiguration: It can't be one.
    """
    name = folder.resolve().name if given is None else given
    remedy = "give another one by --name" if given is None else "choose another one"
    if _NAME.fullmatch(name) is None:
        raise InvalidConfiguration(
            f"the application's name would be {name!r}, but must be 1 to 100 letters, digits, '_' or '-', with a "
            f"letter or digit at both ends; {remedy}",
            name=name,
        )
    if re.sub(r"[_-]+", "-", name.lower()) in _TAKEN:
        raise InvalidConfiguration(
            f"{name!r} is the name of a package that the project needs, and can't be its own; {remedy}", name=name
        )
    return name


def make_project(folder: Path, name: str, requirement: Requirement) -> list[Path]:
    """Writes all files; where that fails, none of them is left.

    Args:
        folder: New, or empty.

    Returns:
        The files, below the folder, sorted.

    Raises:
        InvalidConfiguration: There is something in the folder, or it is none.
        MachineError: It can't be written.
    """
    _check(folder)
    files = dict(_files(_TEMPLATE, Path(), {"{{application}}": name, **_required(requirement)}))
    made: list[Path] = []
    try:
        if folder.is_dir():
            # It stays what it is: a shell may stand in it.
            with tempfile.TemporaryDirectory(prefix=".keyhole-new-", dir=folder) as unnamed:
                _write(Path(unnamed), files)
                for entry in sorted(Path(unnamed).iterdir()):
                    entry.rename(folder / entry.name)
                    made.append(folder / entry.name)
        else:
            with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as unnamed:
                whole = Path(unnamed, folder.name)
                _write(whole, files)
                whole.rename(folder)
    except BaseException as error:
        for entry in made:
            _remove(entry)
        if isinstance(error, OSError):
            why = (error.strerror or type(error).__name__).lower()
            raise MachineError(f"{folder} can't be written ({why}): choose another folder", path=folder) from error
        raise
    return sorted(files)


def _check(folder: Path) -> None:
    try:
        if folder.is_dir():
            if there := sorted(entry.name for entry in folder.iterdir()):
                more = f" and {len(there) - 1} more" if len(there) > 1 else ""
                raise InvalidConfiguration(
                    f"{folder} is not empty: it has {there[0]}{more}. Name a new folder, or an empty one", path=folder
                )
        elif folder.exists() or folder.is_symlink():
            raise InvalidConfiguration(f"{folder} is there, and is no folder: name a new one", path=folder)
        elif not folder.parent.is_dir():
            raise InvalidConfiguration(
                f"there is no folder {folder.parent} to make {folder.name} in: make it first", path=folder
            )
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise MachineError(f"{folder} can't be looked at ({why}): choose another folder", path=folder) from error


def _required(requirement: Requirement) -> Mapping[str, str]:
    return {
        "{{demo}}": requirement.with_extras("demo"),
        "{{testing}}": requirement.with_extras("testing"),
        "# {{where}}\n": "" if requirement.url else f"# {UNKNOWN}\n",
    }


UNKNOWN = (
    f'No package index has {DISTRIBUTION}: write " @ git+https://..." or " @ file:///..." behind both names below.'
)
"""Of a project whose pyproject.toml can't say where Keyhole is to be had."""


def _files(folder: Traversable, below: Path, words: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """By path in the project. A template's file has a suffix of its own, so that no tool takes it for one of Keyhole's
    modules.
    """
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, below / entry.name, words)
        elif entry.name.endswith(_SUFFIX):
            text = entry.read_text(encoding="utf-8")
            for word, value in words.items():
                text = text.replace(word, value)
            yield below / entry.name.removesuffix(_SUFFIX), text


def _write(folder: Path, files: Mapping[Path, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def _remove(entry: Path) -> None:
    if entry.is_dir():
        shutil.rmtree(entry)
    else:
        entry.unlink(missing_ok=True)
