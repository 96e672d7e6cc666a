"""What a machine may lack: tests that need it are skipped by name, and fail where KEYHOLE_REQUIRE names it.

KEYHOLE_REQUIRE=docker,cluster,helm,prometheus,chromium,go,node,notebook: a comma between the names.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess

import pytest

_SECONDS = 20
_COMPOSE = (2, 24, 4)


def need(what: str, lacking: str) -> None:
    """Skips the test, or fails it, where `lacking` says what this machine has not; goes on where it is empty."""
    if not lacking:
        return
    if what in os.environ.get("KEYHOLE_REQUIRE", "").split(","):
        pytest.fail(f"KEYHOLE_REQUIRE names {what}, but {lacking}", pytrace=False)
    pytest.skip(f"needs {what}: {lacking}")


def docker() -> None:
    """A Docker engine that answers."""
    need("docker", _without_docker())


def compose() -> list[str]:
    """Docker with Compose 2.24.4 or later, which takes one list in place of another. The words that run it."""
    docker()
    for command in (["docker", "compose"], ["docker-compose"]):
        version = _compose_version(command)
        if version >= _COMPOSE:
            return command
    need("docker", f"neither `docker compose` nor docker-compose is {'.'.join(map(str, _COMPOSE))} or later")
    raise AssertionError("the line before has raised")


def go() -> None:
    """Go's tools."""
    need("go", "" if shutil.which("go") else "there is no go on PATH")


def node() -> None:
    """Node, which runs JavaScript."""
    need("node", "" if shutil.which("node") else "there is no node on PATH")


def prometheus() -> None:
    """Prometheus and its promtool: Debian's package `prometheus` has both."""
    lacking = [tool for tool in ("prometheus", "promtool") if shutil.which(tool) is None]
    need("prometheus", f"there is no {' and no '.join(lacking)} on PATH" if lacking else "")


def chromium() -> None:
    """Chromium and its driver: Debian's packages `chromium` and `chromium-driver`."""
    lacking = [tool for tool in ("chromium", "chromedriver") if shutil.which(tool) is None]
    need("chromium", f"there is no {' and no '.join(lacking)} on PATH" if lacking else "")


def _compose_version(command: list[str]) -> tuple[int, ...]:
    if shutil.which(command[0]) is None:
        return ()
    done = subprocess.run(
        [*command, "version", "--short"], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", done.stdout) if done.returncode == 0 else None
    return tuple(map(int, found.groups())) if found else ()


@functools.cache
def _without_docker() -> str:
    if shutil.which("docker") is None:
        return "there is no docker on PATH"
    try:
        done = subprocess.run(
            ["docker", "info", "--format", "{{.ServerVersion}}"],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"docker info did not answer within {_SECONDS} s"
    return "" if done.returncode == 0 else f"no engine answers ({done.stderr.strip() or done.stdout.strip()})"
