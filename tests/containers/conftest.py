"""The images, built once, and one set of containers that all tests share."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping

import pytest

from keyhole.testing.containers import KeyholeContainers
from tests.support import images, needs


@pytest.fixture(scope="session", autouse=True)
def _docker() -> None:
    needs.docker()
    # Testcontainers' reaper is an image that can't be had everywhere; what is started here is removed here.
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")


@pytest.fixture(scope="session")
def built(_docker: None) -> Mapping[str, str]:
    """By target: the image's name."""
    return {target: images.image(target) for target in ("kafka", "state-server", "client-proxy")}


@pytest.fixture
def application() -> str:
    """A name that no other test uses."""
    return f"app-{uuid.uuid4().hex[:10]}"


@pytest.fixture(scope="session")
def keyhole(built: Mapping[str, str]) -> Iterator[KeyholeContainers]:
    """Kafka, a state server and a proxy. A test uses an application of its own, and leaves them running."""
    # In memory: what a server has after its end can only be from Kafka.
    environ = {"state-server": {"KEYHOLE_STATE_SERVER_STORE": "memory"}}
    with KeyholeContainers(built, environ=environ) as containers:
        yield containers
