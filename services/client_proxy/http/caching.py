"""How long the answer to one key may be kept, and by what one is known again: HTTP caching (RFC 9111, RFC 9110)."""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from keyhole.model.read import Stale
from keyhole.model.state import StateDescriptor
from keyhole.protocol.server_view import StateName
from keyhole.rpc.convert import bounds_from_proto
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import state_pb2

MOST_SECONDS = 60.0
"""The next epoch may come earlier than the last ones did."""

_MOST_STATES = 4_096
_KEPT = 8


@dataclass
class _Commits:
    """The newest epoch that was seen of a state, and how far apart the last ones were, in seconds."""

    epoch: int
    seconds: float
    apart: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))


class EpochPace:
    """How far apart a state's epochs are, as its answers show it. Event loop's thread only."""

    def __init__(self) -> None:
        self._commits: dict[tuple[StateName, int], _Commits] = {}

    def note(self, name: StateName, source: state_pb2.Source) -> None:
        """Takes in when the epoch of an answer was committed."""
        if not source.epoch or not source.commit_time_ms:
            return
        # A run that comes after another one may begin with another interval.
        key, seconds = (name, source.generation), source.commit_time_ms / 1000
        known = self._commits.get(key)
        if known is None:
            if len(self._commits) >= _MOST_STATES:
                del self._commits[next(iter(self._commits))]
            self._commits[key] = _Commits(source.epoch, seconds)
        elif source.epoch > known.epoch:
            known.apart.append(max(0.0, seconds - known.seconds) / (source.epoch - known.epoch))
            known.epoch, known.seconds = source.epoch, seconds

    def seconds(self, name: StateName, generation: int) -> float | None:
        """The shortest of the last ones; None: fewer than two epochs were seen."""
        known = self._commits.get((name, generation))
        return min(known.apart) if known is not None and known.apart else None


def tag_of(descriptor: StateDescriptor, key: pb.Key, answer: pb.Answer, *, integers_as_text: bool) -> str:
    """What an ETag says between its quotes: another one wherever the answer says anything else than how old it is.

    It is a weak one (RFC 9110, 8.8.1): `staleness_seconds` and `as_of` go on without another value, and any server may
    have answered.
    """
    source = answer.source
    identity = (
        descriptor.application,
        descriptor.state,
        descriptor.topic_id,
        key.SerializeToString(deterministic=True),
        integers_as_text,
        answer.found,
        answer.value,
        source.epoch,
        source.generation,
        source.role,
        source.unconfirmed,
        source.lag_epochs,
        source.staged_epoch,
    )
    digest = hashlib.blake2b(repr(identity).encode(), digest_size=15).digest()
    return base64.urlsafe_b64encode(digest).decode()


def fresh_seconds(
    descriptor: StateDescriptor, options: pb.ReadOptions, source: state_pb2.Source, pace: float | None, now_ms: int
) -> int:
    """For so long the answer is as good as a new one: until the next epoch is due, and within the reader's bounds.

    0: it must be asked for again. So it is of a copy that lacks something, where the reader wants the confirmed owner
    alone or the latest, and where updates come, or rows expire, at any time.

    Args:
        pace: How far apart the state's epochs are, in seconds; None: not known.
        now_ms: Milliseconds since 1970, UTC.
    """
    bounds = bounds_from_proto(options)
    lacks = source.unconfirmed or source.lag_epochs or source.role != state_pb2.ROLE_OWNER
    at_any_time = descriptor.updates_topic_id or descriptor.ttl_ms
    if pace is None or at_any_time or lacks or bounds.stale is Stale.NEVER or bounds.latest:
        return 0
    # By two clocks: the driver's may be ahead.
    left_ms = min(pace * 1000, MOST_SECONDS * 1000, source.commit_time_ms + pace * 1000 - now_ms)
    if bounds.max_staleness_ms:
        left_ms = min(left_ms, source.as_of_ms + bounds.max_staleness_ms - now_ms)
    return max(0, int(left_ms / 1000))


def control(seconds: int, *, private: bool) -> str:
    """What Cache-Control says. `private`: others may be answered otherwise, so that shared caches keep nothing."""
    kept = f"max-age={seconds}" if seconds else "no-cache"
    return f"private, {kept}" if private else kept


def is_known(tag: str, known: Collection[str] | None) -> bool:
    """Whether who asks has this answer already. `known`: the tags of `If-None-Match`, where `*` stands for any."""
    return known is not None and (tag in known or "*" in known)
