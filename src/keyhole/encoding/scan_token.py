"""Where a scan of all keys goes on: a place in the state, and its spelling as a text that readers keep. Pure.

A place names a storage key, and no server: it is as good after a change of owners, and after a restart of the proxy.
"""

from __future__ import annotations

import base64
import binascii

import msgspec

from keyhole.encoding.storage_key import GROUP_BYTES, group_of
from keyhole.errors import MalformedRequest, StaleDescriptor
from keyhole.hints import ready
from keyhole.model.state import StateDescriptor

_VERSION, _ORDERED_VERSION = 1, 2


@ready
class _SpelledPlace(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    topic_id: str
    key_group: int
    after: bytes


class ScanPlace(msgspec.Struct, frozen=True):
    """All key groups below `key_group` are read, and of this one what is not above `after`.

    Attributes:
        after: A storage key of the key group; empty: nothing of it is read.
    """

    key_group: int = 0
    after: bytes = b""

    def token(self, descriptor: StateDescriptor) -> str:
        """The place as a text of ASCII letters, digits, - and _, for the state with this descriptor."""
        spelled = _SpelledPlace(_VERSION, descriptor.topic_id, self.key_group, self.after)
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(spelled)).rstrip(b"=").decode()

    def at(self, storage_key: bytes) -> ScanPlace:
        """The place behind an entry that was read."""
        return ScanPlace(group_of(storage_key), storage_key)


class OrderedPlace(msgspec.Struct, frozen=True):
    """In a scan in the order of keys: in each key group, what is not above `after` is read; or not below it.

    Attributes:
        after: A storage key without its key group; empty: nothing is read.
    """

    descending: bool
    after: bytes = b""

    def token(self, descriptor: StateDescriptor) -> str:
        """The place as a text, as that of a ScanPlace."""
        spelled = _SpelledPlace(_ORDERED_VERSION, descriptor.topic_id, int(self.descending), self.after)
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(spelled)).rstrip(b"=").decode()

    def at(self, storage_key: bytes) -> OrderedPlace:
        """The place behind an entry that was read."""
        return OrderedPlace(self.descending, storage_key[GROUP_BYTES:])


def ordered_place_of(token: str, descriptor: StateDescriptor, *, descending: bool) -> OrderedPlace:
    """The place that a token of a scan in order names.

    Raises:
        MalformedRequest: It is none, or of a scan in another order, or in none.
        StaleDescriptor: As `place_of`.
    """
    spelled = _spelled(token, descriptor, _ORDERED_VERSION)
    if spelled.key_group != int(descending) or not spelled.after:
        raise MalformedRequest("the token is of a scan in the other direction; go on in the same one, or begin anew")
    return OrderedPlace(descending, spelled.after)


def place_of(token: str, descriptor: StateDescriptor) -> ScanPlace:
    """The place that a token names.

    Raises:
        MalformedRequest: It is no token.
        StaleDescriptor: It is of another state, or of this one before it was made anew.
    """
    spelled = _spelled(token, descriptor, _VERSION)
    place = ScanPlace(spelled.key_group, spelled.after)
    in_group = not place.after or (len(place.after) > GROUP_BYTES and group_of(place.after) == place.key_group)
    if not (0 <= place.key_group < descriptor.key_groups and in_group):
        name = descriptor.path
        raise MalformedRequest(f"the token names no place of state {name}; begin its scan at the start")
    return place


def _spelled(token: str, descriptor: StateDescriptor, version: int) -> _SpelledPlace:
    name = descriptor.path
    try:
        # Python's decoder passes over what it doesn't know, unless it is told not to.
        packed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        spelled = msgspec.msgpack.decode(packed, type=_SpelledPlace)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise MalformedRequest(
            f"the place from which a scan of state {name} is to go on is no token of an earlier one; leave it out to "
            "begin at the start"
        ) from None
    if spelled.version not in (_VERSION, _ORDERED_VERSION):
        raise MalformedRequest(
            f"the token of a scan is of version {spelled.version}; this side knows {_VERSION} and {_ORDERED_VERSION}"
        )
    if spelled.version != version:
        orders = {_VERSION: "in no order", _ORDERED_VERSION: "in the order of keys"}
        raise MalformedRequest(
            f"the token is of a scan {orders[spelled.version]}, and this one is {orders[version]}; go on as that one, "
            "or begin anew"
        )
    if spelled.topic_id != descriptor.topic_id:
        raise StaleDescriptor(
            f"the token is of another state than {name}, or {name} was made anew since; begin its scan at the start",
            topic_id=descriptor.topic_id,
        )
    return spelled
