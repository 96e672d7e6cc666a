"""`python -m services.state_server`: one state server, configured by KEYHOLE_STATE_SERVER_* (docs/configuration.md)."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping

from keyhole.clock import Clock
from keyhole.config import StateServerConfig
from keyhole.rpc.deployable import run_deployable
from keyhole.steps import StepObserver
from services.state_server.app import serve


def main(environ: Mapping[str, str], observer: StepObserver | None = None, clock: Clock | None = None) -> int:
    """Returns the process's exit code."""
    run = functools.partial(serve, observer=observer, clock=clock)
    return run_deployable("state-server", StateServerConfig, run, environ)


if __name__ == "__main__":
    sys.exit(main(os.environ))
