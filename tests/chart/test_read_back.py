"""What `helm test` runs, as the script that it is, without a cluster."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from tests.support.promql import CHART
from tests.support.proxies import fake_servers, proxy_of
from tests.support.readings import APPLICATION, STATE, descriptor, rows


async def asked(proxy: str, *jobs: dict[str, str]) -> str:
    """What it says; it must end well."""
    environ = {"PROXY": proxy, "BOOTSTRAP_SERVERS": "nobody:1", "TIMEOUT_SECONDS": "30", "JOBS": json.dumps(jobs)}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(CHART / "files" / "read_back.py"),
        env=os.environ | environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return said.decode()


async def test_a_job_that_writes_no_record_is_looked_for() -> None:
    async with fake_servers("server-1") as (server,), proxy_of(server.address) as proxy:
        server.host(descriptor(), rows(1))
        assert await asked(proxy.address, {"application": APPLICATION, "topic": ""}) == f"{APPLICATION}: {STATE}\n"


async def test_without_jobs_the_proxy_must_answer() -> None:
    async with fake_servers("server-1") as (server,), proxy_of(server.address) as proxy:
        assert "the proxy answers" in await asked(proxy.address)
