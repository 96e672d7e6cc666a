"""What a state server says of one key when it is asked how the key is read: its answer, and its own copy."""

from __future__ import annotations

from keyhole.encoding.storage_key import group_of
from keyhole.errors import EpochGone, UnavailableError, ValueMismatch
from keyhole.rpc.explanations import copy_in
from keyhole.rpc.read_requests import lookup_of_keys
from keyhole.rpc.status import to_proto
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import state_pb2
from services.state_server.read.table import Table
from services.state_server.servicers.lookup_responses import many_answers


def explained(table: Table, request: pb.ExplainRequest, status: pb.ServerStatus) -> pb.ExplainResponse:
    """The response, without times. That the key has no answer here is no error of the call.

    Args:
        status: The server's status.

    Raises:
        KeyholeError: The key is none of the state, or the options are not known here.
    """
    lookup = lookup_of_keys(pb.GetManyRequest(state=request.state, keys=[request.key], options=request.options))
    group = group_of(table.codec.storage_keys(lookup.keys)[0])
    response = pb.ExplainResponse(key_group=group)
    try:
        response.answer.CopyFrom(many_answers(table, lookup)[0])
    except (UnavailableError, EpochGone, ValueMismatch) as error:
        response.error.CopyFrom(to_proto(error))
    copy = copy_in(status, lookup.state, group)
    if copy.HasField("source"):
        copy.owner = copy.source.role == state_pb2.ROLE_OWNER
        response.copies.append(copy)
    return response
