"""A client in another language, built from the protos, against the containers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from keyhole.testing.containers import KeyholeContainers
from tests.e2e.go import generate
from tests.support import go_client, needs

pytestmark = pytest.mark.timeout(600, func_only=True)

STATE = "sensors"


@pytest.fixture(scope="module")
def program() -> str:
    needs.go()
    return str(go_client.binary())


def asked(program: str, keyhole: KeyholeContainers, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [program, "-proxy", keyhole.proxy_address, "-timeout", "60s", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def answers(program: str, keyhole: KeyholeContainers, *arguments: str) -> list[Mapping[str, Any]]:
    done = asked(program, keyhole, *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("method", ["get", "lookup", "lookup-bytes"])
def test_it_reads_what_was_written_by_typed_keys_and_by_storage_keys(
    keyhole: KeyholeContainers, application: str, program: str, method: str
) -> None:
    rows = [{"sensor": f"sensor-{n}", "celsius": 20.5 + n, "place": None if n else "Zürich"} for n in range(3)]
    epoch = keyhole.write(application, STATE, rows, key="sensor")
    found = answers(
        program, keyhole, "-state", f"{application}/{STATE}", "-method", method, "sensor-0", "x", "sensor-2"
    )
    assert [one["found"] for one in found] == [True, False, True]
    assert [one["key"] for one in found] == [0, 1, 2]
    assert found[0]["value"] == {"celsius": 20.5, "place": "Zürich"}
    assert found[2]["value"] == {"celsius": 22.5, "place": None}
    assert {(one["epoch"], one["role"]) for one in found} == {(epoch, "owner")}


@pytest.mark.parametrize("method", ["get", "lookup", "lookup-bytes"])
def test_it_reads_an_entry_of_a_map_whose_keys_have_several_types(
    keyhole: KeyholeContainers, application: str, program: str, method: str
) -> None:
    keyhole.write(
        application, "hourly", [{"sensor": 7, "outside": True, "hour": -1, "mean": 1.5}],
        key=("sensor", "outside"), map_key="hour",
    )  # fmt: skip
    (one,) = answers(program, keyhole, "-state", f"{application}/hourly", "-method", method, "7,true,-1")
    assert one["value"] == {"mean": 1.5}


def test_it_tells_keyholes_own_reason_of_a_refusal(keyhole: KeyholeContainers, application: str, program: str) -> None:
    keyhole.write(application, STATE, [{"sensor": 1, "celsius": 20.5}], key="sensor")
    done = asked(program, keyhole, "-state", f"{application}/absent", "1")
    assert done.returncode == 1
    assert done.stderr.startswith("UNKNOWN_STATE: ")
    wrong = asked(program, keyhole, "-state", f"{application}/{STATE}", "one")
    assert "key column sensor is of type KEY_TYPE_BIGINT" in wrong.stderr


def test_keys_are_hashed_and_encoded_as_spark_and_the_library_do(program: str) -> None:
    done = subprocess.run(
        ["go", "test", "-count=1", "./..."],
        cwd=go_client.SOURCES,
        env={**os.environ, "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_generated_code_is_that_of_the_protos(program: str, tmp_path: Path) -> None:
    generate.generate(tmp_path)
    made = {path.name: path.read_text() for path in (tmp_path / "keyholev1").iterdir()}
    assert made == {path.name: path.read_text() for path in (go_client.SOURCES / "keyholev1").iterdir()}
