"""The client library. Needs the extra `client`; neither Spark nor Kafka."""

import keyhole.rpc  # noqa: F401 - before anything imports grpc
from keyhole.client.async_client import AsyncClient
from keyhole.client.mirrors import AsyncMirror, Mirror
from keyhole.client.server_status import ServerStatus, StateHolding
from keyhole.client.snapshots import AsyncStateSnapshot, StateSnapshot
from keyhole.client.state_handles import AsyncState, State
from keyhole.client.state_watches import AsyncWatch, Watch
from keyhole.client.sync_client import Client
from keyhole.client.typed_values import TypedAnswer, TypedEntries

__all__ = [
    "AsyncClient",
    "AsyncMirror",
    "AsyncState",
    "AsyncStateSnapshot",
    "AsyncWatch",
    "Client",
    "Mirror",
    "ServerStatus",
    "State",
    "StateHolding",
    "StateSnapshot",
    "TypedAnswer",
    "TypedEntries",
    "Watch",
]
