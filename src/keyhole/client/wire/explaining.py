"""Asks how one key is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.client.explanation import Explanation, explanation_from_proto
from keyhole.encoding.codec import StateCodec
from keyhole.model.read import ReadBounds
from keyhole.protocol.server_view import StateName
from keyhole.rpc import convert
from keyhole.v1 import query_pb2

if TYPE_CHECKING:
    from keyhole.client.options import Key
    from keyhole.client.wire.connection import Connection


async def explain(connection: Connection, name: StateName, key: Key, bounds: ReadBounds, seconds: float) -> Explanation:
    """The whole explanation, within `seconds`. Raises as AsyncClient.explain."""
    loop = connection.loop
    deadline = loop.time() + seconds
    application, state = name
    # It also has the connection made, which is not to count as a hop's time.
    descriptor = await connection.describe(application, state, seconds)
    request = query_pb2.ExplainRequest(
        state=query_pb2.StateRef(application=application, state=state),
        key=convert.key_to_proto((*descriptor.scan_key, *descriptor.entry_key), key),
        options=convert.bounds_to_proto(bounds),
    )
    began = loop.time()
    response: query_pb2.ExplainResponse = await connection.call("Explain", request, deadline - began)
    return explanation_from_proto(response, StateCodec(descriptor), loop.time() - began)
