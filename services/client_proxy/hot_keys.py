"""Which keys of a state are read most through this process: estimated of a few samples a second, in bounded memory."""

from __future__ import annotations

import random
from collections.abc import Sequence

from services.client_proxy.siblings import HotKey

_SAMPLE_SECONDS = 0.1
_MOST_KEYS = 64
_MOST_KEY_BYTES = 256
_HALF_LIFE_SECONDS = 60.0
_LEAST_SAMPLES = 3
_MOST_TOLD = 8


class HotKeys:
    """Of one state. One key of a sample stands for all keys that were read since the sample before. What is remembered
    is halved each minute. Event loop's thread only.

    64 keys are counted (space-saving): one that is new takes the place of the one with the least, and its count. So
    none with more than a 64th of the reads is missed for long; what was taken over is not said.

    Attributes:
        due: Before that, monotonic, no sample is to be taken.
        reads: All that were counted, halved likewise.
    """

    __slots__ = ("_counted", "_halved", "_read", "due", "reads")

    def __init__(self) -> None:
        self.due = self.reads = 0.0
        # By storage key: its count, how much of that was another key's, and in how many samples it was.
        self._counted: dict[bytes, tuple[float, float, float]] = {}
        self._read = 0
        self._halved = 0.0

    def sample(self, now: float, read: int, storage_keys: Sequence[bytes]) -> None:
        """Takes one of the keys that are read now.

        Args:
            now: Monotonic.
            read: How many keys of the state were read so far, these included.
            storage_keys: One at least.
        """
        self.due = now + _SAMPLE_SECONDS
        self._halve(now)
        stands_for = read - self._read
        self._read = read
        self.reads += stands_for
        key, counted = random.choice(storage_keys), self._counted  # noqa: S311 - a sample, no secret
        if len(key) > _MOST_KEY_BYTES:
            return
        if key in counted:
            count, excess, samples = counted[key]
        else:
            taken = counted.pop(min(counted, key=counted.__getitem__))[0] if len(counted) >= _MOST_KEYS else 0.0
            count, excess, samples = taken, taken, 0.0
        counted[key] = count + stands_for, excess, samples + 1

    def hottest(self, now: float) -> tuple[HotKey, ...]:
        """The hottest first, eight at most. A key that was in one sample or two may have been there by chance."""
        self._halve(now)
        found = [
            HotKey(key, count - excess)
            for key, (count, excess, samples) in self._counted.items()
            if samples >= _LEAST_SAMPLES
        ]
        return tuple(sorted(found, key=lambda of: (-of.reads, of.storage_key))[:_MOST_TOLD])

    def _halve(self, now: float) -> None:
        if not self._halved:
            self._halved = now
        times = int((now - self._halved) // _HALF_LIFE_SECONDS)
        if times:
            self._halved += times * _HALF_LIFE_SECONDS
            by = 0.5 ** min(times, 64)
            self.reads *= by
            halved = {key: (of[0] * by, of[1] * by, of[2] * by) for key, of in self._counted.items()}
            self._counted = {key: of for key, of in halved.items() if of[0] >= 0.5}
