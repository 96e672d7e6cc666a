"""The reader processes of a server: it starts them, gives them connections, tells them what it shows, and ends them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable

from keyhole.backoff import Backoff
from keyhole.clock import Clock
from keyhole.config import StateServerConfig
from keyhole.errors import KeyholeError, NotReady
from keyhole.rpc.processes.children import how_ended
from keyhole.rpc.processes.coming import comes_within
from keyhole.rpc.processes.word_framing import framed
from keyhole.rpc.read_admission import ReadAdmission
from keyhole.stores.base import SharedStore, shared_store
from services.state_server.read.table import Table
from services.state_server.readers.counted import add_report
from services.state_server.readers.reader_process import AnswerPassedOn, ReaderProcess
from services.state_server.readers.reader_settings import environ_of
from services.state_server.readers.reader_words import BeginReader, CopiesBehind, Drain, End, ReaderReport, Shown
from services.state_server.readers.shared_count import SharedCount
from services.state_server.readers.shown_tables import ShownTables
from services.state_server.registry import Registry

_log = logging.getLogger(__name__)

_END_SECONDS = 5.0
"""A reader that has not ended by then is killed."""
_STEADY_SECONDS = 60.0
"""One that has lived for so long is started again at once, as one that has never failed."""


class ReaderGroup:
    """See the module's text. Event loop's thread only.

    A reader that ends is started again, and meanwhile others, this process at last, serve what comes. None of them can
    end the server.

    Args:
        count: Of all processes that answer lookups, this one included.

    Attributes:
        tables: What readers are sent of tables.
    """

    def __init__(
        self, config: StateServerConfig, count: int, incarnation: str, registry: Registry, clock: Clock
    ) -> None:
        self._config = config
        self._begins = [BeginReader(number, count, incarnation) for number in range(1, count)]
        self._registry = registry
        self._clock = clock
        self._memory = SharedCount.make()
        self.tables = ShownTables(self._memory, self._tell)
        self._readers: list[ReaderProcess] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._renewing: dict[Table, asyncio.Task[None]] = {}
        self._ending = asyncio.Event()
        self._draining = False
        # Connections may come before `start`: until then there is no reader to take any.
        self._own_connections: Callable[[], int] = lambda: 0

    def start(self, answer: AnswerPassedOn, admission: ReadAdmission, own_connections: Callable[[], int]) -> None:
        """Starts them all; they serve some time later.

        Args:
            answer: Answers what was passed on.
            admission: The server's, to which is added what readers have refused.
            own_connections: How many this process serves.
        """
        self._answer, self._admission, self._own_connections = answer, admission, own_connections
        self._registry.counts.reader_processes = 1
        self._keepers = [asyncio.get_running_loop().create_task(self._keep(begin)) for begin in self._begins]

    def take(self, connection: socket.socket) -> bool:
        """Gives a connection to the reader with the fewest. False: this process has fewer, or no reader takes it."""
        free = sorted((of for of in self._readers if of.started.is_set()), key=lambda of: of.connections)
        # This one writes as well, and answers what readers can't.
        fewer = self._own_connections()
        return not self._draining and any(of.take(connection) for of in free if of.connections <= fewer)

    def drain(self) -> None:
        """Their callers are told to ask by gRPC. Idempotent."""
        self._draining = True
        for reader in self._readers:
            reader.say(Drain())

    async def stop(self) -> None:
        """Ends them all, and returns once they have ended: they read nothing any more. Idempotent."""
        self._ending.set()
        self._draining = True
        for reader in self._readers:
            reader.say(End())
        if self._keepers:
            ended = asyncio.gather(*self._keepers, return_exceptions=True)
            if not await comes_within(self._clock, _END_SECONDS, asyncio.shield(ended)):
                for reader in self._readers:
                    reader.kill()
            await ended
            self._keepers = []
            # They may stand behind a restore, which only the stores' end stops.
            for renewing in self._renewing.values():
                renewing.cancel()
            await asyncio.gather(*self._renewing.values(), return_exceptions=True)
            self.tables.end()
            self._memory.close()

    def _tell(self, shown: Shown) -> None:
        word = framed(shown)
        for reader in self._readers:
            reader.tell(word)

    async def _keep(self, begin: BeginReader) -> None:
        """Starts one, and another one in its place whenever it has ended."""
        backoff = Backoff(0.1, 5.0)
        while not self._ending.is_set():
            began = self._clock.monotonic()
            try:
                why = await self._run_one(begin)
            except Exception as error:  # noqa: BLE001 - the top of a task, without which no other one would be started
                _log.exception("a reader process could not be kept", extra={"number": begin.number})
                why = str(error)
            if self._ending.is_set():
                return
            if self._clock.monotonic() - began > _STEADY_SECONDS:
                backoff.reset()
            pause = backoff.next()
            _log.error(
                "a reader process has ended and is started again",
                extra={"number": begin.number, "why": why, "pause_seconds": round(pause, 3)},
            )
            await comes_within(self._clock, pause, self._ending.wait())

    async def _run_one(self, begin: BeginReader) -> str:
        environ = environ_of(self._config, os.environ)
        try:
            reader = await ReaderProcess.start(
                begin.number, self._memory.descriptor, environ, self._answer, self._reported, self._clock
            )
        except OSError as error:
            return f"it can't be started: {error}"
        # In one step: it is sent each change that is not in the first word.
        self._readers.append(reader)
        reader.say(begin)
        reader.say(self.tables.all())
        if self._ending.is_set():  # meanwhile
            reader.say(End())
        try:
            return how_ended(await reader.ended())
        finally:
            self._readers.remove(reader)
            self._count()
            await asyncio.to_thread(_forget_readers, self._stores())

    def _reported(self, report: ReaderReport) -> None:
        add_report(report, self._registry, self._admission)
        self._count()
        if self._ending.is_set():
            return
        behind = {of.number: of for of in report.behind}
        for number, table in self.tables.numbered(behind).items():
            if table not in self._renewing:
                self._renewing[table] = asyncio.get_running_loop().create_task(self._renew(table, behind[number]))

    async def _renew(self, table: Table, behind: CopiesBehind) -> None:
        """For a reader that has begun too late: an idle query has no next epoch to show it something by."""
        try:
            # Of a copy that is not asked for, another reader may have a view: it would have to begin a later one.
            await self._registry.renew(table, owned=behind.owned, followed=behind.standby)
        except NotReady:
            pass  # its query is being forgotten
        except KeyholeError as error:  # the reader asks again
            _log.info("a state can't be shown to a reader process", extra={"state": table.name, "why": error.message})
        except Exception:  # noqa: BLE001 - the top of a task
            _log.exception("a state can't be shown to a reader process", extra={"state": table.name})
        finally:
            del self._renewing[table]

    def _count(self) -> None:
        counts, last = self._registry.counts, [of.last for of in self._readers if of.last is not None]
        counts.reader_processes = 1 + sum(of.started.is_set() for of in self._readers)
        counts.reader_calls = sum(of.calls for of in last)
        counts.reader_resident_bytes = sum(of.resident_bytes for of in last)

    def _stores(self) -> list[SharedStore]:
        found = [shared_store(table.store) for table in self._registry.tables.values()]
        return [store for store in found if store is not None]


def _forget_readers(stores: list[SharedStore]) -> None:
    """A reader that was killed would keep old pages of each of them."""
    for store in stores:
        try:
            store.forget_ended_readers()
        except KeyholeError as error:  # it is being closed
            _log.info("what a reader process has kept was not looked for", extra={"why": error.message})
