"""In which order the servers that hold a copy of a key group are asked: the newest owner, then who stands in. Pure.

It depends on what they claim alone, so that all readers choose the same.
"""

from __future__ import annotations

from typing import NamedTuple

from keyhole.model.read import Role
from keyhole.protocol.server_view import Holding, ServerView


class Claim(NamedTuple):
    """Ordered: of two that say they own a key group, the higher is believed.

    A newer generation or assignment comes before readiness: the older server's answers would be those of an owner that
    was replaced. Where all is equal, any fixed order will do, so that all readers choose the same.
    """

    owner: bool
    generation: int
    assignment_version: int
    ready: bool
    staying: bool
    address: str
    answering: bool


def claim_of(view: ServerView, holding: Holding) -> Claim:
    """What a server claims by one of its holdings."""
    return Claim(
        owner=holding.role is Role.OWNER,
        generation=holding.generation,
        assignment_version=holding.assignment_version,
        ready=holding.ready,
        staying=not view.draining,
        address=view.address,
        answering=not view.suspect,
    )


class Ranking(NamedTuple):
    """Who is to be asked for one key group. `able`: those copies that should be able to answer; none: all of them."""

    owner: str
    copies: tuple[str, ...]
    able: tuple[str, ...]


def rankings(key_groups: int, holdings: list[tuple[ServerView, Holding]]) -> list[Ranking]:
    """By key group, of what the servers have reported of one state. Those whose connection is lost don't count."""
    claims: list[list[Claim]] = [[] for _ in range(key_groups)]
    for view, holding in holdings:
        if view.lost:
            continue
        claim = claim_of(view, holding)
        for group in holding.key_groups:
            if group < key_groups:
                claims[group].append(claim)
    # Most key groups have the same claims as others: as many rankings as there are different ones, and turns.
    known: dict[tuple[int, frozenset[Claim]], Ranking] = {}
    found = []
    for group, of in enumerate(claims):
        ranked = (group % _TURNS, frozenset(of))
        if ranked not in known:
            known[ranked] = _rank(of, group % _TURNS)
        found.append(known[ranked])
    return found


# Divisible by all numbers of standbys that are likely, so that these share the key groups evenly.
_TURNS = 60
_UNREADY = 3


def _rank(claims: list[Claim], turn: int) -> Ranking:
    owner = max((claim for claim in claims if claim.owner), default=None)
    # Ready standbys share the key groups of a lost owner: each begins with another one.
    others = sorted((claim for claim in claims if claim != owner), key=lambda claim: claim.address)
    others = others[turn % len(others) :] + others[: turn % len(others)] if others else []
    others.sort(key=lambda claim: (_tier(claim, owner), not claim.staying))
    ranked = sorted([*([owner] if owner else []), *others], key=lambda claim: _tier(claim, owner))
    able = [claim for claim in ranked if _tier(claim, owner) < _UNREADY] or ranked
    return Ranking(owner.address if owner else "", _addresses(ranked), _addresses(able))


def _tier(claim: Claim, owner: Claim | None) -> int:
    if not claim.answering:
        return _UNREADY + 1
    if not claim.ready:
        return _UNREADY
    return 0 if claim == owner else 2 if claim.owner else 1


def _addresses(claims: list[Claim]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(claim.address for claim in claims))
