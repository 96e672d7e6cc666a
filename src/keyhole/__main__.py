"""`python -m keyhole`: the command `keyhole`."""

from __future__ import annotations

import sys

from keyhole.cli.main import main

sys.exit(main())
