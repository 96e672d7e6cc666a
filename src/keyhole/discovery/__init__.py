"""Where the servers are: a fixed list, the addresses of a DNS name, or the pods of a Kubernetes namespace."""

from __future__ import annotations

from keyhole.discovery.base import Discovery, StaticDiscovery
from keyhole.discovery.choice import discovery_of
from keyhole.discovery.following import FollowedServers

__all__ = ["Discovery", "FollowedServers", "StaticDiscovery", "discovery_of"]
