"""skaffold.yaml builds what the Dockerfile has, and sets what the chart has.

Skaffold itself and its schema are not on hand: the file is checked for its structure, and its values against the chart.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.support.chart import CHART, pods, render

ROOT = CHART.parents[1]
FILE = yaml.safe_load((ROOT / "skaffold.yaml").read_text())
[RELEASE] = FILE["deploy"]["helm"]["releases"]
TARGETS = {"state-server", "client-proxy", "metrics-exporter", "feed", "spark-job", "kafka"}


def profile(name: str) -> dict[str, Any]:
    """What a profile adds, by its path."""
    [found] = [one for one in FILE["profiles"] if one["name"] == name]
    return {patch["path"]: patch["value"] for patch in found["patches"]}


def test_its_form_is_skaffold_s() -> None:
    assert re.fullmatch(r"skaffold/v\d+(beta\d+)?", FILE["apiVersion"])
    assert FILE["kind"] == "Config"
    assert FILE.keys() == {"apiVersion", "kind", "metadata", "build", "deploy", "profiles"}
    assert FILE["build"].keys() == {"tagPolicy", "local", "artifacts"}
    assert RELEASE.keys() == {"name", "chartPath", "valuesFiles", "setValueTemplates"}
    assert all(one.keys() <= {"name", "activation", "patches"} for one in FILE["profiles"])


def test_there_is_an_image_for_each_target() -> None:
    artifacts = FILE["build"]["artifacts"]
    assert {of["docker"]["target"] for of in artifacts} == TARGETS
    assert all(of["image"] == f"keyhole/{of['docker']['target']}" for of in artifacts)


def test_each_image_that_is_built_is_the_one_that_is_installed() -> None:
    fields = {
        field: target.replace("-", "_")
        for target in TARGETS
        for field in [re.sub(r"-(.)", lambda m: m[1].upper(), target)]
    }
    expected = {
        f"images.{field}.{what}": f"{{{{.IMAGE_{variable}_keyhole_{target}}}}}"
        for field, target in fields.items()
        for what, variable in (("repository", "REPO"), ("tag", "TAG"))
    }
    assert RELEASE["setValueTemplates"] == expected
    values = dict.fromkeys((name for name in expected if name.endswith("tag")), "built")
    files = [ROOT / path for path in RELEASE["valuesFiles"]]
    images = {container.get("image", ":built") for of in pods(render(*files, values)) for container in of.containers}
    assert all(image.endswith(":built") for image in images)


@pytest.mark.parametrize("name", ["dev", "external-kafka", "debug"])
def test_each_profile_gives_values_that_the_chart_takes(name: str) -> None:
    values = profile(name).get("/deploy/helm/releases/0/setValues", {})
    objects = render(*(ROOT / path for path in RELEASE["valuesFiles"]), values)
    assert any(of["metadata"]["name"] == "keyhole-kafka" for of in objects) == (name != "external-kafka")


def test_the_readers_port_of_dev_is_a_service_s() -> None:
    [forward] = profile("dev")["/portForward"]
    objects = render(*(ROOT / path for path in RELEASE["valuesFiles"]))
    [service] = [of for of in objects if (of["kind"], of["metadata"]["name"]) == ("Service", forward["resourceName"])]
    assert forward["port"] in {port["port"] for port in service["spec"]["ports"]}
