"""What a query and its state servers say to each other of an epoch <-> keyhole.v1: runs, receipts, bases. Lossless,
pure."""

from __future__ import annotations

from keyhole.encoding.envelope import Base
from keyhole.model.epoch import Run
from keyhole.protocol.decisions import ServerCommit
from keyhole.protocol.receipts import GroupReceipt
from keyhole.v1 import state_server_pb2

_REPLACES = {state_server_pb2.STAGE_EFFECT_REPLACES: True, state_server_pb2.STAGE_EFFECT_MERGES: False}


def run_to_proto(run: Run) -> state_server_pb2.Run:
    """The run that a message comes from, or is for."""
    return state_server_pb2.Run(
        application=run.application, query=run.query, generation=run.generation, run_id=run.run_id
    )


def run_from_proto(message: state_server_pb2.Run) -> Run:
    """The run of a message that `run_to_proto` made."""
    return Run(message.application, message.query, message.generation, message.run_id)


def receipt_to_proto(receipt: GroupReceipt) -> state_server_pb2.KeyGroupReceipt:
    """What is staged of a key group."""
    return state_server_pb2.KeyGroupReceipt(
        key_group=receipt.key_group, rows=receipt.rows, bytes=receipt.bytes, checksum=receipt.checksum
    )


def receipt_from_proto(message: state_server_pb2.KeyGroupReceipt) -> GroupReceipt:
    """The receipt of a message that `receipt_to_proto` made."""
    return GroupReceipt(message.key_group, message.rows, message.bytes, message.checksum)


def effect_to_proto(replaces: bool) -> state_server_pb2.StageEffect.ValueType:
    """What is to become of staged rows. `replaces`: they are all that the state holds from then on."""
    return state_server_pb2.STAGE_EFFECT_REPLACES if replaces else state_server_pb2.STAGE_EFFECT_MERGES


def replaces_from_proto(effect: state_server_pb2.StageEffect.ValueType) -> bool | None:
    """What `effect_to_proto` was given; None: the task is of a version that does not say."""
    return _REPLACES.get(effect)


def state_commit_to_proto(state: str, commit: ServerCommit, replace: bool) -> state_server_pb2.StateCommit:
    """One state's part of a Commit. `replace`: its rows are all that the state holds from now on."""
    return state_server_pb2.StateCommit(
        state=state,
        winners=[state_server_pb2.Winner(partition=p, attempt_id=a) for p, a in commit.winners],
        receipts=map(receipt_to_proto, commit.groups),
        replace=replace,
    )


def base_to_proto(base: Base | None) -> state_server_pb2.Base:
    """What a key is merged with; None: nothing."""
    if base is None:
        return state_server_pb2.Base()
    return state_server_pb2.Base(found=True, accumulator=base.accumulator, version=base.version)


def base_from_proto(message: state_server_pb2.Base) -> Base | None:
    """The base of a message that `base_to_proto` made; None: the key had none."""
    return Base(message.accumulator, message.version) if message.found else None
