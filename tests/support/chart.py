"""The chart as Helm renders it, and what is in it: objects, and the pods that they lead to."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.support.needs import need

CHART = Path(__file__).resolve().parents[2] / "charts" / "keyhole"
SMALL = CHART / "ci" / "small.yaml"
SCENARIOS = sorted((CHART / "ci").glob("*-values.yaml"))
OPERATOR = "monitoring.coreos.com/v1"

Object = dict[str, Any]

JOB: Object = {
    "name": "temperature-monitor",
    "checkpoint": {"claim": {"size": "1Gi"}},
    "settings": {"topic": "readings", "thresholds_topic": "thresholds"},
}
"""A job with what must be given."""

KAFKA: Object = {"kafka": {"enabled": True}}


class Pod(NamedTuple):
    """What a pod is made of. `of`: kind/name of what makes it."""

    of: str
    metadata: Object
    spec: Object

    @property
    def containers(self) -> list[Object]:
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]


def helm() -> None:
    """Skips, or fails, where there is no Helm."""
    need("helm", "" if shutil.which("helm") else "there is no helm on PATH")


def run_helm(*arguments: str, seconds: int = 60) -> subprocess.CompletedProcess[str]:
    """Its outcome, whichever it is."""
    helm()
    return subprocess.run(["helm", *arguments], capture_output=True, text=True, timeout=seconds, check=False)


def render(
    *values: Object | Path, release: str = "keyhole", namespace: str = "data", api: Iterable[str] = ()
) -> list[Object]:
    """All objects, with several values on top of each other."""
    text = rendered_text(*values, release=release, namespace=namespace, api=api)
    return [of for of in yaml.safe_load_all(text) if of]


def rendered_text(*values: Object | Path, release: str, namespace: str, api: Iterable[str]) -> str:
    """The same as Helm writes it."""
    done = _template(values, release, namespace, api)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*values: Object | Path, release: str = "keyhole", api: Iterable[str] = ()) -> str:
    """What Helm says where it refuses values."""
    done = _template(values, release, "data", api)
    assert done.returncode != 0, "Helm takes these values"
    return done.stderr


def notes(*values: Object | Path) -> str:
    """What Helm prints after an install, made without a cluster: `helm install --dry-run` asks one.

    Helm's templates of objects are rendered by `helm template` and its notes are not, so a copy has them in an object.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "keyhole"
        shutil.copytree(CHART, copy)
        (copy / "templates" / "NOTES.txt").rename(copy / "notes.txt")
        text = '{{ tpl (.Files.Get "notes.txt") . | toJson }}'
        template = f"{{apiVersion: v1, kind: Notes, metadata: {{name: notes}}, text: {text}}}\n"
        (copy / "templates" / "as_object.yaml").write_text(template)
        done = _template(values, "keyhole", "data", (), chart=copy)
    assert done.returncode == 0, done.stderr
    return str(one([of for of in yaml.safe_load_all(done.stdout) if of], "Notes", "notes")["text"])


def _template(
    values: Iterable[Object | Path], release: str, namespace: str, api: Iterable[str], chart: Path = CHART
) -> subprocess.CompletedProcess[str]:
    # Kubernetes' version as of this chart's time: what a Helm without a cluster takes it for depends on its build.
    arguments = ["template", release, str(chart), "--namespace", namespace, "--kube-version", "1.34.0"]
    for version in api:
        arguments += ["--api-versions", version]
    return run_helm(*arguments, *given(values))


def given(values: Iterable[Object | Path]) -> list[str]:
    """Values as arguments of Helm's."""
    arguments: list[str] = []
    for one in values:
        if isinstance(one, Path):
            arguments += ["--values", str(one)]
        else:
            for name, value in one.items():
                arguments += ["--set-json", f"{name}={json.dumps(value)}"]
    return arguments


@functools.cache
def scenario(path: Path) -> tuple[Object, ...]:
    """The objects of a scenario of ci/."""
    return tuple(render(SMALL, path, api=[OPERATOR]))


def one(objects: Iterable[Object], kind: str, name: str) -> Object:
    """The object of the kind and name."""
    found = [of for of in objects if (of["kind"], of["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1, f"{len(found)} objects {kind}/{name}"
    return found[0]


def names(objects: Iterable[Object], kind: str) -> set[str]:
    """Of all objects of the kind."""
    return {of["metadata"]["name"] for of in objects if of["kind"] == kind}


def pods(objects: Iterable[Object]) -> Iterator[Pod]:
    """All pods that come of it, the executors that Spark makes of their template among them."""
    for of in objects:
        where = f"{of['kind']}/{of['metadata']['name']}"
        if of["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield Pod(where, of["spec"]["template"]["metadata"], of["spec"]["template"]["spec"])
        elif of["kind"] == "ConfigMap" and "executor-pod.yaml" in of["data"]:
            template = yaml.safe_load(of["data"]["executor-pod.yaml"])
            yield Pod(f"{where}/executor-pod.yaml", template["metadata"], template["spec"])


def pod(objects: Iterable[Object], of: str) -> Pod:
    """That of the Deployment, StatefulSet or Job, given as kind/name."""
    found = [one for one in pods(objects) if one.of == of]
    assert len(found) == 1, f"{len(found)} pods of {of}"
    return found[0]


def environment(container: Mapping[str, Any]) -> dict[str, str]:
    """The container's variables that have a value here."""
    return {item["name"]: item["value"] for item in container.get("env", ()) if "value" in item}


def spark_conf(objects: Iterable[Object], job: str = "keyhole-temperature-monitor") -> dict[str, str]:
    """What the driver reads as spark-defaults.conf."""
    lines = one(objects, "ConfigMap", f"{job}-spark")["data"]["spark-defaults.conf"].splitlines()
    return dict(line.split(" ", 1) for line in lines)
