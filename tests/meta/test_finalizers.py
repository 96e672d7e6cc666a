"""Nothing in the product has a finalizer: it runs in any thread, in the middle of anything, with whatever lock is held.

A client that one closed waited for its event loop, which waited for gRPC's lock, which the finalizer's thread held.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FINALIZER = re.compile(r"\bweakref\.finalize\b|\bdef __del__\b|import finalize\b")


def test_there_is_no_finalizer() -> None:
    files = [file for folder in ("src", "services", "jobs") for file in (ROOT / folder).rglob("*.py")]
    assert files
    assert not [str(file.relative_to(ROOT)) for file in files if FINALIZER.search(file.read_text())]
