"""A proxy before the state server."""

from __future__ import annotations

import functools
import os

from keyhole import logs
from keyhole.config import ClientProxyConfig
from keyhole.rpc.deployable import until_signal
from keyhole.rpc.server import run
from services.client_proxy.app import serve

if __name__ == "__main__":
    logs.configure()
    directory = os.environ["FUZZ_DIRECTORY"]
    config = ClientProxyConfig(
        servers=(f"127.0.0.1:{os.environ['FUZZ_SERVER']}",),
        port=int(os.environ["FUZZ_PROXY"]),
        http=f"127.0.0.1:{os.environ['FUZZ_HTTP']}",
        metrics=f"127.0.0.1:{os.environ['FUZZ_PROXY_METRICS']}",
        policy=f"{directory}/policy.toml",
        tokens=f"{directory}/tokens.toml",
        token_file=f"{directory}/proxy.token",
    )
    run(until_signal(functools.partial(serve, config)))
