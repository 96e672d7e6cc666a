"""Oxygen saturation over a piece of its samples. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

HIGHEST_PERCENT = 100.0


class Saturation(NamedTuple):
    """What a piece of the signal says; None: it has no sample that a body can have.

    Attributes:
        mean: Percent; of the samples that count.
        lowest: Percent, likewise.
        samples: How many count.
    """

    mean: float | None
    lowest: float | None
    samples: int


def saturation(percent: npt.NDArray[np.float64]) -> Saturation:
    """Of the samples above 0 and up to HIGHEST_PERCENT: a monitor whose sensor is off the finger sends others."""
    counted = percent[(percent > 0) & (percent <= HIGHEST_PERCENT)]
    if not len(counted):
        return Saturation(None, None, 0)
    return Saturation(float(counted.mean()), float(counted.min()), len(counted))
