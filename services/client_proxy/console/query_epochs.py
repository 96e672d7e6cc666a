"""What the last epochs of a query took, as its servers have heard: asked once however many consoles are open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from keyhole.model.epoch_times import EpochTimes
from keyhole.model.read import Role
from keyhole.model.state import StateDescriptor
from keyhole.rpc.convert_epochs import epoch_times_from_proto
from services.client_proxy.console.shared_rounds import SharedRounds
from services.client_proxy.directory import Directory
from services.client_proxy.server_connection import ServerConnection

QueryName: TypeAlias = tuple[str, str]
"""Application and query."""

_SERVER_SECONDS = 2.0
_MOST_SERVERS = 3


class EpochsInOneRound(NamedTuple):
    """The answers of one round.

    Attributes:
        at_ms: When all were there: milliseconds since 1970, by the proxy's clock.
        epochs: From the oldest to the newest.
        answered: Whether any server has answered.
    """

    at_ms: int
    epochs: tuple[EpochTimes, ...]
    answered: bool


class QueryEpochs:
    """Asks three servers at most of those that own key groups of a query: each has heard the same, but for those that
    came late. Event loop's thread only.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._rounds = SharedRounds(directory.clock, self._ask)

    async def of(self, name: QueryName) -> EpochsInOneRound:
        """The epochs, as of FRESH_SECONDS ago at most."""
        return await self._rounds.of(name)

    async def close(self) -> None:
        """Ends what is under way."""
        await self._rounds.close()

    async def _ask(self, name: QueryName) -> EpochsInOneRound:
        answers = await asyncio.gather(
            *(link.epochs(*name, _SERVER_SECONDS) for link in _owners(self._directory.links, name))
        )
        found = {(of.generation, of.epoch): of for answer in answers for of in answer or ()}
        # What a batch took comes later than the rest: some may not have heard of it.
        found |= {(of.generation, of.epoch): of for answer in answers for of in answer or () if of.batch_micros}
        epochs = tuple(epoch_times_from_proto(of) for _, of in sorted(found.items()))
        return EpochsInOneRound(self._directory.clock.now_ms(), epochs, any(answer is not None for answer in answers))


def epoch_json(times: EpochTimes) -> dict[str, Any]:
    """An epoch, with all times in milliseconds; `batch` and `batch_ms` are null where they are not known."""
    return {
        "epoch": times.epoch,
        "generation": times.generation,
        "batch": times.batch if times.batch >= 0 else None,
        "began_ms": times.began_ms,
        "ms": _ms(times.seconds),
        "converge_ms": _ms(times.converge),
        "stage_ms": _ms(times.stage),
        "commit_ms": _ms(times.commit),
        "complete_ms": _ms(times.complete),
        "batch_ms": _ms(times.batch_seconds) if times.batch_seconds else None,
        "rounds": times.rounds,
        "replayed": times.replayed,
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _owners(links: Iterable[ServerConnection], name: QueryName) -> list[ServerConnection]:
    """Who owns the most states of it, first; else who follows any."""

    def rank(link: ServerConnection) -> tuple[int, int]:
        roles = [of.role for of in link.view.holdings if _query(of.descriptor) == name] if link.view else []
        return roles.count(Role.OWNER), len(roles)

    alive = [link for link in links if link.view is not None and not link.view.lost]
    ranked = sorted(((rank(link), link.address, link) for link in alive), key=lambda of: (of[0], of[1]), reverse=True)
    return [link for (_, held), _, link in ranked if held][:_MOST_SERVERS]


def _query(descriptor: StateDescriptor) -> QueryName:
    return descriptor.application, descriptor.query
