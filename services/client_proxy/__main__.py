"""`python -m services.client_proxy`: one client proxy, configured by KEYHOLE_CLIENT_PROXY_* (docs/configuration.md)."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping

from keyhole.config import ClientProxyConfig
from keyhole.rpc.deployable import run_deployable
from keyhole.rpc.processes.cores import process_count


def main(environ: Mapping[str, str]) -> int:
    """Returns the process's exit code."""
    return run_deployable("client-proxy", ClientProxyConfig, _serve, environ)


async def _serve(config: ClientProxyConfig, stopping: asyncio.Event) -> None:
    count = process_count(config.processes)
    # Not at the top: a parent serves nothing, and needs none of what does.
    if count > 1:
        from services.client_proxy.processes.parent import serve_by_processes

        await serve_by_processes(config, count, stopping)
    else:
        from services.client_proxy.app import serve

        await serve(config, stopping)


if __name__ == "__main__":
    sys.exit(main(os.environ))
