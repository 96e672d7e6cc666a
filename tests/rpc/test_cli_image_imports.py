"""The image `cli`: its commands run with what uv.lock puts into it, and nothing else that is installed here."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import re
import sys
import tomllib
from pathlib import Path

from packaging.utils import canonicalize_name

from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import APPLICATION, STATE, descriptor, rows

ROOT = Path(__file__).resolve().parents[2]
PATH = f"{APPLICATION}/{STATE}"
RUNBOOK = ("status", "states", f"describe {PATH}", f"get {PATH} sensor-3", f"explain {PATH} sensor-3", "top --count 1")
# Kafka is not there: they end with that, behind all that they import.
OF_KAFKA = (
    "doctor --proxy PROXY",
    f"verify {PATH} --proxy PROXY",
    "drop a b --proxy PROXY",
    f"savepoint create {APPLICATION} --to FOLDER",
)
# All that the commands may come to import, also where the run here ends before.
PACKAGES = (
    "keyhole.verify",
    "keyhole.savepoint",
    "keyhole.changelog.kafka",
    "keyhole.stores.lmdb",
    "keyhole.discovery",
)

_SCRIPT = """
import contextlib, importlib, io, json, pkgutil, sys

wanted = json.load(sys.stdin)
hidden = set(wanted["hidden"])

class Without:
    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self._finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
from keyhole.cli.main import main

told = {}
for command in wanted["commands"]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = main(command.split())
        except SystemExit as end:
            code = end.code
    told[command] = [code, out.getvalue() + err.getvalue()]
for package in map(importlib.import_module, wanted["packages"]):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
json.dump(told, sys.stdout)
"""


def _locked(extras: set[str]) -> set[str]:
    """The packages that uv installs for the project with these extras, and nothing else."""
    lock = {of["name"]: of for of in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    found: set[tuple[str, str]] = set()
    waiting = [("keyhole-spark", ""), *(("keyhole-spark", extra) for extra in extras)]
    while waiting:
        if (of := waiting.pop()) in found:
            continue
        found.add(of)
        name, extra = of
        package = lock[name]
        needs = package.get("optional-dependencies", {}).get(extra, []) if extra else package.get("dependencies", [])
        for need in needs:
            waiting += [(need["name"], ""), *((need["name"], more) for more in need.get("extra", ()))]
    return {name for name, _ in found}


async def test_the_commands_of_the_runbooks_import_nothing_that_the_image_lacks(tmp_path: Path) -> None:
    stage = (ROOT / "Dockerfile").read_text().partition(" AS build-cli\n")[2].partition("\nFROM ")[0]
    installed = _locked(set(re.findall(r"--extra (\w+)", stage)))
    assert not {"pyspark", "rocksdict", "pytest"} & installed
    hidden = [
        module
        for module, distributions in importlib.metadata.packages_distributions().items()
        if not {canonicalize_name(name) for name in distributions} & installed
    ]
    assert "pyspark" in hidden
    async with fake_servers("server-1") as (server,), proxy_of(server.address) as proxy:
        server.host(descriptor(), rows(10))
        commands = [f"{command} --proxy {proxy.address}" for command in RUNBOOK]
        nowhere = "--bootstrap-servers 127.0.0.1:1 --timeout 0.5"
        of_kafka = [f"{command} {nowhere}" for command in OF_KAFKA]
        of_kafka = [
            command.replace("FOLDER", str(tmp_path / "savepoint")).replace("PROXY", proxy.address)
            for command in of_kafka
        ]
        wanted = {"hidden": hidden, "commands": [*commands, *of_kafka], "packages": PACKAGES}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _SCRIPT, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate(json.dumps(wanted).encode())
    assert process.returncode == 0
    results = json.loads(out)
    assert {command: results[command] for command in commands if results[command][0] != 0} == {}
    for command in of_kafka:
        code, said = results[command]
        assert code == 1
        assert "127.0.0.1:1" in said, said
        assert not re.search(r"No module named|needs .*: install", said), said
