"""State servers that only say figures, for tests and benchmarks of what reads these."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence

from keyhole.metrics.catalogue import of
from keyhole.metrics.counters import Histogram
from keyhole.metrics.families import Figures
from keyhole.metrics.metric import Component
from keyhole.metrics.serving import SERVICE, StatsServicer
from keyhole.rpc.server import RpcServer
from keyhole.v1 import state_pb2, stats_pb2_grpc
from keyhole.v1 import stats_pb2 as pb

APPLICATION = "simulated"


class SimulatedServer:
    """Says every metric of a state server, of so many states. Use it inside the running event loop."""

    def __init__(self, name: str, states: int, key_groups: Sequence[int], all_key_groups: int) -> None:
        self._rpc = RpcServer("simulated", "127.0.0.1", 0)
        self.stats = figures_of_a_server(name, states, key_groups, all_key_groups)

    @property
    def address(self) -> str:
        """Where its Stats are found, as host:port; known after `start`."""
        return self._rpc.address

    async def start(self) -> None:
        """Listens, and answers Stats.Read from then on."""
        self._rpc.add(stats_pb2_grpc.add_StatsServicer_to_server, StatsServicer(self._read), SERVICE)
        await self._rpc.start()

    async def stop(self) -> None:
        """Cuts off what is under way."""
        await self._rpc.stop(0)

    async def _read(self) -> pb.ReadStatsResponse:
        return self.stats


def figures_of_a_server(name: str, states: int, key_groups: Sequence[int], all_key_groups: int) -> pb.ReadStatsResponse:
    """All that a state server says that owns these key groups of each state."""
    names = [f"state-{number}" for number in range(states)]
    values: Mapping[str, Sequence[str]] = {
        "server": [name],
        "application": [APPLICATION],
        "state": names,
        "query": ["main"],
        "role": ["owner"],
        "reason": ["NOT_READY"],
        "refusal": ["denied"],
        "limit": ["keys"],
        "where": ["memory", "disk"],
        "field": ["n"],
        "version": ["0"],
    }
    figures = Figures()
    for metric in of(Component.STATE_SERVER):
        for labels in itertools.product(*(values[label] for label in metric.labels)):
            if metric.buckets:
                histogram = Histogram(metric.buckets)
                histogram.observe(metric.buckets[0])
                figures.observed(metric.name, labels, histogram)
            else:
                figures.add(metric.name, labels, 1)
    now_ms = round(time.time() * 1000)
    copies = [
        pb.StateCopy(
            application=APPLICATION,
            state=state,
            all_key_groups=all_key_groups,
            role=state_pb2.ROLE_OWNER,
            key_groups=key_groups,
            assigned_key_groups=key_groups,
            epoch=1,
            commit_time_ms=now_ms,
            as_of_ms=now_ms,
        )
        for state in names
    ]
    return pb.ReadStatsResponse(
        component=pb.COMPONENT_STATE_SERVER, name=name, families=figures.families(), copies=copies
    )
