"""EpochStamp <-> the messages of keyhole.v1 that bear its fields: what an epoch is known by on the wire. Lossless,
pure."""

from __future__ import annotations

from keyhole.model.epoch import NO_EPOCH, EpochStamp
from keyhole.v1 import query_pb2, state_pb2, stats_pb2
from keyhole.v1 import state_server_pb2 as pb


def put_stamp(stamp: EpochStamp, message: state_pb2.Source | stats_pb2.StateCopy) -> None:
    """Sets what an answer, or the figures of a copy, say of their epoch."""
    message.epoch = stamp.epoch
    message.generation = stamp.generation
    message.commit_time_ms = stamp.commit_time_ms
    message.watermark_ms = stamp.watermark_ms


def put_watched_stamp(stamp: EpochStamp, message: query_pb2.WatchResponse | query_pb2.WatchedChanges) -> None:
    """Sets up to which epoch a watch has been sent all, or of which epoch changes are. Its generation is not said."""
    message.epoch = stamp.epoch
    message.commit_time_ms = stamp.commit_time_ms
    message.watermark_ms = stamp.watermark_ms


def watched_stamp(message: query_pb2.WatchResponse | query_pb2.WatchedChanges) -> EpochStamp:
    """The inverse, but for the generation: 0, as it is not said."""
    return EpochStamp(message.epoch, 0, message.commit_time_ms, message.watermark_ms)


def put_written_stamp(stamp: EpochStamp, message: pb.CommitRequest | pb.ReadBaseRequest) -> None:
    """Sets which epoch is written. Its generation is that of the message's run."""
    message.epoch = stamp.epoch
    message.commit_time_ms = stamp.commit_time_ms
    message.watermark_ms = stamp.watermark_ms


def written_stamp(message: pb.CommitRequest | pb.ReadBaseRequest) -> EpochStamp:
    """The stamp that `put_written_stamp` has set, of the generation of the message's run."""
    return EpochStamp(message.epoch, message.run.generation, message.commit_time_ms, message.watermark_ms)


def put_complete_stamp(stamp: EpochStamp | None, message: pb.AssignRequest | pb.ConfirmRequest) -> None:
    """Sets which epoch is complete; None: none is. Its generation is not said, nor its watermark by a Confirm."""
    stamp = stamp or NO_EPOCH
    message.complete_epoch = stamp.epoch
    message.complete_commit_time_ms = stamp.commit_time_ms
    if isinstance(message, pb.AssignRequest):
        message.complete_watermark_ms = stamp.watermark_ms


def complete_stamp(message: pb.AssignRequest) -> EpochStamp:
    """The inverse, but for the generation: it is that of the message's run, which the owner is to answer for."""
    generation = message.run.generation
    return EpochStamp(
        message.complete_epoch, generation, message.complete_commit_time_ms, message.complete_watermark_ms
    )
