"""In which states a key group can be on one server, and which may follow which. Pure.

    ABSENT           -> CATCHING_UP         it is to be followed
    CATCHING_UP      -> STANDBY             the changelog's end is reached
    STANDBY          -> STALE               it fell behind
    STALE            -> STANDBY             the changelog's end is reached
    ABSENT, CATCHING_UP
                     -> RESTORING           it is to be owned
    STANDBY, RELEASED
                     -> PROMOTED            it is to be owned
    PROMOTED, STALE  -> RESTORING_SHOWN     its restore begins
    RESTORING, RESTORING_SHOWN
                     -> OWNER               all is read
    OWNER            -> RELEASED            it is to be followed, and was answered for as its owner
    OWNER            -> CATCHING_UP         it is to be followed, and was not
    OWNER            -> ABSENT              the grant is lost
    RELEASED         -> STANDBY, STALE      as a followed one
    RESTORING -> CATCHING_UP, RESTORING_SHOWN -> STALE, PROMOTED -> RELEASED
                                            it is to be followed after all
    all              -> ABSENT              nothing is to be done with it

An epoch's rows are written by an OWNER alone. A store with a STALE or RESTORING_SHOWN key group shows no newer
snapshot: between two markers it may have states that never existed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class KeyGroupState(enum.Enum):
    """Of one key group of one state, on one server.

    ABSENT: Neither owned nor followed; the store may have it on disk. CATCHING_UP: Followed, and not shown yet.
    STANDBY: Followed to the changelog's end: it could be owned at once. STALE: Followed and shown, and so far behind
    that the changelog may be compacted there (state servers go by half of that time: replica/standby.py); what was
    shown stays. RELEASED: Followed and shown, was owned until now.
    PROMOTED: To be owned, and shown as the standby copy that it was; its restore has not begun. RESTORING: To be owned,
    and being read to the end. RESTORING_SHOWN: The same; what was followed is shown meanwhile.
    OWNER: Holds all that was committed before this server's grant; may be written.
    """

    ABSENT = "absent"
    CATCHING_UP = "catching up"
    STANDBY = "standby"
    STALE = "stale"
    RELEASED = "released"
    PROMOTED = "promoted"
    RESTORING = "restoring"
    RESTORING_SHOWN = "restoring, shown"
    OWNER = "owner"


_S = KeyGroupState

TRANSITIONS: Mapping[KeyGroupState, frozenset[KeyGroupState]] = {
    _S.ABSENT: frozenset({_S.CATCHING_UP, _S.RESTORING}),
    _S.CATCHING_UP: frozenset({_S.ABSENT, _S.STANDBY, _S.RESTORING}),
    _S.STANDBY: frozenset({_S.ABSENT, _S.STALE, _S.PROMOTED}),
    _S.STALE: frozenset({_S.ABSENT, _S.STANDBY, _S.RESTORING_SHOWN}),
    _S.RELEASED: frozenset({_S.ABSENT, _S.STANDBY, _S.STALE, _S.PROMOTED}),
    _S.PROMOTED: frozenset({_S.ABSENT, _S.RELEASED, _S.RESTORING_SHOWN}),
    _S.RESTORING: frozenset({_S.ABSENT, _S.CATCHING_UP, _S.OWNER}),
    _S.RESTORING_SHOWN: frozenset({_S.ABSENT, _S.STALE, _S.OWNER}),
    _S.OWNER: frozenset({_S.ABSENT, _S.CATCHING_UP, _S.RELEASED}),
}
"""By state: those that may come next. To stay is no transition."""

FOLLOWED = frozenset({_S.CATCHING_UP, _S.STANDBY, _S.STALE, _S.RELEASED})
"""The changelog is followed for them."""

SHOWN = frozenset({_S.STANDBY, _S.STALE, _S.RELEASED, _S.PROMOTED, _S.RESTORING_SHOWN})
"""The standby copy answers for them."""

UNSETTLED = frozenset({_S.STALE, _S.RESTORING_SHOWN})
"""What the store has of them may be a state that never existed; what was shown last stays."""
