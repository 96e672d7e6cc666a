"""The processes of a cluster whose node is this machine: what Kubernetes itself offers no way to take away."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.needs import need

_PROCESSES = Path("/proc")


def kill(pod: dict[str, Any], container: str) -> None:
    """SIGKILL to the first process of a pod's container, sidecars too; the others of the pod go on.

    Args:
        pod: As the API has it.
    """
    identity = _status(pod, container)["containerID"].rpartition("/")[2]
    found = [process for process in _running() if identity in _text(process / "cgroup")]
    need("node", "" if found else "the pods' processes are not of this machine")
    # The first process of a container is the oldest.
    os.kill(min(int(process.name) for process in found), signal.SIGKILL)


def restarts(pod: dict[str, Any], container: str) -> int:
    """How often a container of the pod, sidecars too, has been started again."""
    return int(_status(pod, container)["restartCount"])


def _status(pod: dict[str, Any], container: str) -> dict[str, Any]:
    status = pod["status"]
    every = (*status.get("initContainerStatuses", ()), *status["containerStatuses"])
    (found,) = (each for each in every if each["name"] == container)
    return dict(found)


@contextlib.contextmanager
def without_api_server() -> Iterator[None]:
    """Meanwhile the API server answers nobody: its process is stopped, and goes on in the end."""
    found = [process for process in _running() if _program(process).endswith("kube-apiserver")]
    need("node", "" if len(found) == 1 else f"{len(found)} API servers run on this machine, and one must")
    process = int(found[0].name)
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def _running() -> Iterator[Path]:
    yield from (path for path in _PROCESSES.iterdir() if path.name.isdigit())


def _program(process: Path) -> str:
    return _text(process / "cmdline").partition("\0")[0]


def _text(path: Path) -> str:
    """Empty where the process has just ended."""
    try:
        return path.read_text()
    except OSError:
        return ""
