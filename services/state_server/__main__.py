"""`python -m services.state_server`: one state server, configured by KEYHOLE_STATE_SERVER_* (docs/configuration.md)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from keyhole import logs
from keyhole.config import StateServerConfig, load
from keyhole.errors import KeyholeError
from keyhole.rpc.server import run
from keyhole.steps import StepObserver
from services.state_server.app import serve


def main(environ: Mapping[str, str], observer: StepObserver | None = None) -> int:
    """Returns the process's exit code."""
    try:
        config = load(StateServerConfig, environ)
        logs.configure(config.log_level)
        run(serve(config, observer))
    except KeyholeError as error:
        print(f"state-server: {error.message}", file=sys.stderr)  # noqa: T201 - for a person, where logs may not be set up
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
