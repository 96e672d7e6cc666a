"""A server at the back of what a contract suite asks: the state server itself, and the shipped fake."""

from __future__ import annotations

from typing import Any, Protocol

from keyhole.model.state import StateDescriptor
from keyhole.testing.fake_server import FakeServer
from tests.support.state_servers import RunningServer


class Backend(Protocol):
    """The server at the back, and what the tests do to it."""

    @property
    def address(self) -> str: ...

    async def host(self, of: StateDescriptor) -> None:
        """The state, without a row."""

    async def commit(self, rows: Any) -> None:
        """The next epoch; the first one has number 1."""


class Fake:
    """The shipped fake."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._begun = False

    @property
    def address(self) -> str:
        return self._server.address

    async def host(self, of: StateDescriptor) -> None:
        self._state, self._begun = self._server.host(of), False

    async def commit(self, rows: Any) -> None:
        if self._begun:
            self._state.commit()
        self._begun = True
        for key, stored in rows.items():
            if stored is None:
                self._state.delete(key)
            else:
                self._state.put(key, stored)
        self._server.changed()


class Real:
    """The state server itself, through its whole write path."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    @property
    def address(self) -> str:
        return self._server.address

    async def host(self, of: StateDescriptor) -> None:
        await self._server.own(self._server.made_topic(of))

    async def commit(self, rows: Any) -> None:
        await self._server.commit(rows)
