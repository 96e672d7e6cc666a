"""Asks each state server for the second phase of an epoch, and reads what all of them say once they have committed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from keyhole.errors import ReplayDiffers
from keyhole.model.epoch import EpochStamp
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import CompleteRecord
from keyhole.protocol.decisions import Proceed
from keyhole.protocol.epochs import EpochBatch
from keyhole.protocol.receipts import StageOrder
from keyhole.rpc.convert_stamps import put_written_stamp
from keyhole.rpc.convert_writes import run_to_proto, state_commit_to_proto
from keyhole.v1 import state_server_pb2 as pb

_log = logging.getLogger(__name__)


def commit_requests(
    batch: EpochBatch, order: StageOrder, proceed: Proceed, stamp: EpochStamp
) -> dict[str, pb.CommitRequest]:
    """Makes the Commit of what was staged as `order` said, for each server that owns a key group, by its name."""
    # Others among the targets only follow.
    owners = {index for routes in order.routes.values() for index in routes}
    next_watermark_ms = batch.next_watermark_ms() if batch.next_watermark_ms else batch.watermark_ms
    requests = {
        target.server: pb.CommitRequest(
            run=run_to_proto(order.run),
            incarnation=target.incarnation,
            assignment_version=order.assignment_version,
            round=order.round,
            states=[
                state_commit_to_proto(
                    plan.descriptor.state,
                    proceed.commits[target.server][plan.descriptor.state],
                    order.replaces(plan.descriptor.state),
                )
                for plan in batch.states
            ],
            next_watermark_ms=next_watermark_ms,
            offsets_hash=batch.offsets_hash,
        )
        for index, target in enumerate(order.targets)
        if index in owners
    }
    for request in requests.values():
        put_written_stamp(stamp, request)
    return requests


class Committed:
    """Reads the answers of all servers to one epoch's Commit."""

    def __init__(self, query: str, epoch: int, responses: Sequence[pb.CommitResponse]) -> None:
        self._query = query
        self._epoch = epoch
        self._responses = responses
        self._already = [group for response in responses for group in response.already_committed]

    @property
    def replayed(self) -> bool:
        """Whether some of its key groups had it already."""
        return bool(self._already)

    def markers(
        self, before: CompleteRecord | None, descriptors: Mapping[str, StateDescriptor]
    ) -> dict[str, list[int]]:
        """Returns, by state and key group, the offset of the last marker in the changelog; -1: there is none.

        Args:
            before: The record of the last complete epoch: key groups that this one did not touch keep their marker.
        """
        markers = {
            name: list(before.markers[name]) if before and name in before.markers else [-1] * descriptor.key_groups
            for name, descriptor in descriptors.items()
        }
        for group in (group for r in self._responses for group in (*r.committed, *r.already_committed)):
            markers[group.state][group.key_group] = group.marker_offset
        return markers

    def report_differences(self, *, evolved: bool, strict: bool) -> None:
        """Logs key groups that had other rows of the epoch than the replay gave.

        Args:
            evolved: Rows are written otherwise since, so that all of them differ.

        Raises:
            ReplayDiffers: With `strict`.
        """
        differing = [group for group in self._already if group.differs]
        if not differing:
            return
        if evolved:
            _log.info("an epoch of an earlier schema stays as it was committed", extra={"query": self._query})
            return
        names = ", ".join(f"{group.state} key group {group.key_group}" for group in differing[:10])
        message = (
            f"epoch {self._epoch} of query {self._query!r} was run again and gave other rows than were committed, "
            f"in {names}. The batch is not deterministic: exactly once does not hold for it. What was committed stays. "
            "Make its rows depend on its source alone, not on time, chance or the order of rows (docs/spark.md); to go "
            "on with what was committed, start the job with strict=False"
        )
        _log.error("a replay differs", extra={"query": self._query, "epoch": self._epoch, "which": names})
        if strict:
            raise ReplayDiffers(message, epoch=self._epoch)
