"""A Kubernetes cluster, whichever KUBECONFIG leads to: namespaces of a test's own, and what kubectl says."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from tests.support import waiting
from tests.support.needs import need

_RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


def cluster() -> None:
    """Skips, or fails, where there is none."""
    need("cluster", _without_cluster())


@functools.cache
def _without_cluster() -> str:
    if shutil.which("kubectl") is None:
        return "there is no kubectl on PATH"
    done = _kubectl(["get", "nodes", "--request-timeout=10s"], "")
    return "" if done.returncode == 0 else f"no cluster answers kubectl ({done.stderr.strip()[-200:]})"


def _kubectl(arguments: list[str], given: str, seconds: int = 120) -> subprocess.CompletedProcess[str]:
    command = ["kubectl", *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=seconds, check=False)


def kubectl(*arguments: str, given: object = None, seconds: int = 120) -> str:
    """What it prints; `given`: an object, or several, on standard input."""
    objects = given if isinstance(given, list) else [given] if given is not None else []
    done = _kubectl(list(arguments), yaml.safe_dump_all(objects) if objects else "", seconds)
    assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def kubectl_refused(*arguments: str, given: object = None) -> str:
    """What it says where it fails."""
    done = _kubectl(list(arguments), yaml.safe_dump(given) if given is not None else "")
    assert done.returncode != 0, f"kubectl {' '.join(arguments)} went well"
    return done.stdout + done.stderr


def listed(namespace: str, what: str, selector: str = "") -> list[dict[str, Any]]:
    """Objects of the namespace."""
    found = kubectl("get", what, "--namespace", namespace, "--selector", selector, "--output", "json")
    items: list[dict[str, Any]] = json.loads(found)["items"]
    return items


@contextlib.contextmanager
def namespace(prefix: str) -> Iterator[str]:
    """A new one, which takes only pods of the restricted standard; it goes again, with all that is in it."""
    cluster()
    name = f"{prefix}-{uuid.uuid4().hex[:8]}"
    kubectl(
        "create",
        "--filename",
        "-",
        given={"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": _RESTRICTED}},
    )
    try:
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=false")


def until(reached: Callable[[], object]) -> None:
    """Returns once it is true, as kubectl tells it; a TimeoutError if that takes a minute."""
    waiting.until(reached, 60, pause=0.5)
