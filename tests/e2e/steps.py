"""A step of a test: something is taken away, all is awaited to be whole again, and what readers noticed is checked."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.e2e import limits, report
from tests.e2e.kube import await_
from tests.e2e.release import PATIENCE, Platform


def disturbed(platform: Platform, what: str, disturb: Callable[[], object], whole: Callable[[], object]) -> None:
    """Disturbs, waits until it is whole again and the job goes on, and checks all that was read meanwhile.

    Args:
        what: The step, as limits.py names it.
    """
    begin = time.time()
    disturb()
    await_(whole, PATIENCE, f"whole again after: {what}")
    mended = time.time()
    platform.await_epochs()
    gaps = platform.gaps(begin)
    report.note(
        what,
        gap_seconds=gaps.longest_seconds,
        epoch_seconds=gaps.epoch_seconds,
        reads=gaps.reads,
        by=gaps.roles,
        errors=gaps.errors,
        said=gaps.said,
        whole_after_seconds=round(mended - begin, 1),
        next_epochs_after_seconds=round(time.time() - begin, 1),
    )
    assert gaps.wrong == ()
    assert gaps.reads > 0
    assert limits.surplus(what, gaps) == ()


def replaced(platform: Platform, component: str, count: int) -> tuple[Callable[[], object], Callable[[], bool]]:
    """Deletes the first pod of a component; whole again once `count` others, or as many, are ready without it."""
    victim = platform.space.ready(component)[0]
    uid = platform.space.kubectl("get", "pod", victim, "-o", "jsonpath={.metadata.uid}")

    def delete() -> None:
        platform.space.kubectl("delete", "pod", victim, "--wait=false")

    def whole() -> bool:
        pods = {pod["metadata"]["uid"] for pod in platform.space.pods(component)}
        return uid not in pods and len(platform.space.ready(component)) >= count

    return delete, whole
