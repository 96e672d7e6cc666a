"""EpochTimes <-> keyhole.v1.EpochTimes. Pure; exact to a microsecond."""

from __future__ import annotations

from keyhole.model.epoch_times import EpochTimes
from keyhole.v1 import state_pb2 as pb


def epoch_times_to_proto(times: EpochTimes) -> pb.EpochTimes:
    """The message that says so; what can't be is said as 0."""
    return pb.EpochTimes(
        epoch=times.epoch,
        generation=times.generation,
        batch=times.batch,
        began_ms=times.began_ms,
        micros=_micros(times.seconds),
        converge_micros=_micros(times.converge),
        stage_micros=_micros(times.stage),
        commit_micros=_micros(times.commit),
        complete_micros=_micros(times.complete),
        rounds=times.rounds,
        replayed=times.replayed,
        batch_micros=_micros(times.batch_seconds),
    )


def epoch_times_from_proto(message: pb.EpochTimes) -> EpochTimes:
    """What a message of `epoch_times_to_proto` says."""
    return EpochTimes(
        epoch=message.epoch,
        generation=message.generation,
        batch=message.batch,
        began_ms=message.began_ms,
        seconds=message.micros / 1e6,
        converge=message.converge_micros / 1e6,
        stage=message.stage_micros / 1e6,
        commit=message.commit_micros / 1e6,
        complete=message.complete_micros / 1e6,
        rounds=message.rounds,
        replayed=message.replayed,
        batch_seconds=message.batch_micros / 1e6,
    )


def _micros(seconds: float) -> int:
    return max(0, round(seconds * 1e6))
