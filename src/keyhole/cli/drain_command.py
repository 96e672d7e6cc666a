"""`keyhole drain SERVER`: has a state server give its key groups to others, before its machine is touched, say."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from keyhole import Client
from keyhole.cli.patience import look_until
from keyhole.client.server_status import ServerStatus
from keyhole.errors import NoServer, Unsupported
from keyhole.rpc.draining import drain
from keyhole.security.credentials import Credentials
from keyhole.terminal.json_output import print_json


def run(options: argparse.Namespace, credentials: Credentials, *, as_json: bool) -> int:
    """Exit code 1 where the server still owns key groups as the time is over.

    Raises:
        NoServer: There is none of this name, or it can't be reached.
        Unsupported: It is a replica, which owns nothing.
        KeyholeError: As keyhole.rpc.draining.drain.
    """
    with Client(options.proxy, timeout=options.timeout, credentials=credentials) as client:
        address = staying_server(options.server, client.status()).address
    now = drain(address, undo=options.undo, timeout_seconds=options.timeout, credentials=credentials)
    if not options.undo and now.owns and options.wait:
        now = look_until(
            lambda seen: not (seen.draining and seen.owns),
            lambda: drain(address, look=True, timeout_seconds=options.timeout, credentials=credentials),
            now,
            options.wait,
            f"waiting until others own what {options.server} owns",
        )
    left = now.draining and now.owns
    if as_json:
        print_json({"server": options.server, "draining": now.draining, "owns": now.owns})
    elif not now.draining:
        print(f"{options.server} takes key groups again; jobs share them evenly within seconds")
    elif left:
        print(
            f"{options.server} still owns key groups: their reads would fail without it. Others take them over as soon "
            "as they have copies, while the job runs and where there is another server that does not drain; `keyhole "
            "status --watch` shows it"
        )
    else:
        print(f"{options.server} owns no key group, and gets none until `keyhole drain {options.server} --undo`")
    return 1 if left and options.wait else 0


def staying_server(named: str, servers: Sequence[ServerStatus]) -> ServerStatus:
    """The server of this id or address, which can own key groups. Raises NoServer or Unsupported: see `run`."""
    for status in servers:
        if named not in (status.server, status.address):
            continue
        if status.unreachable:
            raise NoServer(f"server {named} can't be reached: {status.unreachable}")
        if status.replica:
            raise Unsupported(f"server {named} is a replica: it owns nothing, and may be ended at any time")
        return status
    known = ", ".join(sorted(status.server or status.address for status in servers))
    raise NoServer(f"there is no state server {named}; there are {known or 'none'}")
