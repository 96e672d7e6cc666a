"""The image `cli`: what is installed in it is what the commands of the runbooks need, and these are spelled right."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from keyhole.cli import tool_commands
from keyhole.cli.arguments import parser_of_all
from keyhole.cli.read_commands import TO_READ
from tests.support import promql

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
SECTION = OPERATIONS.partition("## In the cluster")[2].partition("\n## ")[0]
COMMANDS = sorted(set(re.findall(r"`kh ([^`]+)`", SECTION)))
NEEDED = {*TO_READ, *tool_commands._TO_VERIFY, *tool_commands._TO_SAVE, *tool_commands._TO_DROP, "kubernetes"}


def _distributions(extra: str) -> set[str]:
    """All that an extra names, by its own extras, too."""
    found: set[str] = set()
    for text in EXTRAS[extra]:
        of = Requirement(text)
        found |= {of.name} if of.name != "keyhole-spark" else set().union(*map(_distributions, of.extras))
    return found


def _installed(target: str) -> set[str]:
    stage = (ROOT / "Dockerfile").read_text().partition(f" AS build-{target}\n")[2].partition("\nFROM ")[0]
    syncs = [line for line in re.sub(r"\\\n\s*", " ", stage).splitlines() if "uv sync" in line]
    # Dependencies first, then the project: of the same extras.
    (extras,) = {tuple(re.findall(r"--extra (\w+)", line)) for line in syncs}
    left_out = set(re.findall(r"--no-install-package ([\w-]+)", stage))
    return set().union(*map(_distributions, extras)) - left_out


@pytest.mark.parametrize("module", sorted(NEEDED))
def test_the_image_has_what_a_command_needs(module: str) -> None:
    assert set(importlib.metadata.packages_distributions()[module]) & _installed("cli")


def test_an_image_without_them_would_be_found() -> None:
    assert not {"rich", "lmdb"} & _installed("client-proxy")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_runbooks_is_one(command: str) -> None:
    assert parser_of_all().parse_args(command.split()).run


@pytest.mark.parametrize("page", ["recovery", "kubernetes"])
def test_a_command_of_the_steps_on_a_cluster_is_one(page: str) -> None:
    text = re.sub(r"\\\n\s+", "", (ROOT / "docs" / f"{page}.md").read_text())
    commands = re.findall(r"^ {4,}(?:kh|keyhole) (.+)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        assert parser_of_all().parse_args(command.split()).run, command


def test_every_command_of_the_page_has_its_line_in_the_cluster() -> None:
    for section in OPERATIONS.split("\n## "):
        typed = set(re.findall(r"^    keyhole (\S+)", section, re.MULTILINE))
        assert not typed - {command.split()[0] for command in COMMANDS}, section.partition("\n")[0]


def test_the_pod_keeps_to_the_restricted_standard_and_is_of_the_release(tmp_path: Path) -> None:
    """By the shell that runs it, with a kubectl that says what it was given."""
    (function,) = re.findall(r"```bash\n(.*?)```", SECTION, re.DOTALL)
    script = "kubectl() { printf '%s\\0' \"$@\"; }\n" + function + "kh status --pods\n"
    done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    given = done.stdout.rstrip("\0").split("\0")
    assert given[-3:] == ["--", "status", "--pods"]
    named = dict(itertools.pairwise(given))
    overrides = json.loads(named["--overrides"])
    spec = overrides["spec"]
    (container,) = spec["containers"]
    assert container["name"] == given[1] == "keyhole-cli"
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert named["--image"].startswith("keyhole/cli:")
    assert overrides["metadata"]["labels"] == {
        f"app.kubernetes.io/{name}": value
        for name, value in (("name", "keyhole"), ("instance", "keyhole"), ("component", "cli"))
    }


def test_every_alert_has_its_command() -> None:
    assert COMMANDS
    assert not [alert["alert"] for alert in promql.alerts() if alert["alert"] not in SECTION]
