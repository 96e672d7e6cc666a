"""What the episodes of the tests run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyhole.local.java import Java
from tests.fault.cluster import Machine


@pytest.fixture(scope="session")
def machine(jars: list[Path], java: Java) -> Machine:
    """Kafka's jars and the Java for them."""
    return Machine(jars, java)
