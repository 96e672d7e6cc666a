"""A number in memory that several processes have: one of them counts, and the others look."""

from __future__ import annotations

import mmap
import os

_BYTES = 8


class SharedCount:
    """See the module's text. Seen by the others as soon as it is counted: no message is needed for it.

    Args:
        descriptor: Of the memory, which other processes inherit. Closed with this.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, mmap.PAGESIZE)
        # One whole aligned number, which is read and written at once.
        self._number = memoryview(self._memory)[:_BYTES].cast("Q")

    @staticmethod
    def make() -> SharedCount:
        """Makes the memory, with 0 in it."""
        descriptor = os.memfd_create("keyhole-readers")
        os.ftruncate(descriptor, mmap.PAGESIZE)
        return SharedCount(descriptor)

    @property
    def value(self) -> int:
        """How much was counted until now."""
        return self._number[0]

    def count(self) -> None:
        """One more. By one process and thread alone."""
        self._number[0] += 1

    def close(self) -> None:
        """Lets go of the memory."""
        self._number.release()
        self._memory.close()
        os.close(self.descriptor)
