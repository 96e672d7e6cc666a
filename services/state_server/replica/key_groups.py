"""In which KeyGroupState each key group of a state is on this server. The only writer of that; host thread only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set

from keyhole.protocol.key_group import FOLLOWED, SHOWN, TRANSITIONS, UNSETTLED, KeyGroupState

_S = KeyGroupState
# Followed ones that are to be owned.
_PROMOTED = {
    _S.CATCHING_UP: _S.RESTORING,
    _S.STANDBY: _S.PROMOTED,
    _S.STALE: _S.RESTORING_SHOWN,
    _S.RELEASED: _S.PROMOTED,
}


class KeyGroups:
    """See keyhole.protocol.key_group for the states. All begin as ABSENT.

    A change that isn't among the legal ones is an AssertionError: the query ends with it, rather than go on with a copy
    of which nobody knows what it is.
    """

    def __init__(self) -> None:
        self._in: dict[KeyGroupState, set[int]] = {state: set() for state in KeyGroupState}
        self._state: dict[int, KeyGroupState] = {}
        self._restores = 0
        self._tenures: dict[int, int] = {}

    def state(self, group: int) -> KeyGroupState:
        """The state that the key group is in."""
        return self._state.get(group, _S.ABSENT)

    @property
    def owned(self) -> Set[int]:
        """The key groups that may be written. Not to be kept: the set changes."""
        return self._in[_S.OWNER]

    def tenure(self, group: int) -> int:
        """Which of the times in which this server owns it; 0: it does not. No two times have one number."""
        return self._tenures[group] if group in self.owned else 0

    @property
    def shown(self) -> frozenset[int]:
        """The key groups that the standby copy answers for."""
        return self._of(SHOWN)

    @property
    def warm(self) -> frozenset[int]:
        """Followed ones that could be owned at once."""
        return frozenset(self._in[_S.STANDBY])

    @property
    def settled(self) -> bool:
        """All that is shown is a state that existed."""
        return not any(self._in[state] for state in UNSETTLED)

    def is_followed(self, group: int) -> bool:
        """The changelog is followed for it."""
        return self.state(group) in FOLLOWED

    def follow(self, wanted: Collection[int], assigned: Collection[int], at_once: Collection[int]) -> bool:
        """Follows these, and no others, from now on.

        Args:
            assigned: Those that are to be owned: what is shown of them stays until they are.
            at_once: Of the wanted ones, those that were answered for as their owner until now.

        Returns:
            Whether others are shown than before.
        """
        released = False
        for group in wanted:
            match self.state(group):
                case _S.ABSENT | _S.RESTORING:
                    self._become(group, _S.CATCHING_UP)
                case _S.RESTORING_SHOWN:
                    self._become(group, _S.STALE)
                case _S.PROMOTED:
                    self._become(group, _S.RELEASED)
                case _S.OWNER:
                    released |= group in at_once
                    self._become(group, _S.RELEASED if group in at_once else _S.CATCHING_UP)
        for group in [group for group in self._state if group not in wanted]:
            state = self.state(group)
            if state is _S.OWNER:
                continue  # until the next restore begins: see retain
            if group not in assigned:
                self._become(group, _S.ABSENT)
            elif state in FOLLOWED:
                self._become(group, _PROMOTED[state])
        return released

    def reached_the_end(self, group: int) -> None:
        """Of a followed one: what it holds is a state that existed, and the last one."""
        self._become(group, _S.STANDBY)

    def fell_behind(self, group: int) -> None:
        """It is where markers may be compacted, or is read from the changelog's start again.

        Nothing changes where it is not shown yet, or not followed any more: nobody is answered from it.
        """
        if self.state(group) in FOLLOWED & SHOWN:
            self._become(group, _S.STALE)

    def retain(self, wanted: Collection[int]) -> None:
        """Of what is owned, nothing but these stays so."""
        for group in [group for group in self.owned if group not in wanted]:
            self._become(group, _S.ABSENT)

    def begin_restore(self, groups: Iterable[int]) -> None:
        """These are being read, to be owned. None of them is followed any more, or owned yet."""
        for group in groups:
            shown = self.state(group) in SHOWN
            self._become(group, _S.RESTORING_SHOWN if shown else _S.RESTORING)

    def restored(self, groups: Iterable[int]) -> None:
        """They hold all that was committed before this server's grant."""
        self._restores += 1
        for group in groups:
            self._tenures[group] = self._restores
            self._become(group, _S.OWNER)

    def lose_grant(self) -> None:
        """Nothing may be written any more: what was owned is to be restored under the next grant."""
        for group in list(self.owned):
            self._become(group, _S.ABSENT)

    def _of(self, states: Iterable[KeyGroupState]) -> frozenset[int]:
        return frozenset().union(*(self._in[state] for state in states))

    def _become(self, group: int, state: KeyGroupState) -> None:
        before = self.state(group)
        if state is before:
            return
        assert state in TRANSITIONS[before], f"key group {group} can't go from {before.value} to {state.value}"
        self._in[before].discard(group)
        if state is _S.ABSENT:
            del self._state[group]
        else:
            self._state[group] = state
            self._in[state].add(group)
