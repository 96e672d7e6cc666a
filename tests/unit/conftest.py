"""What several unit tests begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keyhole.coordinator import run
from tests.support.simulation import World
from tests.support.sums import SUM


@pytest.fixture
def nobody_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated driver tries again at once."""
    monkeypatch.setattr(run, "_RETRY_SECONDS", 0.0)


@pytest.fixture
def world(nobody_sleeps: None) -> Iterator[World]:
    """Two servers and a state of sums. Modules with other needs have a world of their own."""
    made = World(SUM, "ab")
    yield made
    made.close()
