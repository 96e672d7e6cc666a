"""`python -m tests.fault.state_server`: the state server, with the harness's hooks (tests/fault/hooks.py)."""

from __future__ import annotations

import os
import sys

from keyhole.testing.kill_points import KillPoints
from services.state_server import __main__, app
from tests.fault import hooks, planted

if __name__ == "__main__":
    app.SystemClock = hooks.clock  # type: ignore[assignment,attr-defined]  # what `build` calls
    planted.plant(os.environ.get("FAULT_PLANT", ""))
    sys.exit(__main__.main(os.environ, KillPoints.from_environ(os.environ)))
