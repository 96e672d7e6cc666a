"""What several unit tests begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.simulation import World
from tests.support.sums import SUM


@pytest.fixture
def world() -> Iterator[World]:
    """Two servers and a state of sums. Modules with other needs have a world of their own."""
    made = World(SUM, "ab")
    yield made
    made.close()
