"""What an install brings: a client neither Spark nor Kafka; the wheel the services, the jobs and the protos."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(["uv", "build", "--wheel", "--quiet", "--out-dir", str(out), str(ROOT)], check=True)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_services_jobs_and_protos(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert names >= {
        "keyhole/__init__.py",
        "keyhole/py.typed",
        "keyhole/v1/query_pb2.py",
        "keyhole/local/jars.json",
        "keyhole/protos/keyhole/v1/query.proto",
        "services/state_server/__main__.py",
        "services/client_proxy/__main__.py",
        "jobs/temperature_monitor/__main__.py",
    }
    assert not [name for name in names if name.startswith("tests/")]


def test_a_client_install_brings_neither_spark_nor_kafka(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    python = environment / "bin" / "python"
    subprocess.run(["uv", "venv", "--quiet", str(environment)], check=True)
    subprocess.run(
        ["uv", "pip", "install", "--quiet", "--python", str(python), f"keyhole-spark[client] @ file://{wheel}"],
        check=True,
    )
    listed = subprocess.run(
        ["uv", "pip", "list", "--quiet", "--format", "json", "--python", str(python)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    installed = {package["name"] for package in json.loads(listed)}
    assert installed <= {"keyhole-spark", "msgspec", "grpcio", "protobuf", "typing-extensions"}
    told = subprocess.run(
        [str(python), "-c", "import keyhole; print(keyhole.AsyncClient.__name__, keyhole.Client.__name__)"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    ).stdout
    assert told.split() == ["AsyncClient", "Client"]
