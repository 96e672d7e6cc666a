"""What each of several processes may take of the limits of them all. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Config = TypeVar("_Config", bound="DataclassInstance")


def divided(config: _Config, limits: Iterable[str], count: int) -> _Config:
    """The settings of one of `count` processes: of each of these limits its part, rounded up. 0 stays no limit."""
    return dataclasses.replace(config, **{name: math.ceil(getattr(config, name) / count) for name in limits})
