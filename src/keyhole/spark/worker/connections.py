"""How a Python worker reaches state servers: one channel for each, kept for the life of the worker's process."""

from __future__ import annotations

import functools

import grpc

from keyhole.coordinator.task_stream import Connect
from keyhole.protocol.receipts import StageOrder
from keyhole.rpc.channels import sync_channel
from keyhole.security.credentials import Credentials


def connecting(order: StageOrder) -> Connect:
    """How a task of the order connects to its servers."""
    return functools.partial(_channel, credentials=order.credentials)


@functools.lru_cache(maxsize=64)
def _channel(address: str, credentials: Credentials) -> grpc.Channel:
    """For all tasks of the process, of which Spark runs many.

    Spark forks its workers from a daemon that has never opened a channel, so none is ever shared by two processes.
    """
    return sync_channel(address, credentials)
