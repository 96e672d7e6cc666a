"""`python -m services.client_proxy.processes.child PAIR TURN`: one process of a proxy. Only the parent starts it.

PAIR and TURN are descriptors: see ParentLink. The settings are the parent's environment.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from keyhole import logs
from keyhole.clock import Clock, SystemClock
from keyhole.config import ClientProxyConfig, load
from keyhole.discovery import discovery_of
from keyhole.errors import KeyholeError
from keyhole.rpc.server import run
from services.client_proxy.app import ClientProxy
from services.client_proxy.processes.parent_link import ParentLink
from services.client_proxy.processes.shares import share_of


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Returns the process's exit code. The parent says on stderr why it could not serve."""
    logs.tell_crashes()
    pair, turn = map(int, arguments)
    config = load(ClientProxyConfig, environ)
    logs.configure(config.log_level)
    return run(_until_ended(config, pair, turn))


async def _until_ended(config: ClientProxyConfig, pair: int, turn: int) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    # A terminal's Ctrl-C reaches the whole group; the parent ends this process then.
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    clock = SystemClock()
    link = await ParentLink.open(pair, turn, clock)
    for handler in logging.getLogger().handlers:
        handler.addFilter(functools.partial(_numbered, link.number))
    try:
        await _serve(config, link, clock, stopping)
    except KeyholeError as error:
        await link.failed(error)
        return 1
    finally:
        await link.close()
    return 0


async def _serve(config: ClientProxyConfig, link: ParentLink, clock: Clock, stopping: asyncio.Event) -> None:
    begin = link.begin
    there = dataclasses.replace(config, port=begin.port, http=begin.http, metrics=begin.metrics)
    discovery = discovery_of(config.servers)
    try:
        proxy = ClientProxy(share_of(there, begin.count), discovery, clock, link)
        await proxy.start()
        link.started()
        await proxy.run_until(stopping)
    finally:
        discovery.close()


def _numbered(number: int, record: logging.LogRecord) -> bool:
    record.proxy_process = number
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
