"""All state servers of a job, as they come and go: links to them, and calls to many of them at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Protocol, TypeVar

from keyhole.config import JobConfig
from keyhole.coordinator.server_link import ServerLink
from keyhole.discovery import discovery_of
from keyhole.errors import (
    InvalidConfiguration,
    KeyholeError,
    PermissionDenied,
    ProtocolMismatch,
    ServerLost,
    Unauthenticated,
)
from keyhole.protocol.membership import Sighting
from keyhole.protocol.receipts import Target
from keyhole.security.credentials import PLAIN, Credentials

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

# Threads are made as they are needed: two for each server, because a long commit must not hold up the heartbeat.
_MOST_THREADS = 256

_REFUSALS = (ProtocolMismatch, Unauthenticated, PermissionDenied)


class Addresses(Protocol):
    """host:port of each state server now. Called often, and quick; any thread.

    Raises:
        InvalidConfiguration: Nothing was ever found, and a discovery was refused its answer.
    """

    def __call__(self) -> Collection[str]: ...

    def close(self) -> None:
        """Looks for no more. Idempotent."""


class Fleet:
    """See the module's text. Thread-safe but for `observe` and `close`, which one thread at a time may call.

    Args:
        addresses: Gives host:port of each server now; called often, and quick.
        credentials: What it shows to them.

    Attributes:
        mismatched: By address, the servers that spoke another version of the protocol when they were observed last.
        refused: By address, what all said that refused this driver when they were observed last: those, and who does
            not know it, or lets it see nothing.
    """

    def __init__(self, addresses: Callable[[], Collection[str]], credentials: Credentials = PLAIN) -> None:
        self._credentials = credentials
        self._addresses = addresses
        self._lock = threading.Lock()
        self._links: dict[str, ServerLink] = {}
        self.mismatched: dict[str, ProtocolMismatch] = {}
        self.refused: dict[str, KeyholeError] = {}
        self._unanswered: dict[tuple[str, str], Future[object]] = {}
        self._pool = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="keyhole-coordinator")

    def addresses(self) -> list[str]:
        """The addresses of servers that are known now."""
        return sorted(self._addresses())

    def link(self, target: Target) -> ServerLink:
        """The link to a server, also where its address is not among those known any more."""
        return self._link(target.address)

    def _link(self, address: str) -> ServerLink:
        with self._lock:
            if address not in self._links:
                self._links[address] = ServerLink(address, self._credentials)
            return self._links[address]

    def observe(self) -> dict[str, Sighting]:
        """The servers that answer now, by id. Waits two seconds at most, and no second time for the same silent one.

        A server whose address is not known any more counts for as long as it answers: it may be draining.
        """
        known = self.addresses()
        with self._lock:
            linked = list(self._links)
        links = {address: self._link(address) for address in sorted({*known, *linked})}
        answers = self.ask("Describe", {address: (link, link.describe) for address, link in links.items()})
        for address in links.keys() - set(known):
            if isinstance(answers[address], KeyholeError):
                self._forget(address)
        self._note_refusals(answers)
        found = [sighting for sighting in answers.values() if isinstance(sighting, Sighting)]
        # One that took a name over counts, not the one of that name that drains or whose pod is gone; of two that both
        # stay it is always the same one.
        found.sort(key=lambda of: (not of.draining, of.target.address in known, of.target.address))
        return {sighting.target.server: sighting for sighting in found}

    def _note_refusals(self, answers: Mapping[str, object]) -> None:
        self.refused = {at: of for at, of in answers.items() if isinstance(of, _REFUSALS)}
        self.mismatched = {at: of for at, of in self.refused.items() if isinstance(of, ProtocolMismatch)}

    def refusing(
        self, application: str, targets: Iterable[Target], query: str = "", states: Collection[str] = ()
    ) -> list[KeyholeError]:
        """What servers say that would take no run of the application. Who doesn't answer says nothing. As `observe`;
        but where a query is named it waits for as long as the servers take to ask Kafka.

        Args:
            query, states: As for ServerLink.describe.
        """
        links = [self.link(target) for target in targets]
        asks = {link.address: (link, partial(link.describe, application, query, states)) for link in links}
        answers = self.ask("Describe", asks)
        return [answer for answer in answers.values() if isinstance(answer, (*_REFUSALS, InvalidConfiguration))]

    def confirming(self, application: str, query: str, targets: Iterable[Target]) -> list[str]:
        """The servers that own key groups of the query for a run that they have heard of within their lease.

        Who doesn't answer says nothing. As `observe`.
        """
        links = {target.server: self.link(target) for target in targets}
        calls = {name: (link, partial(link.confirms, application, query)) for name, link in links.items()}
        return [name for name, answer in self.ask("Describe", calls).items() if answer is True]

    def silent(self) -> list[str]:
        """The addresses whose last call ended without an answer in its time: somebody may be there all the same."""
        return [address for address, link in list(self._links.items()) if not link.responsive]

    def _forget(self, address: str) -> None:
        with self._lock:
            self._links.pop(address).close()
        _log.info("a state server is gone", extra={"address": address})

    def ask(
        self, what: str, calls: Mapping[str, tuple[ServerLink, Callable[[], _Result]]]
    ) -> dict[str, _Result | KeyholeError]:
        """As `each`, for short questions; but who did not answer the last one in time is not waited for.

        A silent server goes on being asked, one question of a kind at a time. Once it answers it counts again.
        """
        asked: dict[str, Future[_Result | KeyholeError]] = {}
        for name, (link, call) in calls.items():
            question = what, link.address
            before = self._unanswered.pop(question, None)
            waited_for = link.responsive
            if before is not None and not before.done():
                self._unanswered[question] = before
                continue
            future = self._pool.submit(_outcome, call)
            if waited_for:
                asked[name] = future
            else:
                self._unanswered[question] = future  # type: ignore[assignment]  # nobody reads it
        silent = ServerLost("it did not answer in time, and has not since")
        return {name: asked[name].result() if name in asked else silent for name in calls}

    def each(self, calls: Mapping[str, Callable[[], _Result]]) -> dict[str, _Result | KeyholeError]:
        """Makes the calls at once; each ends in its result or its error."""
        return dict(zip(calls, self._pool.map(_outcome, calls.values()), strict=True))

    def close(self) -> None:
        """Ends all links, and what is under way on them."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for link in self._links.values():
            link.close()


def fleet_of(config: JobConfig, addresses: Addresses | None, ending: ExitStack) -> Fleet:
    """The servers of a run, which look for no more once `ending` is closed.

    Args:
        addresses: Where they are; None: as the configuration says.
    """
    if addresses is not None:
        ending.callback(addresses.close)
        return Fleet(addresses, config.credentials)
    discovery = discovery_of(config.servers)
    ending.callback(discovery.close)
    return Fleet(discovery.known, config.credentials)


def _outcome(call: Callable[[], _Result]) -> _Result | KeyholeError:
    try:
        return call()
    except KeyholeError as error:
        return error
