"""Which reads the proxy has refused, by state and reason: counts, as there may be thousands a second. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from services.client_proxy.siblings import ProcessFacts

MOST_SHOWN = 50


class ShownRefusals(msgspec.Struct, frozen=True):
    """Keys and scans of one state that were refused for one reason, since the proxy began.

    Attributes:
        application, state: Empty: of states that no server holds, all together.
        last_ms: When it happened last: milliseconds since 1970; 0: not known.
    """

    application: str
    state: str
    reason: str
    count: int
    last_ms: int


def refusals_of(processes: Iterable[ProcessFacts], may_see: Callable[[str, str], bool]) -> list[ShownRefusals]:
    """Those that happened last, at first; MOST_SHOWN at most.

    Args:
        processes: What each process of the proxy says.
        may_see: Whether those of a state may be shown.
    """
    found: dict[tuple[str, str, str], tuple[int, int]] = {}
    for reads in (reads for facts in processes for reads in facts.reads if may_see(reads.application, reads.state)):
        for of in reads.refused:
            name = (reads.application, reads.state, of.reason)
            count, last_ms = found.get(name, (0, 0))
            found[name] = count + of.count, max(last_ms, of.last_ms)
    shown = [ShownRefusals(*name, *counted) for name, counted in found.items()]
    return sorted(shown, key=lambda of: (-of.last_ms, of.application, of.state, of.reason))[:MOST_SHOWN]


def turned_away(processes: Iterable[ProcessFacts]) -> dict[str, int]:
    """Calls and keys that were refused at the entrance, by why; those that never were are left out."""
    counted: Counter[str] = Counter()
    for facts in processes:
        counted.update(facts.turned_away)
    return {why: count for why, count in sorted(counted.items()) if count}
