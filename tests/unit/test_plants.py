"""The bugs that fault episodes plant find what they change: an episode takes minutes to say that one doesn't."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["tests.fault.planted", "tests.fault.planted_driver", "tests.fault.planted_proxy"])
def test_every_bug_can_be_planted(module: str) -> None:
    """In a process of its own: nothing takes them out again."""
    program = f"from {module} import PLANTS, plant; assert PLANTS; plant(','.join(PLANTS))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
