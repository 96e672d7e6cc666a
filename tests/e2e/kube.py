"""kubectl and helm as the tests use them, in one namespace."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_COMMAND_SECONDS = 120
_LOOK_SECONDS = 0.5


class CommandFailed(Exception):
    """A command ended with an error; the message has what it printed."""


def run(*command: str, text: str = "", seconds: float = _COMMAND_SECONDS) -> str:
    """What it prints.

    Raises:
        CommandFailed: Its exit code is not 0.
    """
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode != 0:
        raise CommandFailed(f"{' '.join(command[:12])} ended with {done.returncode}: {done.stderr.strip()[-3000:]}")
    return done.stdout


def await_(holds: Callable[[], object], seconds: float, what: str) -> Any:
    """Until it is true; what it then was.

    Raises:
        TimeoutError: It has not become true; also says what went wrong when it was last asked.
    """
    until, why = time.monotonic() + seconds, ""
    while time.monotonic() < until:
        try:
            if held := holds():
                return held
            why = ""
        except (CommandFailed, subprocess.TimeoutExpired, KeyError, IndexError) as error:
            why = f" ({error})"
        time.sleep(_LOOK_SECONDS)
    raise TimeoutError(f"{what}: not within {seconds:.0f} s{why}")


class Namespace:
    """One of the cluster's, under the restricted Pod Security Standard. Blocks; one thread."""

    def __init__(self, name: str) -> None:
        self.name = name

    def create(self) -> None:
        """Makes it."""
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name, "labels": labels}})

    def delete(self) -> None:
        """With all that is in it; waits until it is gone."""
        self.kubectl("delete", "namespace", self.name, "--ignore-not-found", "--timeout=180s", seconds=200)

    def kubectl(self, *arguments: str, text: str = "", seconds: float = _COMMAND_SECONDS) -> str:
        return run("kubectl", "--namespace", self.name, *arguments, text=text, seconds=seconds)

    def helm(self, *arguments: str, seconds: float = 600) -> str:
        return run("helm", "--namespace", self.name, *arguments, seconds=seconds)

    def apply(self, *objects: dict[str, Any]) -> None:
        """Makes objects, or changes them."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        self.kubectl("apply", "-f", "-", text=text)

    def objects(self, kind: str, **labels: str) -> list[dict[str, Any]]:
        """As the API has them. Labels are Keyhole's: component="client-proxy"."""
        selector = ",".join(f"{_LABELS.get(name, name)}={value}" for name, value in labels.items())
        chosen = ["--selector", selector] if selector else []
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, *chosen, "-o", "json"))["items"]
        return items

    def pods(self, component: str) -> list[dict[str, Any]]:
        """Those that are not about to go, and have not ended."""
        return [
            pod
            for pod in self.objects("pods", component=component)
            if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") in ("Pending", "Running")
        ]

    def ready(self, component: str) -> list[str]:
        """The names of those pods that are ready."""
        return [pod["metadata"]["name"] for pod in self.pods(component) if _is_ready(pod)]

    def execute(self, pod: str, *command: str, text: str = "", seconds: float = _COMMAND_SECONDS) -> str:
        """Runs it in the pod's first container."""
        return self.kubectl("exec", "-i", pod, "--", *command, text=text, seconds=seconds)

    def describe(self) -> str:
        """For a person, when something has failed: pods, events, the ends of logs."""
        parts = [self.kubectl("get", "pods", "-o", "wide"), self.kubectl("get", "events", "--sort-by=.lastTimestamp")]
        for pod in self.objects("pods"):
            name = pod["metadata"]["name"]
            try:
                parts.append(f"--- {name}\n" + self.kubectl("logs", name, "--all-containers", "--tail=25"))
            except CommandFailed as error:
                parts.append(f"--- {name}: {error}")
        return "\n".join(part[-6000:] for part in parts)


_LABELS = {"component": "app.kubernetes.io/component", "instance": "app.kubernetes.io/instance"}


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def load(images: Sequence[str], command: str) -> None:
    """Makes the cluster know images that Docker has; `command`: what to run with their names, one at a time."""
    for image in images:
        run(*command.split(), image, seconds=900)


def script(module: str) -> str:
    """The source of a module beside this one, to be run in a pod."""
    return Path(__file__).with_name(module).read_text()
