"""`python -m services.client_proxy`: one client proxy, configured by KEYHOLE_CLIENT_PROXY_* (docs/configuration.md)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from keyhole.config import ClientProxyConfig
from keyhole.rpc.deployable import run_deployable
from services.client_proxy.app import serve


def main(environ: Mapping[str, str]) -> int:
    """Returns the process's exit code."""
    return run_deployable("client-proxy", ClientProxyConfig, serve, environ)


if __name__ == "__main__":
    sys.exit(main(os.environ))
