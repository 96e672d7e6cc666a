"""A signal that comes while a deployable starts: it ends as well as one that comes later."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from keyhole.local.processes import Child
from tests.support.waiting import LONG_SECONDS

NOBODY = "127.0.0.1:1"
SETTINGS = {
    "state_server": {"ID": "early", "BOOTSTRAP_SERVERS": NOBODY},
    "client_proxy": {"SERVERS": NOBODY},
    "metrics_exporter": {"SERVERS": NOBODY},
}
SERVES = [
    ("state_server", "app", "serve", {}),
    ("client_proxy", "app", "serve", {}),
    ("client_proxy", "processes.parent", "serve_by_processes", {"PROCESSES": "2"}),
    ("metrics_exporter", "app", "serve", {}),
]
AT_ITS_START = """
import importlib, os, signal, sys

service, module, name, number = sys.argv[1:]
where = importlib.import_module(f"services.{service}.{module}")
serve = getattr(where, name)

async def signalled(*args, **kwargs):
    os.kill(os.getpid(), signal.Signals[number])
    await serve(*args, **kwargs)

setattr(where, name, signalled)
sys.exit(importlib.import_module(f"services.{service}.__main__").main(os.environ))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize(("service", "module", "name", "more"), SERVES, ids=[f"{of[0]}-{of[2]}" for of in SERVES])
def test_a_signal_at_the_start_ends_a_deployable_in_order(
    tmp_path: Path, service: str, module: str, name: str, more: dict[str, str], number: signal.Signals
) -> None:
    prefix = f"KEYHOLE_{service.upper()}_"
    own = {"PORT": "0", **SETTINGS[service], **more} | (
        {"DIRECTORY": str(tmp_path / "stores")} if service == "state_server" else {}
    )
    environ = {**os.environ, **{prefix + name: value for name, value in own.items()}}
    child = Child(
        service, [sys.executable, "-c", AT_ITS_START, service, module, name, number.name], tmp_path / "log", environ
    )
    try:
        assert child.wait(LONG_SECONDS) == 0, child.output()
        assert "Traceback" not in child.output()
    finally:
        child.kill()
