"""A state server that stops at a chosen step: `python -m tests.support.killable_state_server`, with KILL_* set."""

from __future__ import annotations

import os
import sys

from keyhole.testing.kill_points import KillPoints
from services.state_server.__main__ import main

if __name__ == "__main__":
    sys.exit(main(os.environ, KillPoints.from_environ(os.environ)))
