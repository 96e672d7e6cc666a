"""What of a process's logs is told, by whom and at which level."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from keyhole import logs


@pytest.fixture(autouse=True)
def _levels() -> Iterator[None]:
    """All as it was before, afterwards."""
    loggers = [logging.getLogger(name) for name in ("", "keyhole", "services", "jobs", "py4j")]
    before = [(one, one.level, list(one.handlers)) for one in loggers]
    yield
    for one, level, handlers in before:
        one.setLevel(level)
        one.handlers[:] = handlers


@pytest.mark.parametrize(
    ("level", "ours", "libraries", "py4j"),
    [
        ("DEBUG", logging.DEBUG, logging.INFO, logging.WARNING),
        ("INFO", logging.INFO, logging.INFO, logging.WARNING),
        ("ERROR", logging.ERROR, logging.ERROR, logging.ERROR),
    ],
)
def test_libraries_tell_no_more_than_infos_and_py4j_no_line_per_batch(
    level: str, ours: int, libraries: int, py4j: int
) -> None:
    logs.configure(level)
    levels = [logging.getLogger(name).getEffectiveLevel() for name in ("keyhole.x", "aiohttp.y", "py4j.clientserver")]
    assert levels == [ours, libraries, py4j]
