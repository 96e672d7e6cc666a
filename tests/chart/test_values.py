"""Values, their schema and the README say the same; what is unknown is refused."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.chart import CHART, KAFKA, SCENARIOS, SMALL, environment, pod, refused, render, run_helm, scenario
from tests.support.of_all import of_all

ROOT = CHART.parents[1]
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())

_spec = importlib.util.spec_from_file_location("generate_readme", CHART.parent / "generate_readme.py")
assert _spec is not None
assert _spec.loader is not None
generate_readme = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate_readme)


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    return SCHEMA["$defs"][reference.rpartition("/")[2]] if reference else schema


def _objects(schema: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    schema = _resolved(schema)
    found = [(path, schema)] if schema.get("type") == "object" else []
    for name, below in schema.get("properties", {}).items():
        found += _objects(below, f"{path}.{name}")
    if "items" in schema:
        found += _objects(schema["items"], f"{path}[]")
    return found


def test_the_readme_is_made_of_the_values() -> None:
    readme = (CHART / "README.md").read_text()
    assert readme == generate_readme.generated(readme, (CHART / "values.yaml").read_text()), (
        "run python charts/generate_readme.py"
    )


def test_the_readme_has_every_setting() -> None:
    def leaves(value: object, path: tuple[str, ...] = ()) -> list[str]:
        if isinstance(value, dict) and value:
            return [leaf for name, below in value.items() for leaf in leaves(below, (*path, name))]
        return [".".join(path)]

    listed = {
        ".".join(of.path)
        for of in generate_readme.settings((CHART / "values.yaml").read_text())
        if of.default is not None
    }
    missing = [
        leaf for leaf in leaves(VALUES) if not any(leaf == name or leaf.startswith(f"{name}.") for name in listed)
    ]
    assert not missing


@of_all(_objects(SCHEMA), lambda case: case[0])
def test_no_object_of_the_schema_takes_what_it_does_not_know(path: str, schema: dict[str, Any]) -> None:
    """But for what is Kubernetes' own, and maps of labels and the like, which say what their values are."""
    if "properties" in schema:
        assert schema["additionalProperties"] is False
    else:
        kubernetes_own = (
            "affinity",
            "tolerations[]",
            "topologySpreadConstraints[]",
            "clients[]",
            "monitoring[]",
            "global",
        )
        assert "additionalProperties" in schema or path.endswith(kubernetes_own)


def test_the_schema_and_the_values_have_the_same_settings() -> None:
    def compare(schema: dict[str, Any], values: dict[str, Any], path: str) -> list[str]:
        known = _resolved(schema).get("properties")
        if known is None:
            return []
        # What an earlier chart had is known, so that a template refuses it in words.
        taken = {name for name in known if name != "global" and not known[name].get("deprecated")}
        different = [f"{path}{name}" for name in taken ^ values.keys()]
        for name in known.keys() & values.keys():
            if isinstance(values[name], dict) and not (_resolved(known[name]).get("properties", {}).keys() >= {"cpu"}):
                different += compare(known[name], values[name], f"{path}{name}.")
        return different

    shown = [name for name in compare(SCHEMA, VALUES, "") if not re.search(r"resources\.(requests|limits)", name)]
    assert not shown


@pytest.mark.parametrize(
    "wrong",
    [
        {"proxies": 3},
        {"clientProxy.replica": 3},
        {"image.tags": "1"},
        {"jobDefaults.executor": {}},
        {"jobs": [{"name": "a", "checkpoint": {"claim": {"size": "1Gi"}}, "executors": {"instance": 1}}]},
        {"replica.store.disk": "1Gi"},
        {"monitoring.monitors.label": {}},
        {"clientProxy.resources.requests.gpu": 1},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_an_unknown_setting_is_refused_by_its_name(wrong: dict[str, object]) -> None:
    said = refused(KAFKA, wrong)
    assert "additional properties" in said
    unknown = {"jobs": "instance"}.get(next(iter(wrong)), next(iter(wrong)).rpartition(".")[2])
    assert f"'{unknown}'" in said


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"image.tag": "latest"}, "/image/tag"),
        ({"images.clientProxy.tag": "latest"}, "/images/clientProxy/tag"),
        ({"clientProxy.logLevel": "LOUD"}, "/clientProxy/logLevel"),
        ({"kafka.bootstrapServers": "kafka"}, "/kafka/bootstrapServers"),
        ({"jobs": [{"checkpoint": {}}]}, "name"),
        ({"jobs": [{"name": "Temperature_Monitor"}]}, "/jobs/0/name"),
        ({"jobDefaults.settings": {"TOPIC": "readings"}}, "'TOPIC' does not match"),
        ({"discovery.kind": "consul"}, "/discovery/kind"),
        ({"jobDefaults.driver.memory": "1Gi"}, "/jobDefaults/driver/memory"),
        # The claim is mounted by driver and executors.
        (
            {"jobDefaults.checkpoint.claim.accessModes": ["ReadWriteOncePod"]},
            "/jobDefaults/checkpoint/claim/accessModes/0",
        ),
        (
            {"jobs": [{"name": "a", "checkpoint": {"claim": {"size": "1Gi", "accessModes": ["ReadWriteOncePod"]}}}]},
            "/jobs/0/checkpoint/claim/accessModes/0",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_value_of_the_wrong_form_is_refused_by_its_place(wrong: dict[str, object], says: str) -> None:
    assert says in refused(wrong)


def test_seconds_that_helm_takes_for_text_are_taken() -> None:
    """`--set` makes a text of what has a point in it."""
    values = {"clientProxy.hopTimeoutSeconds": "0.2", "stateServers": {"enabled": True, "drainSeconds": "2.5"}}
    objects = render(KAFKA, values)
    assert (
        environment(pod(objects, "Deployment/keyhole-client-proxy").containers[0])[
            "KEYHOLE_CLIENT_PROXY_HOP_TIMEOUT_SECONDS"
        ]
        == "0.2"
    )
    assert pod(objects, "StatefulSet/keyhole-state-server").spec["terminationGracePeriodSeconds"] == 23
    for wrong in ("fast", "-1", "", "1s"):
        assert "/clientProxy/hopTimeoutSeconds" in refused(KAFKA, {"clientProxy.hopTimeoutSeconds": wrong})


def test_helm_lint_finds_nothing() -> None:
    for path in SCENARIOS:
        if path.name == "monitoring-values.yaml":
            continue  # lint has no way to say that the operator is there
        done = run_helm(
            "lint",
            str(CHART),
            "--strict",
            "--quiet",
            "--kube-version",
            "1.34.0",
            "--values",
            str(SMALL),
            "--values",
            str(path),
        )
        assert done.returncode == 0, f"{path.name}: {done.stdout}{done.stderr}"


def test_the_chart_is_of_the_version_that_the_images_are() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_object_of_a_scenario_says_whose_it_is(path: Path) -> None:
    for of in scenario(path):
        labels = of["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "keyhole"
        assert labels["app.kubernetes.io/instance"] == "keyhole"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"


def test_every_template_is_in_the_folder_of_a_component() -> None:
    shared = {path.name for path in (CHART / "templates").iterdir() if path.is_file()}
    assert all(name.startswith("_") for name in shared - {"NOTES.txt", "validate.yaml"})


def test_numbers_are_written_as_they_stand() -> None:
    objects = [
        of
        for of in scenario(CHART / "ci" / "job-values.yaml")
        if of["kind"] == "ConfigMap" and of["metadata"]["name"].endswith("-spark")
    ]
    assert objects
    assert "e+" not in json.dumps(objects)
