"""Heart rate and breathing rate of a pulse wave. Pure.

The beats are found the way HeartPy finds them (van Gent et al., 2019, doi:10.1016/j.trf.2019.09.015). A beat is the top
of a stretch above a moving average, raised so far that the beats come as regularly as they can at a plausible rate.
Breathing makes the heart beat faster and slower in turn: its rate is the strongest frequency in the beats' intervals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Beats per minute.
LOWEST_RATE, HIGHEST_RATE = 40.0, 180.0
# Breaths per minute: HeartPy's 0.1 to 0.4 Hz. At the lower end blood pressure waves are mistaken for breaths.
LOWEST_BREATHS, HIGHEST_BREATHS = 6.0, 24.0
# Of a shorter piece nothing is said: too few beats, too few breaths.
SHORTEST_SECONDS, SHORTEST_BREATHING_SECONDS = 5.0, 30.0

_AVERAGE_SECONDS = 0.75
# How far the moving average is raised, in parts of how high the wave rises above it.
_RAISED = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
_FEWEST_INTERVALS = 3
_ODD = 0.3  # an interval that differs from the median by more is no interval between two neighbouring beats
_FEWEST_REGULAR = 0.8  # a wave with more odd intervals is noise
_INTERVALS_HZ = 4.0


class Vitals(NamedTuple):
    """What a piece of pulse wave says; None: it says nothing.

    Attributes:
        heart_rate: Beats per minute.
        breathing_rate: Breaths per minute.
        beats: How many were found.
    """

    heart_rate: float | None
    breathing_rate: float | None
    beats: int


def vitals(volts: Floats, rate_hz: float) -> Vitals:
    """The rates over a piece without gaps.

    Args:
        volts: The wave, whatever its unit; up is more blood.
        rate_hz: Its samples per second.
    """
    found = beats(volts, rate_hz) if len(volts) >= SHORTEST_SECONDS * rate_hz else np.empty(0)
    intervals = np.diff(found)
    if len(intervals) < _FEWEST_INTERVALS:
        return Vitals(None, None, len(found))
    median = np.median(intervals)
    regular = np.abs(intervals - median) <= _ODD * median
    if regular.mean() < _FEWEST_REGULAR:
        return Vitals(None, None, len(found))
    breathes = len(volts) >= SHORTEST_BREATHING_SECONDS * rate_hz
    breathing_rate = _breathing_rate(found[1:][regular], intervals[regular]) if breathes else None
    return Vitals(float(60 / intervals[regular].mean()), breathing_rate, len(found))


def beats(volts: Floats, rate_hz: float) -> Floats:
    """When the heart beats, in seconds from the first sample; empty where there are no plausible beats."""
    risen = volts - _moving_average(volts, max(1, round(_AVERAGE_SECONDS * rate_hz)))
    height = float(np.percentile(risen, 98))
    best, best_spread = np.empty(0), np.inf
    for raised in _RAISED if height > 0 else ():
        tops = _tops(risen, raised * height) / rate_hz
        intervals = np.diff(tops)
        if len(intervals) < _FEWEST_INTERVALS or not LOWEST_RATE <= 60 / intervals.mean() <= HIGHEST_RATE:
            continue
        spread = float(intervals.std())
        if spread < best_spread:
            best, best_spread = tops, spread
    return best


def _moving_average(of: Floats, width: int) -> Floats:
    """Centred; at the ends, of what there is."""
    sums = np.concatenate(([0.0], np.cumsum(of)))
    at = np.arange(len(of))
    begin, end = np.maximum(at - width // 2, 0), np.minimum(at + width // 2 + 1, len(of))
    return np.asarray((sums[end] - sums[begin]) / (end - begin))


def _tops(of: Floats, level: float) -> npt.NDArray[np.intp]:
    """Where each stretch above the level is highest. One that is cut off by an end is none."""
    edges = np.diff((of > level).astype(np.int8))
    begins, ends = np.flatnonzero(edges == 1) + 1, np.flatnonzero(edges == -1) + 1
    if len(begins):
        ends = ends[ends > begins[0]]
    return np.array([b + int(np.argmax(of[b:e])) for b, e in zip(begins, ends, strict=False)], dtype=np.intp)


def _breathing_rate(at: Floats, intervals: Floats) -> float | None:
    even = np.interp(np.arange(at[0], at[-1], 1 / _INTERVALS_HZ), at, intervals)
    wave = (even - even.mean()) * np.hanning(len(even))
    padded = 1 << 12  # a fine grid of frequencies
    power = np.abs(np.fft.rfft(wave, padded)) ** 2
    breaths = np.fft.rfftfreq(padded, 1 / _INTERVALS_HZ) * 60
    peaks = np.flatnonzero((power[1:-1] > power[:-2]) & (power[1:-1] >= power[2:])) + 1
    peaks = peaks[(breaths[peaks] >= LOWEST_BREATHS) & (breaths[peaks] <= HIGHEST_BREATHS)]
    return float(breaths[peaks[np.argmax(power[peaks])]]) if len(peaks) else None
