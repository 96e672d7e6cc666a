"""The images, loaded once, and the release that the tests of this folder share."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.e2e import report
from tests.e2e.kube import Namespace, load
from tests.e2e.release import STORE_CLASS, Platform, storage_class
from tests.support import images, needs
from tests.support.chart import helm
from tests.support.cluster import cluster
from tests.support.go_client import image as built_go_client


@pytest.fixture(scope="session")
def tag() -> str:
    """Of all images: built, and known to the cluster."""
    needs.docker()
    cluster()
    helm()
    command = os.environ.get("KEYHOLE_E2E_LOAD", "")
    needs.need("cluster", "" if command else "KEYHOLE_E2E_LOAD does not say how it gets to know images")
    load([images.image(target) for target in images.TARGETS], command)
    return images.tag()


@pytest.fixture(scope="session")
def go_client(tag: str) -> str:
    """The image of the client in Go, which the cluster knows."""
    needs.go()
    image = built_go_client()
    load([image], os.environ["KEYHOLE_E2E_LOAD"])
    return image


@contextlib.contextmanager
def installed(
    tag: str,
    name: str,
    settings: Mapping[str, str],
    prepare: Callable[[Namespace], object] = lambda _: None,
    reader_secret: str = "",
) -> Iterator[Platform]:
    """A release in a namespace of its own, which has answered its first read; it goes again.

    Args:
        settings: Values of the chart, beside those of all.
        prepare, reader_secret: As of Platform.
    """
    # Each executor takes one, and a folder that one has had is not given to the next.
    claims = 8 if any(value == STORE_CLASS for value in settings.values()) else 0
    space = Namespace(f"keyhole-{name}-{os.getpid()}")
    made = Platform(
        space,
        tag,
        storage_class(),
        store_claims=claims,
        settings=dict(settings),
        prepare=prepare,
        reader_secret=reader_secret,
    )
    with removed(made):
        began = time.time()
        made.install()
        try:
            made.await_epochs(1)
        except TimeoutError:
            print(made.space.describe(), file=sys.stderr)
            raise
        first = next(line["at"] for line in made.lines() if line.get("found"))
        report.note("helm install to the first answer", release=name, seconds=round(first - began, 1))
        yield made


@contextlib.contextmanager
def removed(made: Platform) -> Iterator[None]:
    """It goes in the end, with all that is in its namespace; not where it is to be looked at."""
    try:
        yield
    finally:
        if not os.environ.get("KEYHOLE_E2E_KEEP"):
            made.remove()


@pytest.fixture(scope="module")
def platform(tag: str) -> Iterator[Platform]:
    """With two executors, two proxies and a replica."""
    with installed(tag, "platform", {}) as made:
        yield made
