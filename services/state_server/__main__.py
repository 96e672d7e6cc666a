"""`python -m services.state_server`: one state server, configured by KEYHOLE_STATE_SERVER_* (docs/configuration.md)."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping

# Before keyhole.rpc, which turns gRPC's support of forks off: a server forks nothing, and without that support gRPC
# takes 34 MiB more for what it reads ahead of an epoch's rows.
import grpc  # noqa: F401

from keyhole.clock import Clock
from keyhole.config import StateServerConfig
from keyhole.protocol.failpoints import StepObserver
from keyhole.rpc.deployable import run_deployable
from services.state_server.app import serve


def main(environ: Mapping[str, str], observer: StepObserver | None = None, clock: Clock | None = None) -> int:
    """Returns the process's exit code."""
    run = functools.partial(serve, observer=observer, clock=clock)
    return run_deployable("state-server", StateServerConfig, run, environ)


if __name__ == "__main__":
    sys.exit(main(os.environ))
