"""Services as child processes of a program that runs anywhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keyhole.errors import MachineError
from keyhole.local.ports import free_ports
from keyhole.local.services import spawn_client_proxy, start_client_proxy
from tests.support.waiting import LONG_SECONDS


def test_a_folder_of_the_same_name_in_the_working_directory_is_not_taken_for_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = tmp_path / "services"
    foreign.mkdir()
    (foreign / "__init__.py").write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    (port,) = free_ports(1)
    proxy = spawn_client_proxy("proxy", port, servers=["127.0.0.1:1"], directory=tmp_path, environ=os.environ)
    try:
        proxy.wait_healthy(lambda: f"started client-proxy 127.0.0.1:{port}" in proxy.output(), LONG_SECONDS)
    finally:
        assert proxy.terminate() == 0


def test_a_service_that_does_not_come_up_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    environ = {**os.environ, "KEYHOLE_CLIENT_PROXY_LOG_LEVEL": "LOUD"}
    with pytest.raises(MachineError, match="KEYHOLE_CLIENT_PROXY_LOG_LEVEL is 'LOUD'"):
        start_client_proxy("proxy", 0, servers=["127.0.0.1:1"], directory=tmp_path, environ=environ)
