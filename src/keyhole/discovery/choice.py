"""From a setting to what follows it."""

from __future__ import annotations

from collections.abc import Iterable

from keyhole.discovery import parse as spelling
from keyhole.discovery.dns import DnsSource
from keyhole.discovery.following import AddressSource, FollowedServers
from keyhole.discovery.kubernetes.api import ConnectApi, PodSource, connect_api


def discovery_of(servers: Iterable[str] | str, *, connect: ConnectApi = connect_api) -> FollowedServers:
    """Finds the servers as the setting spells them (see spelling.py). Nothing is asked before its first use.

    Args:
        servers: Entries, or a text with commas between them.
        connect: How the Kubernetes API is reached; default: as a pod of it, else by the file that KUBECONFIG names.

    Raises:
        InvalidConfiguration: No entry, or one that is spelled otherwise.
    """
    servers = servers if isinstance(servers, str) else ",".join(servers)
    entries = spelling.read(servers)
    sources: list[AddressSource] = [DnsSource(entry) for entry in entries if isinstance(entry, spelling.DnsName)]
    sources += [PodSource(entry, connect) for entry in entries if isinstance(entry, spelling.Pods)]
    fixed = [entry.text for entry in entries if isinstance(entry, spelling.Address)]
    return FollowedServers(fixed, sources, servers)
