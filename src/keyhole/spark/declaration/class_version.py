"""The version of a user's class that makes what is stored, and what becomes of that which an earlier one has stored.

    class Mean:
        version = 2
        def upgrade(self, accumulator, version): ...

docs/kinds-reference.md has the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from keyhole.encoding.envelope import MOST_CLASS_VERSION
from keyhole.errors import InvalidConfiguration, StateChanged
from keyhole.model.state import StateDescriptor


def version_of(of: object) -> int:
    """Of an aggregator, an operator or a codec."""
    version: int = getattr(of, "version", 1)
    return version


def version_problems(argument: str, of: object, *, upgrades: bool) -> Iterator[str]:
    """What is wrong with the version of a user's class.

    Args:
        upgrades: What it stores is given to it again, so of a later version than 1 it must have `upgrade`.
    """
    version, kind = version_of(of), type(of).__name__
    if type(version) is not int or not 1 <= version <= MOST_CLASS_VERSION:
        yield (
            f"{argument} ({kind}) has the version {version!r}; it must be a whole number from 1 to "
            f"{MOST_CLASS_VERSION}, which grows when what it stores changes"
        )
    elif upgrades and version > 1 and not callable(getattr(of, "upgrade", None)):
        yield (
            f"{argument} ({kind}) has version {version} and no upgrade(stored, version); give it one, which makes of "
            "what an earlier version has stored what this one would have. Or, in a state of another name, begin with "
            "version 1"
        )


def check_class(descriptor: StateDescriptor, of: object) -> None:
    """In a task: raises InvalidConfiguration where the worker has loaded another version of the class than the driver,
    as where the executors have another release of the job's package."""
    if version_of(of) != (declared := max(1, descriptor.class_version)):
        raise InvalidConfiguration(
            f"state {descriptor.state!r}: a Spark worker has version {version_of(of)} of {type(of).__name__}, and the "
            f"driver has version {declared}; give the executors the driver's code",
            state=descriptor.state,
        )


def upgrade_from(descriptor: StateDescriptor, of: Any, version: int) -> Callable[[Any, int], Any]:
    """What makes of something that an earlier version has stored, and of that version, what it is today.

    Raises:
        StateChanged: It is of a later version, by which the start should have been refused.
    """
    if version > version_of(of):
        raise StateChanged(
            f"state {descriptor.path} holds something of version {version} of its class, and "
            f"{type(of).__name__} has version {version_of(of)}; run the job with version {version} or a later one",
            state=descriptor.path,
            version=version,
        )
    upgrade: Callable[[Any, int], Any] = of.upgrade
    return upgrade
