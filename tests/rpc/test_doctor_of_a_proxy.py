"""`keyhole doctor` as a person runs it, against a proxy with fake servers behind it; without Kafka."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from keyhole.cli.doctor import examination
from keyhole.cli.main import main
from tests.support.proxies import fake_servers, proxy_of, unused_address
from tests.support.readings import APPLICATION, STATE, descriptor
from tests.support.waiting import LONG_SECONDS

ABOUT = f"state {APPLICATION}/{STATE}"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No `keyhole up` is here, nor anything for jobs: what the machine has is not what is tested."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KEYHOLE_JOB_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setattr(examination, "machine_findings", lambda environ: [])


async def test_the_doctor_says_of_all_that_it_looks_at_how_it_is_and_ends_with_1_for_a_fault(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def run(target: str, *options: str) -> tuple[int, dict[str, Any]]:
        given = ["doctor", "--proxy", target, "--json", "--timeout", str(LONG_SECONDS), *options]
        code = await asyncio.to_thread(main, given)
        return code, json.loads(capsys.readouterr().out)

    def of(report: dict[str, Any], about: str) -> dict[str, Any]:
        (found,) = [one for one in report["findings"] if one["about"] == about]
        return found

    async with fake_servers("a", "b") as (a, b), proxy_of(a.address, b.address, timeout_seconds=2) as proxy:
        a.host(descriptor(), key_groups=range(10))
        b.host(descriptor(), key_groups=range(10, 16))
        code, report = await run(proxy.address)
        assert (code, report["worst"]) == (0, "skipped"), report
        assert [one["about"] for one in report["findings"]] == [
            f"proxy {proxy.address}",
            *[f"server {server.server}" for server in sorted((a, b), key=lambda of: of.address)],
            "versions",
            "clocks",
            ABOUT,
            "Kafka",
            *[f"way to {address}" for address in sorted((a.address, b.address))],
        ]
        assert of(report, "Kafka")["todo"] == "give --bootstrap-servers, or set KEYHOLE_JOB_BOOTSTRAP_SERVERS"

        a.clock_ahead_ms, b.version = 30_000, "0.0.1"
        code, report = await run(proxy.address)
        assert (code, report["worst"]) == (0, "warning")
        assert "0.0.1: server b" in of(report, "versions")["says"]
        assert (await run(proxy.address, "--strict"))[0] == 1

        await b.stop()
        async with asyncio.timeout(LONG_SECONDS):
            while (await run(proxy.address))[1]["worst"] != "fault":
                pass
        code, report = await run(proxy.address)
        assert code == 1
        lost = next(one for one in report["findings"] if b.address in one["says"])
        assert lost["level"] == "fault"
        assert any(
            "have no owner: nothing is written" in one["says"] for one in report["findings"] if one["about"] == ABOUT
        )

        code = await asyncio.to_thread(main, ["doctor", "--proxy", proxy.address])
        lines = capsys.readouterr().out.splitlines()
        assert code == 1
        assert lines[0].startswith(f"ok       proxy {proxy.address}: answers")
        assert [line for line in lines if line.startswith("         -> start the job that writes query main")]

    with unused_address() as address:
        code, report = await run(address, "--timeout", "5")
        assert (code, report["findings"][0]["level"]) == (1, "fault")
        assert "`keyhole up` starts one on this machine" in report["findings"][0]["todo"]
