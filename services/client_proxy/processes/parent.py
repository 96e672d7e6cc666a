"""The parent of a proxy's processes: it holds their ports, keeps them running, and ends them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import ExitStack

from keyhole.backoff import Backoff
from keyhole.clock import Clock, SystemClock
from keyhole.config import ClientProxyConfig
from keyhole.errors import InternalError, InvalidConfiguration, KeyholeError, MachineError, by_reason
from keyhole.rpc.processes.children import how_ended
from keyhole.rpc.processes.coming import comes_within
from services.client_proxy.processes.child_process import ChildProcess
from services.client_proxy.processes.held_ports import held_address, held_port
from services.client_proxy.processes.words import Begin, FactsOfAll, Failed

_log = logging.getLogger(__name__)

_OVER_SECONDS = 30.0
"""Beyond the drain: a child that has not ended by then hangs."""
_STEADY_SECONDS = 60.0
"""A child that has lived for so long is started again at once, as one that has never failed."""


async def serve_by_processes(config: ClientProxyConfig, count: int, stopping: asyncio.Event) -> None:
    """Runs a proxy of `count` processes until it is to stop.

    Raises:
        InvalidConfiguration: Several processes can't share a port here; or what a child has refused at its start.
        PortTaken: A port of its is somebody else's.
        KeyholeError: What a child could not serve for.
    """
    if sys.platform != "linux":
        raise InvalidConfiguration(
            f"{config.PREFIX}PROCESSES asks for {count} processes, and connections to one port are spread over "
            "processes by Linux alone; set it to 1"
        )
    with ExitStack() as held:
        port = held.enter_context(held_port("client-proxy", config.host, config.port))
        http = held.enter_context(held_address("the HTTP reads", config.http))
        metrics = held.enter_context(held_address("/metrics", config.metrics))
        turn = os.memfd_create("keyhole-client-proxy-turn")
        held.callback(os.close, turn)
        begins = [Begin(number, count, port, http, metrics) for number in range(count)]
        await ProxyProcesses(begins, turn, config.drain_seconds, SystemClock()).run(stopping)


class ProxyProcesses:
    """The children. Event loop's thread only.

    Args:
        begins: What each is sent first.
        turn: See ParentLink.
        drain_seconds: How long they may take to end.
    """

    def __init__(self, begins: list[Begin], turn: int, drain_seconds: float, clock: Clock) -> None:
        self._begins = begins
        self._turn = turn
        self._drain_seconds = drain_seconds
        self._clock = clock
        # Those that live, in the order in which they began.
        self._children: list[ChildProcess] = []
        self._ending = asyncio.Event()
        self._telling: set[asyncio.Task[None]] = set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Keeps them running until they are to stop, or can't serve. Raises as `serve_by_processes`."""
        loop = asyncio.get_running_loop()
        keepers = [loop.create_task(self._keep(begin)) for begin in self._begins]
        stopped = loop.create_task(stopping.wait())
        try:
            await asyncio.wait((*keepers, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            await self._end(keepers)
        for error in [keeper.exception() for keeper in keepers]:
            if error is not None:
                raise error

    async def _end(self, keepers: list[asyncio.Task[None]]) -> None:
        self._ending.set()
        _log.info("ends its processes", extra={"count": len(self._children)})
        self._signal(signal.SIGTERM)
        if not await comes_within(self._clock, self._drain_seconds + _OVER_SECONDS, asyncio.wait(keepers)):
            _log.error("processes don't end and are killed", extra={"count": len(self._children)})
            self._signal(signal.SIGKILL)
            await asyncio.wait(keepers)

    def _signal(self, number: signal.Signals) -> None:
        for child in self._children:
            child.signal(number)

    async def _keep(self, begin: Begin) -> None:
        """Starts one child, and another one in its place whenever it has ended."""
        backoff, is_first = Backoff(0.1, 5.0), True
        while not self._ending.is_set():
            began = self._clock.monotonic()
            why = await self._run_one(begin, is_first=is_first)
            if self._ending.is_set():
                return
            if self._clock.monotonic() - began > _STEADY_SECONDS:
                backoff.reset()
            is_first, pause = False, backoff.next()
            _log.error(
                "a process of the proxy has ended and is started again",
                extra={"number": begin.number, "why": why, "pause_seconds": round(pause, 3)},
            )
            await comes_within(self._clock, pause, self._ending.wait())

    async def _run_one(self, begin: Begin, *, is_first: bool) -> str:
        """Starts a process and waits for its end. Returns why that was; raises what the proxy ends with."""
        try:
            child = await ChildProcess.start(begin, self._turn, self._asked_all, self._clock)
        except OSError as error:
            failed = MachineError(f"process {begin.number} of the proxy can't be started: {error}")
            if is_first or not self._serving:
                raise failed from error
            return failed.message
        self._children.append(child)
        if self._ending.is_set():  # meanwhile
            child.signal(signal.SIGTERM)
        code = await child.ended()
        self._children.remove(child)
        given_up = ended_for(begin.number, child.failed, code, served=child.started.is_set())
        if self._ending.is_set():
            if code not in (0, -signal.SIGTERM):  # by which it ends where it has not begun to listen to it
                _log.error("a process has not ended well", extra={"number": begin.number, "why": given_up.message})
            return given_up.message
        # What the first one in its place can't serve for is true of all: of settings, of ports.
        if (is_first and (child.failed is not None or not child.started.is_set())) or not (
            child.started.is_set() or self._serving
        ):
            raise given_up
        return given_up.message

    @property
    def _serving(self) -> int:
        return sum(child.started.is_set() for child in self._children)

    def _asked_all(self, child: ChildProcess, question: int) -> None:
        telling = asyncio.get_running_loop().create_task(self._tell_all(child, question))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)

    async def _tell_all(self, child: ChildProcess, question: int) -> None:
        facts = await asyncio.gather(*(of.facts() for of in self._children))
        child.say(FactsOfAll(question, tuple(of for of in facts if of)))


def ended_for(number: int, failed: Failed | None, code: int, *, served: bool) -> KeyholeError:
    """Why a child has ended, as an error: by its own word, or by its exit code where it has said nothing."""
    if failed is not None:
        return by_reason().get(failed.reason, InternalError)(failed.message)
    when = "" if served else " before it served; the log has what it said until then"
    return InternalError(f"process {number} of the proxy ended with {how_ended(code)}{when}", exit_code=code)
