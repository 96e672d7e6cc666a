"""`python -m tests.fault.state_server`: the state server, with the harness's hooks (tests/fault/hooks.py)."""

from __future__ import annotations

import dataclasses
import os
import sys

from keyhole.testing.kill_points import KillPoints
from services.state_server import __main__, app
from services.state_server.read import table
from services.state_server.read.indexed_scans import IndexRule
from services.state_server.read.scans import ScanLimits
from services.state_server.read.watch_parts import WatchLimits
from services.state_server.servicers import query as query_servicer
from services.state_server.servicers import watches
from tests.fault import fed_planted, hooks, planted

# So that the workload's scans have several pages, between which epochs may come.
_SMALL_PAGES = dataclasses.replace(ScanLimits(), page_entries=2)

# A key group has some rows: an index is asked however many of them it finds.
_ALL_BY_INDEX = IndexRule(one_in=1)

# And watches several messages, so that they are left within an epoch.
_FEW_CHANGES = WatchLimits(page_changes=3)

if __name__ == "__main__":
    watches.WatchLimits = lambda: _FEW_CHANGES  # type: ignore[attr-defined,assignment,misc]  # what it calls
    query_servicer.ScanLimits = lambda: _SMALL_PAGES  # type: ignore[assignment,misc]  # what it calls
    table.IndexRule = lambda: _ALL_BY_INDEX  # type: ignore[attr-defined,assignment,misc]  # what it calls
    if seconds := os.environ.get("FAULT_KAFKA_DEADLINE_SECONDS"):
        app._KAFKA_DEADLINE_SECONDS = float(seconds)
    hooks.watch_key_groups()
    planted.plant(os.environ.get("FAULT_PLANT", ""))
    fed_planted.plant_if_asked()
    sys.exit(__main__.main(os.environ, KillPoints.from_environ(os.environ), hooks.clock()))
