"""A state server on a changelog in memory, with one key of one state."""

from __future__ import annotations

import asyncio
import os

from keyhole import logs
from keyhole.rpc.server import run
from keyhole.security.credentials import Credentials
from tests.support.state_servers import state_server
from tests.support.states import descriptor, row


async def main() -> None:
    directory, port = os.environ["FUZZ_DIRECTORY"], int(os.environ["FUZZ_SERVER"])
    settings = {
        "policy": f"{directory}/policy.toml",
        "tokens": f"{directory}/tokens.toml",
        "metrics": f"127.0.0.1:{os.environ['FUZZ_SERVER_METRICS']}",
        "lookups": f"127.0.0.1:{os.environ['FUZZ_LOOKUPS']}",
    }
    job = Credentials(tls=False, token_file=f"{directory}/job.token")
    async with state_server("a", security=settings, credentials=job, port=port) as server:
        await server.own(descriptor())
        await server.commit({"a": row(1.0)})
        await asyncio.Event().wait()


if __name__ == "__main__":
    logs.configure()
    run(main())
