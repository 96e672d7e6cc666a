"""How much goes into one message, and what is said of what doesn't. Pure; docs/clients-reference.md says it for others.

A response to a frame of lookups holds the values of as many of its keys as make FRAME_BYTES. The others stand as
AskAgain: whoever asked asks for them again, in frames that are smaller. So nobody's values have to fit into a message
together, no frame takes much memory on any side, and a caller who knows nothing of it sees keys that can't be answered
for now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from keyhole.errors import KeyholeError, NotReady, TooLarge
from keyhole.rpc.status import from_proto, to_proto
from keyhole.v1 import error_pb2, query_pb2

FRAME_BYTES = 2 << 20
"""Of the values in one response, or of the keys in one request; more only where one value alone is larger. Below what
gRPC takes in by default, in any language, 4 MiB."""

MAX_VALUE_BYTES = 16 << 20
"""The largest value that is carried, and the most that the values of one GetMany may take. As much as a changelog takes
(MAX_ROW_BYTES), so that what can be stored can be read."""

MAX_MESSAGE_BYTES = MAX_VALUE_BYTES + (1 << 20)
"""Of what is asked, and of most of what comes: with room for what stands around the values."""

MAX_RESPONSE_BYTES = MAX_VALUE_BYTES + MAX_MESSAGE_BYTES
"""Of what comes: a change of a watch may have a value, and the one before it."""

# On the wire AskAgain is the error NOT_READY with these facts; the second one where the response is full.
_ASK_AGAIN, _FULL = "ask_again", "full"


@dataclass(frozen=True, slots=True, eq=False)
class AskAgain:
    """In place of a key's answer: there is none yet, while there is for other keys of its frame. Ask in another frame.

    Attributes:
        why: For a person.
        full: The others' values fill the response: the other frame should have fewer keys. Else a server keeps the key
            waiting, and it should not hold up others.
    """

    why: str
    full: bool = False


Failure: TypeAlias = KeyholeError | AskAgain
"""What a key of a frame has in place of an answer."""


def as_error(failure: Failure) -> KeyholeError:
    """The failure as an error, for whoever takes errors alone."""
    if not isinstance(failure, AskAgain):
        return failure
    return NotReady(failure.why, **{_ASK_AGAIN: "true"} | ({_FULL: "true"} if failure.full else {}))


def failure_from_proto(message: error_pb2.Error) -> Failure:
    """The failure of a message that `as_error` made."""
    error = from_proto(message)
    return AskAgain(error.message, full=_FULL in error.facts) if _ASK_AGAIN in error.facts else error


def frame_is_full(state: str) -> AskAgain:
    """The failure of keys of a frame that are to be asked for in another one. `state`: application/state."""
    return AskAgain(
        f"the values of other keys of state {state} fill this response: ask for those that failed so in another frame, "
        "of fewer keys",
        full=True,
    )


def value_too_large(state: str, size: int, what: str = "the value of a key", **facts: object) -> TooLarge:
    """The error for a value that can't be carried, however few are asked for."""
    return TooLarge(
        f"{what} of state {state} takes {size:,} bytes, and {MAX_VALUE_BYTES:,} is the most that a message carries: "
        "make it smaller, or split it over several keys",
        state=state,
        bytes=size,
        limit=MAX_VALUE_BYTES,
        **facts,
    )


def check_answer(state: str, values: Sequence[bytes], keys: int, most_bytes: int = MAX_VALUE_BYTES) -> None:
    """Before all go into one message.

    Args:
        state: application/state, for messages.
        values: Fewer than keys: there are more, which were not read.

    Raises:
        TooLarge: One of them can't be carried, or all together can't.
    """
    for index, value in enumerate(values):
        if len(value) > MAX_VALUE_BYTES:
            raise of_key(value_too_large(state, len(value)), index, keys)
    if len(values) < keys or sum(map(len, values)) > most_bytes:
        raise answer_too_large(state, keys, most_bytes)


def answer_too_large(state: str, keys: int, most_bytes: int) -> TooLarge:
    """Each of them could be carried, and all together in one message can't."""
    return TooLarge(
        f"the values of these {keys:,} keys of state {state} take more than {most_bytes:,} bytes, the most that one "
        "answer carries: ask for fewer keys at once",
        state=state,
        keys=keys,
        limit=most_bytes,
    )


def of_key(error: KeyholeError, index: int, count: int) -> KeyholeError:
    """The error of one key of a call of `count` keys; where it is the key's own, it says which one of them that is."""
    if not isinstance(error, TooLarge):
        return error
    of_key = TooLarge(f"key {index + 1} of the {count} that were asked for: {error.message}")
    of_key.facts = error.facts | {"index": str(index)}
    return of_key


def cut_to_frame(
    state: str, values: list[bytes], most_bytes: int = FRAME_BYTES, *, unread: Collection[int] = ()
) -> dict[int, Failure]:
    """Empties what doesn't fit into one response; the failures of these, by index. The first value always fits.

    Args:
        state: application/state, for messages.
        unread: Those of the values that are not there, as there was no room for them.
    """
    failures: dict[int, Failure] = {}
    full: AskAgain | None = None
    size = 0
    for index, value in enumerate(values):
        if len(value) > MAX_VALUE_BYTES:
            failures[index] = value_too_large(state, len(value))
        elif size and value and size + len(value) > most_bytes:
            failures[index] = full = full or frame_is_full(state)
        else:
            size += len(value)
            continue
        values[index] = b""
    if unread:
        failures |= dict.fromkeys(unread, full or frame_is_full(state))
    return failures


def failed_together(failures: Mapping[int, Failure]) -> list[tuple[Failure, list[int]]]:
    """Each failure once, with the indexes of all keys that it is of."""
    together: dict[int, tuple[Failure, list[int]]] = {}
    for index, failure in failures.items():
        together.setdefault(id(failure), (failure, []))[1].append(index)
    return list(together.values())


def failures_to_proto(failures: Mapping[int, Failure]) -> list[query_pb2.LookupFailure]:
    """The failures by the index of their keys; keys that failed together share one message."""
    return [
        query_pb2.LookupFailure(indexes=indexes, error=to_proto(as_error(failure)))
        for failure, indexes in failed_together(failures)
    ]


def portions(sizes: Iterable[int], most_bytes: int = FRAME_BYTES) -> Iterator[slice]:
    """Cuts a sequence into runs of at most so many bytes, or of one item that is larger.

    Args:
        sizes: Of its items, in order.
    """
    start = stop = size = 0
    for one in sizes:
        if stop > start and size + one > most_bytes:
            yield slice(start, stop)
            start, size = stop, 0
        stop += 1
        size += one
    if stop > start:
        yield slice(start, stop)


def first_too_large(values: Sequence[bytes]) -> int | None:
    """The index of the first value that can't be carried; None: each can."""
    if max(map(len, values), default=0) <= MAX_VALUE_BYTES:
        return None
    return next(at for at, value in enumerate(values) if len(value) > MAX_VALUE_BYTES)
