"""What batches have settled, in their query's checkpoint: where it lies, and what is in a file.

Sinks write it, and savepoints take it along. A folder for each thing, and in it a file for each batch, whose name is
its number. It is the content as it is; or it begins with a line of JSON, and then has the content, or another batch's
file has it:

    {"pin":1,"contents":[880,913],"sha256":"...","note":"17"}

Pure.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from keyhole.errors import CheckpointMismatch
from keyhole.hints import ready

PINNED = "keyhole"
"""The folder of all of it."""

BROADCASTS = f"{PINNED}/broadcast"
"""Of what batches have read of broadcast states."""

_BEGINS = b'{"pin":'


def broadcast_folder(application: str, state: str) -> str:
    """The folder of what batches have read of a broadcast state."""
    return f"{BROADCASTS}/{application}.{state}"


def subtasks_folder(state: str) -> str:
    """The folder of how many subtasks an operator state has had. The state is the query's own, so of its
    application.
    """
    return f"{PINNED}/subtasks/{state}"


class Pin(msgspec.Struct, frozen=True):
    """What a batch has settled of one thing.

    Attributes:
        batch: Its number.
        contents: In which batches' files are the contents that kept batches need, ascending; this one's is the last.
        sha256: Of its content, in hexadecimal digits.
        note: What is its own, where others have the same content.
        content: None: it is in the file of another batch, contents[-1].
    """

    batch: int
    contents: tuple[int, ...]
    sha256: str
    note: str
    content: bytes | None


@ready
class _Head(msgspec.Struct, frozen=True):
    pin: Literal[1]
    contents: tuple[int, ...]
    sha256: str
    note: str


_head = msgspec.json.Decoder(_Head)


def plain(batch: int, content: bytes) -> Pin:
    """What the batch's file is the content of, as it is."""
    return Pin(batch, (batch,), hashlib.sha256(content).hexdigest(), "", content)


def following(before: Pin | None, batch: int, content: bytes, note: str, oldest: int) -> Pin:
    """What the batch settles: its content is that of the one before, or a new one.

    Args:
        before: Of the last batch before it that has settled something.
        oldest: The first batch that is kept: what only earlier ones have referred to is needed no more.
    """
    new = plain(batch, content)
    contents = () if before is None else before.contents
    if before is None or before.sha256 != new.sha256:
        contents, own = (*contents, batch), content
    else:
        own = None
    # Each is that of all batches up to the next one.
    needed = tuple(of for of, end in zip(contents, (*contents[1:], batch + 1), strict=True) if end > oldest)
    return Pin(batch, needed, new.sha256, note, own)


def written(pin: Pin) -> bytes:
    """The bytes of the pin's file: a line of JSON, then the content. See pin_of."""
    head = msgspec.json.encode(_Head(1, pin.contents, pin.sha256, pin.note))
    return head + b"\n" + (pin.content or b"")


def pin_of(batch: int, data: bytes) -> Pin:
    """What a file says.

    Raises:
        CheckpointMismatch: Another version of Keyhole wrote it.
    """
    if not data.startswith(_BEGINS):
        return plain(batch, data)
    line, _, content = data.partition(b"\n")
    try:
        head = _head.decode(line)
    except msgspec.MsgspecError as error:
        raise CheckpointMismatch(
            f"what batch {batch} has settled in its query's checkpoint is in a form that this version of Keyhole does "
            "not read: go on with the version that wrote it, or a later one",
            batch=batch,
        ) from error
    return Pin(batch, head.contents, head.sha256, head.note, content if head.contents[-1] == batch else None)
