"""What an install brings: a client neither Spark nor Kafka; the wheel the services, the jobs and the protos."""

from __future__ import annotations

import asyncio
import json
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.proxies import fake_servers
from tests.support.readings import APPLICATION, STATE, descriptor, rows
from tests.support.waiting import LONG_SECONDS

ROOT = Path(__file__).resolve().parents[2]
CLIENT = {"keyhole-spark", "msgspec", "grpcio", "protobuf", "typing-extensions"}


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
        "services/client_proxy/console/static/index.html",
        "services/client_proxy/console/static/console.js",
        "jobs/temperature_monitor/__main__.py",
    }
    assert not [name for name in names if name.startswith(("tests/", "services/client_proxy/console/web/"))]


def test_the_wheel_holds_the_template_of_new_projects(wheel: Path) -> None:
    template = ROOT / "src/keyhole/cli/project/template"
    files = {path.relative_to(ROOT / "src").as_posix() for path in template.rglob("*.in")}
    assert len(files) == 7
    assert set(zipfile.ZipFile(wheel).namelist()) >= files


def test_the_wheel_holds_the_suite_that_stores_of_others_are_tested_by(wheel: Path) -> None:
    suite = {f"keyhole/testing/stores/{path.name}" for path in (ROOT / "src/keyhole/testing/stores").glob("*.py")}
    assert {Path(name).stem for name in suite} >= {"contract", "machine", "lifetimes"}
    assert set(zipfile.ZipFile(wheel).namelist()) >= suite


@dataclass(frozen=True)
class Environment:
    """An environment with nothing but one extra of the wheel."""

    directory: Path

    @classmethod
    def of(cls, directory: Path, wheel: Path, extra: str) -> Environment:
        made = cls(directory / "venv")
        subprocess.run(["uv", "venv", "--quiet", str(made.directory)], check=True)
        requirement = f"keyhole-spark[{extra}] @ {wheel.as_uri()}"
        subprocess.run(["uv", "pip", "install", "--quiet", *made.python, requirement], check=True)
        return made

    @property
    def python(self) -> list[str]:
        return ["--python", str(self.directory / "bin" / "python")]

    def packages(self) -> set[str]:
        listed = subprocess.run(
            ["uv", "pip", "list", "--quiet", "--format", "json", *self.python], check=True, capture_output=True
        ).stdout
        return {package["name"] for package in json.loads(listed)}

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Far from the checkout, whose packages must not be found."""
        command = [str(self.directory / "bin" / program), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=self.directory, check=False, timeout=5 * LONG_SECONDS
        )


def test_a_client_install_brings_neither_spark_nor_kafka(wheel: Path, tmp_path: Path) -> None:
    environment = Environment.of(tmp_path, wheel, "client")
    assert environment.packages() <= CLIENT
    done = environment.run(
        "python", "-c", "import keyhole; print(keyhole.AsyncClient.__name__, keyhole.Client.__name__)"
    )
    assert done.stdout.split() == ["AsyncClient", "Client"], done.stderr
    lacking = environment.run("keyhole", "states")
    assert (lacking.returncode, lacking.stdout) == (1, "")
    assert lacking.stderr.startswith("keyhole: keyhole states needs rich: install keyhole-spark[cli] (from a clone or")
    assert lacking.stderr.count("\n") == 1
    made = environment.run("keyhole", "new", "shop")
    assert made.returncode == 0, made.stderr
    # The wheel is where it was installed from.
    assert f'"keyhole-spark[demo] @ {wheel.as_uri()}"' in (environment.directory / "shop/pyproject.toml").read_text()


async def test_the_extra_cli_is_enough_to_ask_a_proxy(wheel: Path, tmp_path: Path) -> None:
    environment = await asyncio.to_thread(Environment.of, tmp_path, wheel, "cli")
    assert environment.packages() <= CLIENT | {"rich", "markdown-it-py", "mdurl", "pygments", "shtab"}
    path = f"{APPLICATION}/{STATE}"
    async with fake_servers("server-a") as (server,):
        server.host(descriptor(), rows(10))
        asked = ("--json", "--proxy", server.address)
        listed = await asyncio.to_thread(environment.run, "keyhole", "states", *asked)
        found = await asyncio.to_thread(environment.run, "keyhole", "get", path, "sensor-1", *asked)
    assert json.loads(listed.stdout)[0]["state"] == path, listed.stderr
    assert json.loads(found.stdout)[0]["value"] == {"celsius": 1.0, "count": 1}, found.stderr
    for command in ("state-server", "client-proxy", "demo"):
        lacking = await asyncio.to_thread(environment.run, "keyhole", command)
        assert lacking.returncode == 1
        assert "install keyhole-spark[" in lacking.stderr
        assert "Traceback" not in lacking.stderr
