"""When a key is asked of a second copy though its server is not silent yet: how long each server nearly always takes,
and how many keys may be asked twice.
"""

from __future__ import annotations

from keyhole.client.routing.latency_quantile import LatencyQuantile

_LEAST_QUANTILE, _MOST_QUANTILE = 0.5, 0.999
_LEAST_SECONDS = 0.001
# One key may be asked twice for so many that are read.
_READ_PER_HEDGED = 10
# What is saved up: a share of a large frame goes whole or not at all.
_MOST_SAVED = 1_024
# None is hedged for so long after a server has refused a lookup as overloaded.
_PAUSE_SECONDS = 1.0


class Hedging:
    """That of one client proxy, or of one direct client. Event loop's thread only; times are on its clock.

    Args:
        quantile: Of a server's answers, how many come within the time that is waited for it alone.

    Attributes:
        keys: How many keys were asked of another copy as well.
        answered_keys: For how many of these that one has answered first.
    """

    def __init__(self, quantile: float) -> None:
        self.quantile = quantile
        self.keys = self.answered_keys = 0
        self._latencies: dict[str, LatencyQuantile] = {}
        # In keys that are read.
        self._saved = 0
        self._paused_until = 0.0

    @classmethod
    def at(cls, quantile: float) -> Hedging | None:
        """At this quantile; None: that is none, and nothing is hedged."""
        return cls(quantile) if _LEAST_QUANTILE <= quantile <= _MOST_QUANTILE else None

    def read(self, keys: int) -> None:
        """So many keys are about to be asked for the first time."""
        self._saved = min(self._saved + keys, _MOST_SAVED * _READ_PER_HEDGED)

    def patience(self, address: str) -> float:
        """For how many seconds this server is to be waited for alone; infinite: it is not known well enough."""
        latency = self._latencies.get(address)
        if latency is None:
            latency = self._latencies[address] = LatencyQuantile(self.quantile)
        return max(_LEAST_SECONDS, latency.seconds)

    def took(self, address: str, seconds: float) -> None:
        """It has answered its share of a frame, or has been silent for so long."""
        latency = self._latencies.get(address)
        if latency is not None:  # else it is gone
            latency.note(seconds)

    def allows(self, keys: int, now: float) -> bool:
        """Whether so many may be asked twice now."""
        return self._saved >= keys * _READ_PER_HEDGED and now >= self._paused_until

    def hedged(self, keys: int) -> None:
        """So many are; see `allows`."""
        self.keys += keys
        self._saved -= keys * _READ_PER_HEDGED

    def overloaded(self, now: float) -> None:
        """A server has refused a lookup as overloaded: to ask more of the others would only pass that on."""
        self._paused_until = now + _PAUSE_SECONDS

    def forget(self, address: str) -> None:
        """The server is no longer asked."""
        self._latencies.pop(address, None)
