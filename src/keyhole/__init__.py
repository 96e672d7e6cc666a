"""Keyhole: the live state of a Spark streaming job, readable per key in milliseconds.

    async with keyhole.AsyncClient("localhost:7400") as client:
        answer = await client.get("temperature-monitor", "sensors", "sensor-42")

Importing this loads nothing else: the client comes with its first use, and needs the extra `client`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from keyhole.errors import KeyholeError
from keyhole.model import aggregates
from keyhole.model.aggregate_answer import AggregateAnswer
from keyhole.model.change import ChangeKind, StateChange
from keyhole.model.predicates import Predicate, field
from keyhole.model.read import Answer, Entries, Entry, KeyedEntry, Source, Stale
from keyhole.model.state import StateDescriptor
from keyhole.security.credentials import Credentials

if TYPE_CHECKING:
    from keyhole.client import AsyncClient, Client, ServerStatus, StateHolding

__all__ = [
    "AggregateAnswer",
    "Answer",
    "AsyncClient",
    "ChangeKind",
    "Client",
    "Credentials",
    "Entries",
    "Entry",
    "KeyedEntry",
    "KeyholeError",
    "Predicate",
    "ServerStatus",
    "Source",
    "Stale",
    "StateChange",
    "StateDescriptor",
    "StateHolding",
    "aggregates",
    "field",
]

_FROM_CLIENT = frozenset({"AsyncClient", "Client", "ServerStatus", "StateHolding"})


def __getattr__(name: str) -> Any:
    if name in _FROM_CLIENT:
        return getattr(importlib.import_module("keyhole.client"), name)
    raise AttributeError(f"module 'keyhole' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_FROM_CLIENT])
