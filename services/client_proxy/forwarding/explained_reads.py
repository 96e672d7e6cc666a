"""Looks one key up as any other, and says which way it went: whom it was sent to, and how long each of them took."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from keyhole.client.routing.asked import Asked
from keyhole.client.routing.frame import Forwarding
from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.segments import Answers
from keyhole.clock import Clock
from keyhole.encoding.storage_key import group_of
from keyhole.errors import KeyholeError, Overloaded
from keyhole.protocol.routing import RouteTable
from keyhole.rpc.explanations import copy_in, micros
from keyhole.rpc.frames import as_error
from keyhole.rpc.read_requests import lookup_of_keys
from keyhole.rpc.status import to_proto
from keyhole.v1 import query_pb2 as pb
from services.client_proxy.directory import Directory
from services.client_proxy.forwarding.storage_reads import StorageReads

_HOPS = 16
"""So many are kept from the beginning, and so many from the end: a key may be tried for minutes."""

_MOST_SECONDS = 30.0
"""A person waits for it. What takes longer than that is tried again and again, and says no more in the end."""

_MOST_AT_ONCE = 16
"""Each asks all servers that hold the key group for all that they hold."""

# Of the caller's time, what is kept for asking the copies once the lookup has none left.
_FOR_COPIES = 0.2
_MOST_COPIES_SECONDS = 1.0


class Hops:
    """Writes down whom a key was sent to, and what came of it. Event loop's thread only."""

    def __init__(self, clock: Clock) -> None:
        # The event loop's own may tell no more than milliseconds.
        self._clock = clock
        self._began = clock.monotonic()
        self._first: list[pb.Hop] = []
        self._last: deque[pb.Hop] = deque(maxlen=_HOPS)
        self._count = 0

    @property
    def seconds(self) -> float:
        """How long ago this was made."""
        return self._clock.monotonic() - self._began

    @property
    def left_out(self) -> int:
        """How many there are beside the noted ones."""
        return self._count - len(self.noted())

    def noted(self) -> list[pb.Hop]:
        """In the order in which they were asked."""
        return [*self._first, *self._last]

    def asked(self, address: str) -> None:
        """The key is about to be sent there."""
        self._count += 1
        (self._first if len(self._first) < _HOPS else self._last).append(
            pb.Hop(address=address, began_micros=micros(self.seconds))
        )

    def overdue(self, address: str) -> None:
        """It has been silent for so long that the next one is asked as well."""
        if (hop := self._open(address)) is not None:
            hop.overdue = True

    def ended(self, address: str, server_micros: int = 0, error: KeyholeError | None = None) -> None:
        """It has answered the key, or has failed."""
        if (hop := self._open(address)) is not None:
            hop.took_micros = max(1, micros(self.seconds) - hop.began_micros)
            hop.server_micros = server_micros
            if error is not None:
                hop.error.CopyFrom(to_proto(error))

    def _open(self, address: str) -> pb.Hop | None:
        return next((hop for hop in reversed(self.noted()) if hop.address == address and not hop.took_micros), None)


class Traced(Forwarding):
    """A frame of one key that tells its hops; the servers are asked for their times."""

    def __init__(self, hops: Hops, directory: Directory, lane: Lane, *arguments: Any, **options: Any) -> None:
        super().__init__(directory, lane._replace(timed=True), *arguments, **options)
        self._hops = hops

    def answered(self, asked: Asked, start: int, answers: Answers) -> None:
        failure = answers.failures.get(0)
        self._hops.ended(asked.address, answers.server_micros, None if failure is None else as_error(failure))
        super().answered(asked, start, answers)

    def failed(self, asked: Asked, start: int, count: int, error: KeyholeError) -> None:
        self._hops.ended(asked.address, error=error)
        super().failed(asked, start, count, error)

    def overdue(self, asked: Asked) -> None:
        self._hops.overdue(asked.address)
        super().overdue(asked)

    def _ask(self, address: str, places: Sequence[int] | None, *, is_hedge: bool = False) -> None:
        self._hops.asked(address)
        super()._ask(address, places, is_hedge=is_hedge)


class ExplainedReads:
    """See the module's text. Event loop's thread only; deadlines are on its clock."""

    def __init__(self, directory: Directory, reads: StorageReads) -> None:
        self._directory = directory
        self._reads = reads
        self._loop = asyncio.get_running_loop()
        self._under_way = 0

    async def explain(self, request: pb.ExplainRequest, deadline: float, *, addresses: bool) -> pb.ExplainResponse:
        """The whole response, within the deadline and half a minute. That the key has no answer is no error here.

        Args:
            addresses: The caller may know where servers are. Else they are called by their names.

        Raises:
            Overloaded: Too many are under way.
            UnknownApplication, UnknownState, NoServer: As Directory.table.
            KeyMismatch, NullKey, MalformedRequest, Unsupported: There is no such key, or option.
            Overloaded: As StorageReads.forward.
        """
        if self._under_way >= _MOST_AT_ONCE:
            raise Overloaded(f"{self._under_way} keys are being explained by this proxy, and no more may be; try again")
        self._under_way += 1
        try:
            response = await self._explained(request, min(deadline, self._loop.time() + _MOST_SECONDS))
        finally:
            self._under_way -= 1
        return response if addresses else self._by_name(response)

    def _by_name(self, response: pb.ExplainResponse) -> pb.ExplainResponse:
        """The same with each server's name for its address, also within the words of errors."""
        names = {link.address: link.view.server if link.view else "" for link in self._directory.links}
        names |= {of.address: of.server for of in response.copies if of.server}
        names |= dict.fromkeys({hop.address for hop in response.hops} - names.keys(), "")
        # The longest ones first: one address may begin like another one.
        by_length = sorted(names.items(), key=lambda of: -len(of[0]))

        def named(text: str) -> str:
            for address, name in by_length:
                text = text.replace(address, name or "a server without a name")
            return text

        errors = [response.error] if response.HasField("error") else []
        for hop in response.hops:
            hop.address = named(hop.address)
            errors += [hop.error] if hop.HasField("error") else []
        for copy in response.copies:
            copy.address = named(copy.address)
            # Why it can't be reached may name where it, or its name's server, is.
            copy.unreachable = "it can't be reached" if copy.unreachable else ""
        for error in errors:
            error.message = named(error.message)
            # A list: of a map that is changed meanwhile protobuf passes over some.
            for fact, text in list(error.facts.items()):
                error.facts[fact] = named(text)
        response.missing = named(response.missing)
        return response

    async def _explained(self, request: pb.ExplainRequest, deadline: float) -> pb.ExplainResponse:
        clock, began = self._directory.clock, self._directory.clock.monotonic()
        lookup = lookup_of_keys(pb.GetManyRequest(state=request.state, keys=[request.key], options=request.options))
        await self._directory.known(lookup.state, deadline)
        codec = self._directory.codec(lookup.state)
        (key,) = codec.storage_keys(lookup.keys)
        group = group_of(key)
        bounds = lookup.bounds.among({group})
        stored = lookup._replace(
            keys=(), storage_keys=[key], topic_id=codec.descriptor.topic_id, bounds=bounds, as_json=False
        )
        hops = Hops(clock)
        kept = min(_MOST_COPIES_SECONDS, _FOR_COPIES * (deadline - self._loop.time()))
        answers = await self._looked_up(
            lambda done: self._reads.forward(
                stored, deadline - kept, done, way=lambda *given, **options: Traced(hops, *given, **options)
            )
        )
        looked_up = hops.seconds
        response = pb.ExplainResponse(
            key_group=group, hops=hops.noted(), hops_left_out=hops.left_out, lookup_micros=max(1, micros(looked_up))
        )
        failure = answers.failures.get(0)
        if failure is not None:
            response.error.CopyFrom(to_proto(as_error(failure)))
        else:
            value, source = answers.values[0], answers.sources[answers.source_of[0] if answers.source_of else 0]
            if lookup.as_json:
                (value,) = codec.rows.each_to_json([value])
            response.answer.CopyFrom(pb.Answer(found=bool(value), value=value, source=source))
        table = self._directory.tables.get(lookup.state)
        if table is not None and group < len(table.copies):
            response.missing = table.missing
            response.copies.extend(await self._copies(table, group, deadline))
        response.micros = max(1, micros(clock.monotonic() - began))
        return response

    async def _looked_up(self, start: Callable[[Callable[[Answers], None]], None]) -> Answers:
        answered: asyncio.Future[Answers] = self._loop.create_future()

        def done(answers: Answers) -> None:
            if not answered.done():
                answered.set_result(answers)

        start(done)
        return await answered

    async def _copies(self, table: RouteTable, group: int, deadline: float) -> list[pb.KeyGroupCopy]:
        """In the order in which they are asked; the owner is among them, also where it can't be asked."""
        owner = table.owners.addresses[group]
        found = await asyncio.gather(*(self._copy(table, group, address, deadline) for address in table.copies[group]))
        for copy in found:
            copy.owner = copy.address == owner
        return found

    async def _copy(self, table: RouteTable, group: int, address: str, deadline: float) -> pb.KeyGroupCopy:
        link = self._directory.link(address)
        if link is None:
            return pb.KeyGroupCopy(address=address, unreachable="it is no longer among the discovered servers")
        view = link.view
        if view is not None and view.lost:
            return pb.KeyGroupCopy(server=view.server, address=address, unreachable=view.lost)
        patience = min(_MOST_COPIES_SECONDS, max(0.0, deadline - self._loop.time()))
        described = await link.describe(patience)
        copy = copy_in(described, (table.descriptor.application, table.descriptor.state), group)
        # As it is routed to: what a server calls itself may be another name.
        copy.address = address
        copy.silent = view is not None and view.suspect
        return copy
