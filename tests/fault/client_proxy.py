"""`python -m tests.fault.client_proxy`: the client proxy, with a bug that is planted, if one is (FAULT_PLANT)."""

from __future__ import annotations

import os
import sys

from services.client_proxy import __main__
from tests.fault import planted_proxy

if __name__ == "__main__":
    planted_proxy.plant(os.environ.get("FAULT_PLANT", ""))
    sys.exit(__main__.main(os.environ))
