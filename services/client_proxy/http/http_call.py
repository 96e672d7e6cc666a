"""A request over HTTP, as reads know calls."""

from __future__ import annotations

import asyncio

from keyhole.rpc.read_admission import peer_of


class HttpCall:
    """What reads want of a gRPC call: how much time is left, and where it comes from. Event loop's thread only.

    Args:
        seconds: How much time there is, from now on.
        address: Of the other side, as the HTTP library has it.
    """

    def __init__(self, seconds: float, address: str | None) -> None:
        self._until = asyncio.get_running_loop().time() + seconds
        self._peer = peer_of(address)

    def peer(self) -> str:
        """The other side's address, as gRPC says it."""
        return self._peer

    def time_remaining(self) -> float:
        """Seconds that are left; 0: none."""
        return max(0.0, self._until - asyncio.get_running_loop().time())
