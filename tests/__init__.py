"""The tests, and what runs them (tests/support); whoever imports any of it keeps what Python compiles."""

from __future__ import annotations

import os
import sys

# Images of Python often have it set: each process would then compile all that it imports, and rewrite all tests, anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
