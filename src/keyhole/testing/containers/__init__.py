"""Keyhole's images on plain Docker, to test services that read states: docs/testing.md. Needs the extra `testing`."""

from keyhole.testing.containers.container import (
    ClientProxyContainer,
    KeyholeContainer,
    KeyholeKafka,
    StateServerContainer,
    image_of,
)
from keyhole.testing.containers.environment import KeyholeContainers
from keyhole.testing.writer import Writer

__all__ = [
    "ClientProxyContainer",
    "KeyholeContainer",
    "KeyholeContainers",
    "KeyholeKafka",
    "StateServerContainer",
    "Writer",
    "image_of",
]
