"""What of a stored entry readers are shown, and when: an expired one is not, and neither is a remembered deletion."""

from __future__ import annotations

from keyhole.clock import Clock
from keyhole.encoding.envelope import Moment, Visible, visible
from keyhole.model.epoch import EpochStamp
from keyhole.model.state import StateDescriptor, TtlClock
from services.state_server.read.copies import Show


class Visibility:
    """Of one state. What has expired once stays so, also where the clock is set back. Event loop's thread alone."""

    def __init__(self, descriptor: StateDescriptor, clock: Clock) -> None:
        self._clock = clock
        self._latest_ms = 0
        self.describe(descriptor)

    def describe(self, descriptor: StateDescriptor) -> None:
        """The state's entries are stored, and expire, by this descriptor from now on."""
        self._visible = visible(descriptor)
        self._expires_by_clock = bool(descriptor.ttl_ms) and descriptor.ttl_clock is TtlClock.PROCESSING_TIME

    def as_of(self, stamp: EpochStamp) -> Visible | None:
        """How what an epoch has written is shown, as of its commit whatever the clock says; None: as it is."""
        return None if self._visible is None else self._visible(Moment(stamp.commit_time_ms, stamp.watermark_ms))

    def show(self) -> Show | None:
        """How what is stored is shown from now on, in any copy; None: as it is.

        For all keys of a frame, whatever they stand for, the clock is asked once; and not where nothing expires by it.
        """
        visible = self._visible
        if visible is None:
            return None
        if self._expires_by_clock:
            # What has expired stays so, should the clock be set back.
            self._latest_ms = max(self._latest_ms, self._clock.now_ms())
        now_ms = self._latest_ms
        # What had expired when the epoch was committed, by which it may have been removed or begun anew, is not shown
        # by a clock that is behind.
        return lambda stamp: visible(Moment(max(now_ms, stamp.commit_time_ms), stamp.watermark_ms))
