"""Where a watch goes on: how far it is with each key group, and its spelling as a text that readers keep. Pure.

A place names offsets of the changelog, and no server: it is as good at another owner, and at another proxy.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

import msgspec

from keyhole.encoding.storage_key import GROUP_BYTES, prefix_of
from keyhole.errors import MalformedRequest, StaleDescriptor
from keyhole.hints import ready
from keyhole.model.epoch import Position
from keyhole.model.state import StateDescriptor

_VERSION = 1
# What Kafka and the wire have room for.
_MOST_NUMBER = (1 << 63) - 1


@ready
class WatchMark(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How far a watch is with one key group.

    Attributes:
        offset: Of the changelog: all that is before it has been given.
        epoch: The last one of which all has been given.
        skip: Of the epoch that begins there, how many records were given, or passed over.
        below: None: all rows that were there at `offset` were given. Else those up to this storage key; empty: none.
    """

    offset: int
    epoch: int
    skip: int = 0
    below: bytes | None = None

    @classmethod
    def at(cls, position: Position) -> WatchMark:
        """All up to this position has been given."""
        return cls(position.offset, position.epoch)

    @property
    def begun(self) -> bool:
        """Something of the key group was given, or passed over."""
        return self.below != b""


NOT_BEGUN = WatchMark(0, 0, 0, b"")
"""Of a key group whose rows are to be given, and of which none was."""


@ready
class _SpelledToken(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    topic_id: str
    keys: int
    as_of_ms: int
    marks: dict[int, WatchMark]


class WatchPlace(msgspec.Struct, frozen=True):
    """How far a watch is.

    Attributes:
        marks: By key group, of all that are watched.
        as_of_ms: All that was committed by then has been given: milliseconds since 1970, UTC, by the owners' clocks.
    """

    marks: Mapping[int, WatchMark]
    as_of_ms: int

    def token(self, descriptor: StateDescriptor, keys: int) -> str:
        """The place as a text of ASCII letters, digits, - and _.

        Args:
            descriptor: Of the state that is watched.
            keys: What tells the keys that are watched from others.
        """
        return _encoded(_SpelledToken(_VERSION, descriptor.topic_id, keys, self.as_of_ms, dict(self.marks)))


def _encoded(spelled: _SpelledToken) -> str:
    # Most marks are short ones.
    marks = {
        group: mark if mark.skip or mark.below is not None else (mark.offset, mark.epoch)
        for group, mark in spelled.marks.items()
    }
    packed = msgspec.msgpack.encode((spelled.version, spelled.topic_id, spelled.keys, spelled.as_of_ms, marks))
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def _spelled(token: str) -> _SpelledToken:
    # Python's decoder passes over what it doesn't know, unless it is told not to.
    packed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    return msgspec.msgpack.decode(packed, type=_SpelledToken)


def watch_place(token: str, descriptor: StateDescriptor, keys: int) -> WatchPlace:
    """The place that a token names.

    Args:
        descriptor: Of the state that is to be watched.
        keys: What tells the keys that are to be watched from others.

    Raises:
        MalformedRequest: It is no token, or of a watch of other keys.
        StaleDescriptor: It is of another state, or of this one before it was made anew.
    """
    name = descriptor.path
    try:
        spelled = _spelled(token)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise MalformedRequest(
            f"the place from which a watch of state {name} is to go on is no token of an earlier one; leave it out to "
            "begin with the rows that are there"
        ) from None
    if spelled.version != _VERSION:
        raise MalformedRequest(f"the token of a watch is of version {spelled.version}; this side knows {_VERSION}")
    if spelled.topic_id != descriptor.topic_id:
        raise StaleDescriptor(
            f"the token is of another state than {name}, or {name} was made anew since; begin its watch without it",
            topic_id=descriptor.topic_id,
        )
    if spelled.keys != keys:
        raise MalformedRequest(
            f"the token is of a watch of other keys of state {name}; go on with the same keys, or begin without it"
        )
    marks = spelled.marks
    possible = all(0 <= of < descriptor.key_groups and _is_possible(of, mark) for of, mark in marks.items())
    if not possible or not 0 <= spelled.as_of_ms <= _MOST_NUMBER:
        raise MalformedRequest(f"the token names no place of state {name}; begin its watch without it")
    return WatchPlace(marks, spelled.as_of_ms)


def _is_possible(key_group: int, mark: WatchMark) -> bool:
    """Whether some watch can have been there: whoever has a token may have made it up."""
    numbers = (mark.offset, mark.epoch, mark.skip)
    if not all(0 <= number <= _MOST_NUMBER for number in numbers):
        return False
    # Else the rows of another key group would be read.
    return not mark.below or (mark.below.startswith(prefix_of(key_group)) and len(mark.below) > GROUP_BYTES)


def token_within(token: str, marks: Mapping[int, WatchMark]) -> str:
    """Where a watch goes on that has given what this token says, and of some key groups what their marks say.

    Args:
        token: Of a watch of these key groups.
    """
    spelled = _spelled(token)
    return _encoded(msgspec.structs.replace(spelled, marks={**spelled.marks, **marks}))


def marks_of(token: str) -> Mapping[int, WatchMark]:
    """How far a watch is with each of its key groups, by its token."""
    return _spelled(token).marks


def has_rows_left(token: str) -> bool:
    """Whether some of the rows that were there when the watch began have yet to be given, by its token."""
    return any(mark.below is not None for mark in _spelled(token).marks.values())
