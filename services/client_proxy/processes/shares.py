"""What each of a proxy's processes may take. Pure."""

from __future__ import annotations

from keyhole.config import ClientProxyConfig
from keyhole.rpc.processes.divided_limits import divided

_DIVIDED = (
    "max_scans",
    "max_caller_scans",
    "max_lookup_calls",
    "max_caller_lookup_calls",
    "max_lookup_keys",
    "max_caller_lookup_keys",
    "max_lookup_keys_per_second",
    "max_caller_lookup_keys_per_second",
)


def share_of(config: ClientProxyConfig, count: int) -> ClientProxyConfig:
    """The settings of one of `count` processes: of each limit of callers its part, rounded up. 0 stays no limit."""
    return divided(config, _DIVIDED, count)
