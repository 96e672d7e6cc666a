"""What a lookup is answered: what a table has of its keys, as the messages of a frame, or of Get and GetMany."""

from __future__ import annotations

from collections.abc import Sequence

from keyhole.errors import EpochGone, KeyholeError, KeyTooLong, StaleDescriptor, UnavailableError, ValueMismatch
from keyhole.rpc.frames import MAX_VALUE_BYTES, AskAgain, Failure, check_answer, cut_to_frame, failures_to_proto
from keyhole.rpc.read_requests import KeyLookup
from keyhole.rpc.status import to_proto
from keyhole.v1 import query_pb2 as pb
from services.state_server.read.apart import lookup_apart
from services.state_server.read.copy_answers import CopyAnswers
from services.state_server.read.table import Table


def frame_response(table: Table, lookup: KeyLookup, frame: int) -> pb.LookupResponse:
    """The answer to a frame of a Lookup stream. Keys that have none, or no room for it, stand as its failures.

    Raises:
        KeyMismatch, NullKey, StaleDescriptor: The keys are none of the state.
        KeyholeError: As Table.lookup, but for what fails key group by key group, or key by key.
    """
    keys = _storage_keys(table, lookup)
    try:
        answers = table.lookup(keys, lookup.bounds)
    except (UnavailableError, EpochGone, KeyTooLong, ValueMismatch):
        # Other keys, which travelled with them, must neither wait for these nor fail with them.
        answers = lookup_apart(table, keys, lookup.bounds)
    return _response(table, lookup, frame, keys, answers)


def whole_response(table: Table, lookup: KeyLookup, frame: int) -> pb.LookupResponse:
    """As `frame_response`, where all keys can be answered alike.

    Raises:
        KeyholeError: One of them has no answer.
    """
    keys = _storage_keys(table, lookup)
    return _response(table, lookup, frame, keys, table.lookup(keys, lookup.bounds))


def _response(
    table: Table, lookup: KeyLookup, frame: int, keys: Sequence[bytes], answers: CopyAnswers
) -> pb.LookupResponse:
    # A row is never empty, so empty bytes mean absent.
    values = [row or b"" for row in answers.rows]
    failures: dict[int, Failure] = dict(answers.failures)
    source_of = answers.source_of
    if lookup.as_json:
        values = table.codec.rows.each_to_json(values)
    if answers.large or lookup.as_json or len(values) < len(keys):
        unread = [*answers.unread, *range(len(values), len(keys))]
        missing = len(keys) - len(values)
        values += [b""] * missing
        source_of = [*source_of, *[0] * missing] if source_of else source_of
        failures |= cut_to_frame(table.name, values, unread=unread)
    for failure in failures.values():
        if not isinstance(failure, AskAgain):
            table.reads.failed[failure.reason] += 1
    return pb.LookupResponse(
        frame=frame,
        values=values,
        sources=answers.sources,
        source_of=source_of or None,
        failures=failures_to_proto(failures) if failures else None,
    )


def refused_frame(request: pb.LookupRequest, error: KeyholeError, count: int) -> pb.LookupResponse:
    """The answer to a frame that has failed as a whole, of so many keys."""
    return pb.LookupResponse(
        frame=request.frame, values=[b""] * count, failures=[pb.LookupFailure(error=to_proto(error))]
    )


def many_answers(table: Table, lookup: KeyLookup) -> list[pb.Answer]:
    """The answers to Get and GetMany: all keys as of one epoch, in one message.

    Raises:
        TooLarge: One of the values can't be carried, or all together can't.
        KeyholeError: As Table.lookup.
    """
    keys = _storage_keys(table, lookup)
    answers = table.lookup(keys, lookup.bounds, MAX_VALUE_BYTES)
    values = [row or b"" for row in answers.rows]
    if lookup.as_json:
        values = table.codec.rows.each_to_json(values)
    check_answer(table.name, values, len(keys))
    sources, source_of = answers.sources, answers.source_of or [0] * len(values)
    return [
        pb.Answer(found=bool(value), value=value, source=sources[index])
        for value, index in zip(values, source_of, strict=True)
    ]


def _storage_keys(table: Table, lookup: KeyLookup) -> Sequence[bytes]:
    """Raises KeyMismatch, NullKey or StaleDescriptor."""
    if lookup.keys:
        return table.codec.storage_keys(lookup.keys)
    if lookup.storage_keys and lookup.topic_id != table.descriptor.topic_id:
        raise StaleDescriptor(
            f"state {table.name} is not the one these storage keys were made for; describe it again",
            topic_id=table.descriptor.topic_id,
        )
    return lookup.storage_keys
