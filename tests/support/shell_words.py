"""What can be known of a command that a page shows without running it: that what it names is there."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import io
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Sequence

from keyhole import config
from keyhole.demo.described_jobs import described, job_names
from tests.support.known_commands import known_commands
from tests.support.snippets import ROOT

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
_EXTRAS = _PROJECT["project"]["optional-dependencies"].keys()
_GROUPS = _PROJECT["dependency-groups"].keys()
_STAGES = re.findall(r"^FROM \S+ AS ([\w-]+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
_CONSOLE = ROOT / "services/client_proxy/console/web"
# What pages have readers write beside them.
_OF_THE_READER = {"job.py", "reader.py", "send.py", "values.yaml"}
_KINDS = (
    config.CliConfig,
    config.StateServerConfig,
    config.ClientProxyConfig,
    config.MetricsExporterConfig,
    config.JobConfig,
    config.KafkaConfig,
)
_VERBS_OF_KUBECTL = {"create", "delete", "get", "patch", "port-forward", "rollout", "scale"}
_COMMANDS_OF_HELM = {"history", "install", "rollback", "test", "upgrade"}
# Of the shell, and programs of which nothing is to be known but their names.
_TAKEN = {".", "cd", "curl", "do", "done", "echo", "eval", "export", "for", "git", "grpcurl", "mv", "uvicorn"}


def refused(command: str) -> list[str]:
    """What a line of a shell names that there isn't; empty: nothing.

    Args:
        command: As tests.support.snippets.commands gives it.
    """
    inner = [one for found in re.findall(r"\$\(([^()]*)\)", command) for one in refused(found)]
    outer = re.sub(r"\$\([^()]*\)", "MADE", command)
    return inner + [faults for words in _simple(outer) for faults in _of_words(words)]


def _simple(command: str) -> Iterator[list[str]]:
    """The words of each command of a line."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="&;|")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word and not word.strip("&;|"):
            if words:
                yield words
            words = []
        else:
            words.append(word)


def _of_words(words: Sequence[str]) -> list[str]:
    words = list(words)
    if words[0] in ("export", "do"):
        words.pop(0)
    faults = []
    while words and (assigned := re.match(r"([A-Za-z_]+)=", words[0])):
        if assigned[1].startswith("KEYHOLE_") and assigned[1] not in _settings():
            faults.append(f"there is no setting {assigned[1]}")
        words.pop(0)
    if not words:
        return faults
    program = words[0]
    check = _PROGRAMS.get(program)
    if check is None and program not in _TAKEN:
        return [*faults, f"nothing is known of {program}"]
    return faults if check is None else faults + check(words[1:])


def _settings() -> set[str]:
    kinds = [*_KINDS, *(kind for name in job_names() for kind in described(name).kinds)]
    return {config.PROXY_VARIABLE} | {
        kind.PREFIX + item.name.upper() for kind in kinds for item in dataclasses.fields(kind)
    }


def _keyhole(words: Sequence[str]) -> list[str]:
    """By the parser that the command itself has."""
    said = io.StringIO()
    given = list(words)
    if ">" in given:
        given = given[: given.index(">")]
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            known_commands().parse_args(given)
    except (SystemExit, argparse.ArgumentError):
        return [said.getvalue().strip().splitlines()[-1]]
    return []


def _uv(words: Sequence[str]) -> list[str]:
    faults, rest = [], list(words[1:])
    while rest and rest[0] in ("--group", "--no-dev", "--with"):
        if rest[0] == "--group" and rest[1] not in _GROUPS:
            faults.append(f"there is no group {rest[1]}")
        rest = rest[1 if rest[0] == "--no-dev" else 2 :]
    if words[0] == "add":
        return faults + _pip(["install", *rest])
    if words[0] == "sync":
        return faults
    if words[0] != "run":
        return [f"nothing is known of uv {words[0]}"]
    return faults if rest[0] in ("jupyter", "mkdocs") else faults + _of_words(rest)


def _pip(words: Sequence[str]) -> list[str]:
    extras = [extra for word in words for found in re.findall(r"\[([\w,-]+)\]", word) for extra in found.split(",")]
    return [f"there is no extra {extra}" for extra in extras if extra not in _EXTRAS]


def _python(words: Sequence[str]) -> list[str]:
    if words[0] == "-m":
        name = words[1]
        if name in ("pytest", "venv"):
            return []
        try:
            return [] if importlib.util.find_spec(name) else [f"there is no module {name}"]
        except ModuleNotFoundError:
            return [f"there is no module {name}"]
    there = words[0] in _OF_THE_READER or (ROOT / words[0]).is_file()
    return [] if there else [f"there is no file {words[0]}"]


def _docker(words: Sequence[str]) -> list[str]:
    """A target, and an image of ours, are a stage of the Dockerfile; but for one in a variable of the shell."""
    named = [words[at + 1] for at, word in enumerate(words) if word == "--target"]
    named += [name for word in words for name in re.findall(r"^keyhole/([\w-]+):", word)]
    known = words[0] in ("build", "compose", "images", "run")
    return [f"there is no image {name}" for name in named if name not in _STAGES and "$" not in name] + (
        [] if known else [f"nothing is known of docker {words[0]}"]
    )


def _helm(words: Sequence[str]) -> list[str]:
    faults = [] if words[0] in _COMMANDS_OF_HELM else [f"nothing is known of helm {words[0]}"]
    charts = [word for word in words if word.startswith("charts/")]
    return faults + [f"there is no chart {chart}" for chart in charts if not (ROOT / chart / "Chart.yaml").is_file()]


def _kubectl(words: Sequence[str]) -> list[str]:
    rest = list(words[2:]) if words[0] == "-n" else list(words)
    return [] if rest[0] in _VERBS_OF_KUBECTL else [f"nothing is known of kubectl {rest[0]}"]


def _npm(words: Sequence[str]) -> list[str]:
    scripts = json.loads((_CONSOLE / "package.json").read_text())["scripts"]
    return [] if words[0] == "ci" or words[1] in scripts else [f"there is no script {words[1]}"]


def _spark_submit(words: Sequence[str]) -> list[str]:
    return _python([words[-1]])


_PROGRAMS: dict[str, Callable[[Sequence[str]], list[str]]] = {
    "docker": _docker,
    "helm": _helm,
    "keyhole": _keyhole,
    "kh": _keyhole,
    "kubectl": _kubectl,
    "npm": _npm,
    "pip": _pip,
    "python": _python,
    "python3": _python,
    "spark-submit": _spark_submit,
    "uv": _uv,
}
