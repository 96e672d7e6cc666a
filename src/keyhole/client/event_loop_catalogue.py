"""What AsyncClient says of states and servers, without reading any rows."""

# ruff: noqa: ASYNC109 - a timeout is part of the request: it travels to the server, which then stops working on it

from __future__ import annotations

from keyhole.client.bounds import Duration
from keyhole.client.event_loop_client import EventLoopClient
from keyhole.client.server_status import ServerStatus, status_from_proto
from keyhole.encoding.codec import StateCodec
from keyhole.model.given import check_name
from keyhole.model.state import StateDescriptor
from keyhole.rpc import convert
from keyhole.v1 import query_pb2


class EventLoopCatalogue(EventLoopClient):
    """The quarter of AsyncClient that asks of states and servers; see the module's text."""

    def known(self, application: str, state: str) -> StateCodec | None:
        """As the reads of this client encode the state's keys; None: none has been answered yet. Any thread."""
        connection = self._connection
        return None if connection is None else connection.known(application, state)

    async def list_states(self, application: str = "", *, timeout: Duration | None = None) -> list[StateDescriptor]:
        """All states of an application, of all applications if it is empty.

        Args:
            timeout: Seconds (or a timedelta); default: the client's.

        Raises:
            KeyholeError: As `get`.
        """
        connection = self._here()
        check_name("application", application)
        request = query_pb2.ListStatesRequest(application=application)
        response: query_pb2.ListStatesResponse = await connection.call("ListStates", request, self._seconds(timeout))
        return [convert.descriptor_from_proto(message) for message in response.states]

    async def describe_state(self, application: str, state: str, *, timeout: Duration | None = None) -> StateDescriptor:
        """What a state is: its key, its schema, its number of key groups.

        Args:
            timeout: Seconds (or a timedelta); default: the client's.

        Raises:
            UnknownApplication, UnknownState: The message names those that exist.
            KeyholeError: As `get`.
        """
        return await self._here().describe(application, state, self._seconds(timeout))

    async def status(self, *, timeout: Duration | None = None) -> list[ServerStatus]:
        """All servers that the target knows, with what they hold; those it can't reach with the reason.

        Args:
            timeout: Seconds (or a timedelta); default: the client's.

        Raises:
            KeyholeError: As `get`.
        """
        connection = self._here()
        response: query_pb2.StatusResponse = await connection.call(
            "Status", query_pb2.StatusRequest(), self._seconds(timeout)
        )
        return [status_from_proto(message) for message in response.servers]
