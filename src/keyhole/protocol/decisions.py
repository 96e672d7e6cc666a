"""What the coordinator decides of a round: is its epoch staged, and what must each server commit? Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from keyhole.errors import InternalError, by_reason
from keyhole.protocol.receipts import GroupReceipt, PartitionReceipt, Target


@dataclass(frozen=True)
class ServerCommit:
    """What one server must hold of one state to commit: the winning attempts, and their sum per key group."""

    winners: tuple[tuple[int, int], ...]
    groups: tuple[GroupReceipt, ...]


@dataclass(frozen=True)
class Proceed:
    """All rows of the epoch are staged. By server, by state: what it must commit."""

    commits: Mapping[str, Mapping[str, ServerCommit]]


@dataclass(frozen=True)
class Restage:
    """Another round is needed; `suspects` are the servers that did not take their rows, with the reason."""

    suspects: Mapping[str, str]


def decide(
    receipts: Sequence[PartitionReceipt], partitions: Mapping[str, int], targets: Sequence[Target]
) -> Proceed | Restage:
    """Judges a round: do the receipts cover every partition of every state exactly once, and is all of it staged?

    Raises:
        KeyholeError: What a task has found wrong in the rows, by its receipt: no other round can help.
        InternalError: A partition is missing or came twice, or a key group came from two partitions (the rows of a key
            would have no order): the batch was not partitioned by the key.
    """
    for receipt in receipts:
        if receipt.failure is not None:
            reason, message, facts = receipt.failure
            error = by_reason()[reason](message)
            error.facts = facts
            raise error
    seen: dict[str, list[int]] = {}
    for receipt in receipts:
        seen.setdefault(receipt.state, []).append(receipt.partition)
    if seen.keys() != partitions.keys() or not all(_consecutive(seen[state], partitions[state]) for state in seen):
        wanted = sum(partitions.values())
        raise InternalError(
            f"the receipts of {len(receipts)} partitions don't cover the {wanted} of the batch once each"
        )
    suspects = {
        server.server: server.error[1] for receipt in receipts for server in receipt.servers if server.error is not None
    }
    if suspects:
        return Restage(suspects)
    _check_one_partition_per_group(receipts)
    return Proceed({target.server: _commits_of(target.server, receipts, partitions) for target in targets})


def _consecutive(numbers: Sequence[int], count: int) -> bool:
    """Whether they are so many, each once. They begin anywhere: Spark counts on where a job computes several states."""
    first = min(numbers)
    return sorted(numbers) == list(range(first, first + count))


def _check_one_partition_per_group(receipts: Sequence[PartitionReceipt]) -> None:
    origin: dict[tuple[str, int], int] = {}
    for receipt in receipts:
        for group in (group for server in receipt.servers for group in server.groups):
            if origin.setdefault((receipt.state, group.key_group), receipt.partition) != receipt.partition:
                raise InternalError(
                    f"key group {group.key_group} of state {receipt.state} came from two partitions of one batch"
                )


def _commits_of(server: str, receipts: Sequence[PartitionReceipt], states: Iterable[str]) -> dict[str, ServerCommit]:
    commits = {}
    for state in states:
        mine = [(r, s) for r in receipts if r.state == state for s in r.servers if s.server == server]
        commits[state] = ServerCommit(
            winners=tuple(sorted((receipt.partition, receipt.attempt_id) for receipt, _ in mine)),
            groups=tuple(sorted((g for _, s in mine for g in s.groups), key=lambda group: group.key_group)),
        )
    return commits
