"""The fuzzer, for some seconds; `python -m tests.fuzz` runs it for longer."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.attacks import ATTACKS
from tests.fuzz.http_attacks import HTTP_ATTACKS
from tests.fuzz.port_attacks import PORT_ATTACKS
from tests.fuzz.run import fuzz


async def test_garbage_on_the_ports_ends_nothing_and_good_lookups_go_on(tmp_path: Path) -> None:
    report = await fuzz(5, 1, tmp_path)
    assert not report["problems"]
    assert report["good_lookups"]
    assert report["good_requests"]
    assert set(report["sent"]) == {attack.__name__ for attack in (*ATTACKS, *HTTP_ATTACKS, *PORT_ATTACKS)}
