"""Watches the key groups of the state servers in this process: what each may do must follow from its state.

Beside the states, five sets are kept as they were before there were states, and compared after every change. What is
written to a store, and what readers are answered, is held against the states. What contradicts them is noted, and the
server goes on: the simulation and the fault harness look at what was noted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from keyhole.changelog.base import RestoredEpochs
from keyhole.encoding.storage_key import group_of
from keyhole.protocol.key_group import FOLLOWED, SHOWN, TRANSITIONS, KeyGroupState
from keyhole.stores.base import Batch
from services.state_server.host import QueryHost
from services.state_server.read.copies import Copy
from services.state_server.read.copy_answers import CopyAnswers
from services.state_server.replica.hosted import StateReplica
from services.state_server.replica.key_groups import KeyGroups

_S = KeyGroupState
_READ_BACK = FOLLOWED | {_S.RESTORING, _S.RESTORING_SHOWN}
# An owner that lost its grant is read on while it is restored under the next one.
_ANSWERED_AS_OWNER = frozenset({_S.OWNER, _S.ABSENT, _S.RESTORING})
_TO_BE_OWNED = frozenset({_S.OWNER, _S.PROMOTED, _S.RESTORING, _S.RESTORING_SHOWN})
# The host's thread is ahead of what readers see: what was just released, and what was just restored or let go.
_JUST_RELEASED = frozenset({_S.RELEASED, _S.CATCHING_UP})
_JUST_LEFT = frozenset({_S.OWNER, _S.ABSENT})


class GroupSets:
    """The same as KeyGroups says, by set algebra: without any states."""

    def __init__(self) -> None:
        self.owned: set[int] = set()
        self.followed: set[int] = set()
        self.shown: set[int] = set()
        self.warm: set[int] = set()
        self._gaps: set[int] = set()

    @property
    def settled(self) -> bool:
        return not self._gaps & self.shown

    def follow(self, wanted: Collection[int], assigned: Collection[int], at_once: Collection[int]) -> bool:
        new = set(at_once) & set(wanted) & self.owned
        kept = set(wanted) | set(assigned)
        self.followed = set(wanted)
        self.warm &= self.followed
        self._gaps &= kept
        self.shown &= kept
        self.owned -= self.followed
        self.shown |= new
        return bool(new)

    def reached_the_end(self, group: int) -> None:
        self._gaps.discard(group)
        self.warm.add(group)
        self.shown.add(group)

    def fell_behind(self, group: int) -> None:
        if group in self.followed:
            self._gaps.add(group)
            self.warm.discard(group)

    def retain(self, wanted: Collection[int]) -> None:
        self.owned &= set(wanted)

    def begin_restore(self, groups: Collection[int]) -> None:
        self._gaps |= set(groups)
        self.followed -= set(groups)

    def restored(self, groups: Collection[int]) -> None:
        self.owned |= set(groups)
        self.shown -= self.owned
        self._gaps -= self.owned

    def lose_grant(self) -> None:
        self.owned.clear()


class GroupWatch:
    """What was seen of the states that were opened while this was the last one that watches.

    Args:
        note: Is given what contradicts, too. Any thread.

    Attributes:
        violations: What contradicts.
        compared: How often states and sets were compared.
        transitions: How often each was made.
    """

    def __init__(self, note: Callable[[str], None] = lambda text: None) -> None:
        self.violations: list[str] = []
        self.compared = 0
        self.transitions: Counter[tuple[KeyGroupState, KeyGroupState]] = Counter()
        self._note = note

    def note(self, text: str) -> None:
        """Something contradicts. Any thread."""
        self.violations.append(text)
        self._note(text)

    def begin(self) -> None:
        """Watches all states that are opened from now on."""
        _watches.append(self)
        _patch()

    def end(self) -> None:
        """Watches no further state. Idempotent."""
        if self in _watches:
            _watches.remove(self)

    def check_at_rest(self, host: QueryHost) -> None:
        """Holds what was given and what is shown against the states, where nothing of the query is under way."""
        if host._changing.locked() or host._ownership.take_overs.under_way:
            return
        stepping_down = host._ownership._stepping_down
        if stepping_down is not None and not stepping_down.done():
            return
        for state in host._states.hosted.values():
            for group in range(state.descriptor.key_groups):
                for text in _contradictions(state, group):
                    self.note(f"key group {group} is {state.groups.state(group).value}, and {text}")


def _contradictions(state: StateReplica, group: int) -> Iterator[str]:
    table, given, now = state.table, state.table.given, state.groups.state(group)
    as_owner, as_standby = group in table.owned.groups, group in table.standby.groups
    if as_owner and now not in _ANSWERED_AS_OWNER:
        yield "answered for as an owner"
    if as_owner and group not in given.assigned:
        yield "answered for as an owner, though it is another's"
    if as_standby and now not in SHOWN:
        yield "answered for as a standby"
    if now is _S.OWNER and not as_owner:
        yield "not answered for"
    if now in _TO_BE_OWNED and group not in given.assigned:
        yield "not assigned"
    if (now in FOLLOWED) != (group in given.followed):
        yield "to be followed" if group in given.followed else "not to be followed"
    if given.ready and group in given.assigned and not as_owner:
        yield "told as ready, and not answered for"


class WatchedGroups(KeyGroups):
    """KeyGroups, and the sets beside it."""

    def __init__(self, watch: GroupWatch) -> None:
        super().__init__()
        self.watch = watch
        self._sets = GroupSets()

    def follow(self, wanted: Collection[int], assigned: Collection[int], at_once: Collection[int]) -> bool:
        others = super().follow(wanted, assigned, at_once)
        if others != self._sets.follow(wanted, assigned, at_once):
            self.watch.note(f"following {sorted(wanted)} shows others, or not")
        self._compare("follow")
        return others

    def reached_the_end(self, group: int) -> None:
        super().reached_the_end(group)
        self._sets.reached_the_end(group)
        self._compare("reached_the_end")

    def fell_behind(self, group: int) -> None:
        super().fell_behind(group)
        self._sets.fell_behind(group)
        self._compare("fell_behind")

    def retain(self, wanted: Collection[int]) -> None:
        super().retain(wanted)
        self._sets.retain(wanted)
        self._compare("retain")

    def begin_restore(self, groups: Iterable[int]) -> None:
        which = list(groups)
        super().begin_restore(which)
        self._sets.begin_restore(which)
        self._compare("begin_restore")

    def restored(self, groups: Iterable[int]) -> None:
        which = list(groups)
        super().restored(which)
        self._sets.restored(which)
        self._compare("restored")

    def lose_grant(self) -> None:
        super().lose_grant()
        self._sets.lose_grant()
        self._compare("lose_grant")

    def _compare(self, after: str) -> None:
        self.watch.compared += 1
        sets, states = self._sets, dict(self._state)
        followed = {group for group in states if self.is_followed(group)}
        for what, by_state, by_set in (
            ("owned", set(self.owned), sets.owned),
            ("followed", followed, sets.followed),
            ("shown", set(self.shown), sets.shown),
            ("warm", set(self.warm), sets.warm),
            ("settled", self.settled, sets.settled),
        ):
            if by_state != by_set:
                self.watch.note(f"after {after}, {what} is {by_state} by {states}, and {by_set} by the sets")

    def _become(self, group: int, state: KeyGroupState) -> None:
        before = self.state(group)
        if state is not before:
            self.watch.transitions[before, state] += 1
            if state not in TRANSITIONS[before]:
                self.watch.note(f"key group {group} goes from {before.value} to {state.value}")
        super()._become(group, state)


# --- what is watched ------------------------------------------------------------------------------------------------

_watches: list[GroupWatch] = []
_copies: WeakKeyDictionary[Copy, tuple[WatchedGroups, str, frozenset[KeyGroupState]]] = WeakKeyDictionary()
_open = StateReplica.open.__func__  # type: ignore[attr-defined]  # it is a classmethod
_apply, _apply_pieces = StateReplica.apply, StateReplica.apply_pieces
_answers, _scan = Copy.answers, Copy.scan


def _patch() -> None:
    """Idempotent; stays: what no watch has taken in is passed over."""
    StateReplica.open = classmethod(_watched_open)  # type: ignore[assignment,method-assign,arg-type]
    StateReplica.apply = _watched_apply  # type: ignore[method-assign]
    StateReplica.apply_pieces = _watched_apply_pieces  # type: ignore[method-assign]
    Copy.answers = _watched_answers  # type: ignore[method-assign]
    Copy.scan = _watched_scan  # type: ignore[method-assign]


def _watched_open(cls: type[StateReplica], *arguments: Any) -> StateReplica:
    state: StateReplica = _open(cls, *arguments)
    if _watches:
        state.groups = groups = WatchedGroups(_watches[-1])
        _copies[state.table.owned] = groups, "an owner", _ANSWERED_AS_OWNER | _JUST_RELEASED
        _copies[state.table.standby] = groups, "a standby", SHOWN | _JUST_LEFT
    return state


def _watched_apply(self: StateReplica, batch: Batch, *arguments: Any) -> None:
    _hold_against(self.groups, batch.advances, frozenset({_S.OWNER}), "written by an epoch")
    _apply(self, batch, *arguments)


def _watched_apply_pieces(self: StateReplica, pieces: Iterable[RestoredEpochs], *more: Any) -> None:
    which = list(pieces)
    _hold_against(self.groups, {piece.partition.key_group for piece in which}, _READ_BACK, "read back")
    _apply_pieces(self, which, *more)


def _watched_answers(self: Copy, keys: Sequence[bytes], *arguments: Any, **more: Any) -> CopyAnswers:
    _hold_answer(self, {group_of(key) for key in keys})
    return _answers(self, keys, *arguments, **more)


def _watched_scan(self: Copy, within: Any, *arguments: Any, **more: Any) -> Any:
    _hold_answer(self, {group_of(within.prefix)})
    return _scan(self, within, *arguments, **more)


def _hold_answer(copy: Copy, groups: Iterable[int]) -> None:
    watched = _copies.get(copy)
    if watched is not None:
        of, role, may = watched
        _hold_against(of, groups, may, f"answered for as {role}")


def _hold_against(of: KeyGroups, groups: Iterable[int], may: frozenset[KeyGroupState], what: str) -> None:
    if isinstance(of, WatchedGroups):
        for group in groups:
            if of.state(group) not in may:
                of.watch.note(f"key group {group} is {of.state(group).value}, and {what}")
