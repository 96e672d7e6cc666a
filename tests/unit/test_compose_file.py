"""compose.yaml without Docker, by name: the schema of the Compose specification, and all that the file names.

The schema is tests/support/compose_spec.json: that of github.com/compose-spec/compose-spec, of June 2026 (Apache-2.0).
Whether it starts, and the images do what they should, is tests/containers.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from keyhole.config import ClientProxyConfig, KafkaConfig, MetricsExporterConfig, StateServerConfig, load
from keyhole.config.deployables import (
    DEFAULT_EXPORTER_PORT,
    DEFAULT_HTTP_PORT,
    DEFAULT_PROXY_PORT,
    DEFAULT_STATE_SERVER_PORT,
)

ROOT = Path(__file__).resolve().parents[2]
TEXT = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (ROOT / "compose.yaml").read_text())
FILE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, Any] = FILE["services"]
OURS: dict[str, Any] = {
    "kafka": KafkaConfig,
    "state-server": StateServerConfig,
    "client-proxy": ClientProxyConfig,
    "metrics-exporter": MetricsExporterConfig,
}
# Where each listens in its container.
PORTS = {
    "kafka": {9092, 9094},
    "state-server": {DEFAULT_STATE_SERVER_PORT},
    "client-proxy": {DEFAULT_PROXY_PORT, DEFAULT_HTTP_PORT},
    "metrics-exporter": {DEFAULT_EXPORTER_PORT},
    "prometheus": {9090},
    "grafana": {3000},
}


def test_the_file_is_one_of_compose() -> None:
    schema = json.loads((ROOT / "tests" / "support" / "compose_spec.json").read_text())
    Draft202012Validator.check_schema(schema)
    problems = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(FILE)]
    assert problems == []
    broken = {**FILE, "services": {"x": {"image": "x", "prots": []}}}
    assert not Draft202012Validator(schema).is_valid(broken)


@pytest.mark.parametrize("name", OURS)
def test_each_of_our_processes_takes_its_settings_and_is_built_by_its_target(name: str) -> None:
    service = SERVICES[name]
    load(OURS[name], service["environment"])
    targets = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert service["build"]["target"] == name
    assert name in targets
    assert service["image"].startswith(f"keyhole/{name}:")
    assert set(service["build"]["args"]) == {"BASE_IMAGE"}
    # Others reach it in its container, and say so as a person must.
    if name != "kafka":
        prefix = OURS[name].PREFIX
        assert service["environment"][f"{prefix}HOST"] == "0.0.0.0"
        assert service["environment"][f"{prefix}PLAINTEXT"] == "allow"


def test_every_address_is_that_of_a_service_and_a_port_it_listens_on() -> None:
    named = re.findall(r"\b([a-z][a-z-]*):(\d{4})\b", TEXT)
    assert {name for name, _ in named} == set(SERVICES) - {"grafana"}
    assert [(name, port) for name, port in named if int(port) not in PORTS[name]] == []
    for name, service in SERVICES.items():
        for shown in service.get("ports", []):
            host, outside, inside = shown.rsplit(":", 2)
            assert (host, outside) == ("127.0.0.1", inside)  # no other machine reaches it
            assert int(inside) in PORTS[name]
    # What Kafka tells clients on this machine to come back to is a port that is published.
    assert f"{SERVICES['kafka']['environment']['KEYHOLE_KAFKA_OUTSIDE']}:9094" in SERVICES["kafka"]["ports"]


def test_what_is_mounted_kept_and_waited_for_is_there_and_images_of_others_are_pinned() -> None:
    kept = set()
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            if isinstance(volume, dict):
                assert (ROOT / volume["source"]).exists()
                assert volume["read_only"]
            else:
                kept.add(volume.partition(":")[0])
        assert {one["source"] for one in service.get("configs", [])} <= set(FILE["configs"])
        assert set(service.get("depends_on", [])) <= set(SERVICES)
        if name not in OURS:
            assert re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", service["image"])
    assert kept == set(FILE["volumes"])


def test_a_server_has_the_time_to_drain() -> None:
    config = load(StateServerConfig, SERVICES["state-server"]["environment"])
    assert float(SERVICES["state-server"]["stop_grace_period"].removesuffix("s")) > config.drain_seconds


def test_grafana_is_given_the_dashboards_and_prometheus_as_their_source() -> None:
    (source,) = yaml.safe_load(FILE["configs"]["grafana-datasource"]["content"])["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)
    (provider,) = yaml.safe_load(FILE["configs"]["grafana-dashboards"]["content"])["providers"]
    mounted = {volume["target"] for volume in SERVICES["grafana"]["volumes"] if isinstance(volume, dict)}
    assert {provider["options"]["path"]} == mounted


def test_prometheus_takes_its_settings_and_the_alerts(tmp_path: Path) -> None:
    """By its own tool where that is there; else as YAML that names what is there."""
    content = FILE["configs"]["prometheus"]["content"]
    settings = yaml.safe_load(content)
    (mounted,) = [volume for volume in SERVICES["prometheus"]["volumes"] if isinstance(volume, dict)]
    assert settings["rule_files"] == [mounted["target"]]
    (scraped,) = settings["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": [f"metrics-exporter:{DEFAULT_EXPORTER_PORT}"]}]
    if (tool := shutil.which("promtool")) is not None:
        file = tmp_path / "prometheus.yml"
        file.write_text(content.replace(mounted["target"], str(ROOT / mounted["source"])))
        done = subprocess.run([tool, "check", "config", str(file)], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
