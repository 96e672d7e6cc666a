"""Bugs that are planted into a client proxy, as tests.fault.planted does into state servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from keyhole.client.routing.frame import Forwarding


def hedge_without_bounds() -> None:
    """Who is asked for hedged keys, too, is not told which epoch they must have."""
    ask = Forwarding._ask

    def asking(self: Forwarding, address: str, places: Sequence[int] | None, *, is_hedge: bool = False) -> None:
        lane = self._lane
        if is_hedge:
            self._lane = lane._replace(bounds=lane.bounds._replace(min_epoch=0))
        try:
            ask(self, address, places, is_hedge=is_hedge)
        finally:
            self._lane = lane

    Forwarding._ask = asking  # type: ignore[method-assign]


PLANTS: Mapping[str, Callable[[], None]] = {"hedge without bounds": hedge_without_bounds}


def plant(names: str) -> None:
    """Changes the proxy of this process, by one of PLANTS or several, with commas. Empty: nothing."""
    for name in names.split(",") if names else ():
        PLANTS[name]()
