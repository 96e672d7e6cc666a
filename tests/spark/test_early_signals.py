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
AT_ITS_START = """
import importlib, os, signal, sys

main = importlib.import_module(f"services.{sys.argv[1]}.__main__")
serve = main.serve

async def signalled(*args, **kwargs):
    os.kill(os.getpid(), signal.Signals[sys.argv[2]])
    await serve(*args, **kwargs)

main.serve = signalled
sys.exit(main.main(os.environ))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("service", SETTINGS)
def test_a_signal_at_the_start_ends_a_deployable_in_order(tmp_path: Path, service: str, number: signal.Signals) -> None:
    prefix = f"KEYHOLE_{service.upper()}_"
    own = {"PORT": "0", **SETTINGS[service]} | (
        {"DIRECTORY": str(tmp_path / "stores")} if service == "state_server" else {}
    )
    environ = {**os.environ, **{prefix + name: value for name, value in own.items()}}
    child = Child(service, [sys.executable, "-c", AT_ITS_START, service, number.name], tmp_path / "log", environ)
    try:
        assert child.wait(LONG_SECONDS) == 0, child.output()
        assert "Traceback" not in child.output()
    finally:
        child.kill()
