"""Compares all copies of a state with its changelog, and the indexes of each copy with its rows.

Each copy is compared with the changelog up to the copy's own offset. Compaction may have removed records of that part
that were replaced since. So whatever differs is looked at once more, with a new dump, and without the keys that the
changelog has written again after that offset.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass

from keyhole.changelog.base import Changelog, ChangelogReader, Partition
from keyhole.errors import ChangelogRecreated, KeyholeError, UnknownApplication, UnknownState
from keyhole.model.epoch import START
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import read_control
from keyhole.stores.base import Snapshot, StoreEngine
from keyhole.stores.replayed import Replayed, scratch_stores
from keyhole.verify.differences import Differences, compare
from keyhole.verify.fetched_copies import CheckedCopy, Dump, Server, fetch
from keyhole.verify.index_check import CheckedIndexes, IndexCheck

_log = logging.getLogger(__name__)

_READER = "verify"  # of the control topic; it never opens it, so that it fences nobody


@dataclass(frozen=True)
class Finding:
    """A copy of a key group that differs.

    Attributes:
        ahead: It claims to be beyond the changelog's end.
        indexes: By indexed field: how its index differs from the copy's own rows. Those that don't are left out.
    """

    copy: CheckedCopy
    differences: Differences
    ahead: bool
    indexes: Mapping[str, Differences]

    def __bool__(self) -> bool:
        return bool(self.differences or self.ahead or self.indexes)


@dataclass(frozen=True)
class Verdict:
    """What came of it.

    Attributes:
        copies: All that were compared, also those without a finding.
        unreachable: Why, by server, for those that did not give all that they hold.
        indexes: What came of the indexes of each copy, at the first look.
    """

    descriptor: StateDescriptor
    copies: tuple[CheckedCopy, ...]
    findings: tuple[Finding, ...]
    unreachable: Mapping[str, str]
    indexes: Mapping[CheckedCopy, CheckedIndexes]

    @property
    def unread_indexes(self) -> Mapping[CheckedCopy, str]:
        """The copies whose indexes could not be compared with their rows, and why."""
        return {copy: of.unread for copy, of in self.indexes.items() if of.unread}

    @property
    def not_compared(self) -> tuple[int, ...]:
        """The key groups of which no copy was compared: nobody who was asked could answer for them."""
        return tuple(sorted(set(range(self.descriptor.key_groups)) - {copy.key_group for copy in self.copies}))


def describe(application: str, state: str, changelog: Changelog, deadline_seconds: float) -> StateDescriptor:
    """The state, as the control topic has it.

    Raises:
        UnknownState: It doesn't have it.
    """
    try:
        states = read_control(changelog.control(_READER).read(deadline_seconds), "").states
    except ChangelogRecreated:
        states = {}
    if state not in states:
        raise UnknownState(
            f"application {application!r} has no state {state!r} in this Kafka; its states are: "
            f"{', '.join(sorted(states)) or 'none'}",
            state=state,
        )
    return states[state]


def verify(
    descriptor: StateDescriptor,
    servers: Sequence[Server],
    changelog: Changelog,
    dump: Dump,
    *,
    deadline_seconds: float = 30.0,
    pause_seconds: float = 1.0,
) -> Verdict:
    """Looks at everything once, and at what differs once more after a pause.

    Raises:
        UnknownState: No server holds any of it: there is nothing to compare.
        KafkaUnreachable: No progress for `deadline_seconds`.
        ValueMismatch: The state can't have the indexes that it names.
    """
    reader = changelog.reader()
    with contextlib.closing(reader):
        look = _LookAtCopies(descriptor, reader, dump, deadline_seconds)
        copies, suspects, unreachable = look.take(dict.fromkeys(servers, frozenset[int]()))
        indexes = dict(look.indexes)
        if not copies:
            silent = "".join(f"; {server}: {why}" for server, why in unreachable.items())
            state = descriptor.path
            raise UnknownState(
                f"no server holds anything of {state}: nothing was compared{silent}", state=descriptor.state
            )
        findings: Sequence[Finding] = ()
        if suspects:
            _log.info("looking once more", extra={"key_groups": len(suspects)})
            time.sleep(pause_seconds)
            again: dict[Server, set[int]] = defaultdict(set)
            for finding in suspects:
                again[finding.copy.server].add(finding.copy.key_group)
            _, found, lost = look.take(again)
            findings = [settled for finding in found if (settled := look.settled(finding))]
            unreachable |= lost
    return Verdict(descriptor, tuple(copies), tuple(findings), unreachable, indexes)


class _LookAtCopies:
    """Attributes:
    indexes: What came of those of each copy that was looked at last.
    """

    def __init__(
        self, descriptor: StateDescriptor, reader: ChangelogReader, dump: Dump, deadline_seconds: float
    ) -> None:
        self._descriptor = descriptor
        self._reader = reader
        self._dump = dump
        self._deadline = deadline_seconds
        self.indexes: dict[CheckedCopy, CheckedIndexes] = {}

    def take(self, asked: Mapping[Server, Set[int]]) -> tuple[list[CheckedCopy], list[Finding], dict[str, str]]:
        """All copies, those that differ, and the servers that did not give all.

        Args:
            asked: Which key groups of which server; none: all that it holds.
        """
        with scratch_stores() as stores, contextlib.ExitStack() as stack:
            held: dict[Server, Snapshot] = {}
            copies: list[CheckedCopy] = []
            unreachable: dict[str, str] = {}
            for number, (server, groups) in enumerate(asked.items()):
                store = stores.open("copy", str(number), "")
                try:
                    copies += fetch(server, self._dump(server, groups), store)
                except (UnknownApplication, UnknownState):
                    pass  # it answers: it has no copy
                except KeyholeError as error:
                    unreachable[server.server] = error.message
                held[server] = stack.enter_context(contextlib.closing(store.snapshot()))
            # After the dumps, so that none is ahead of them.
            ends = self._ends({copy.key_group for copy in copies})
            return copies, self._compared(copies, held, ends, stores), unreachable

    def _ends(self, groups: Collection[int]) -> dict[int, int]:
        ends = self._reader.ends({self._descriptor.state: sorted(groups)}, self._deadline)
        return {part.key_group: end for part, end in ends.items()}

    def _compared(
        self,
        copies: Sequence[CheckedCopy],
        held: Mapping[Server, Snapshot],
        ends: Mapping[int, int],
        stores: StoreEngine,
    ) -> list[Finding]:
        replayed = Replayed(self._descriptor.state, self._reader, stores.open("changelog", "replayed", ""))
        check, self.indexes = IndexCheck(self._descriptor, stores.open("indexes", "expected", "")), {}
        findings = []
        for level in _levels(copies):
            replayed.advance({c.key_group: min(c.offset, ends[c.key_group]) for c in level}, self._deadline)
            with contextlib.closing(replayed.snapshot()) as expected:
                for copy in level:
                    found = compare(iter(expected.items(copy.key_group)), iter(held[copy.server].items(copy.key_group)))
                    self.indexes[copy] = indexes = check.check(held[copy.server], copy.key_group)
                    ahead = copy.offset > ends[copy.key_group]
                    if finding := Finding(copy, found, ahead, indexes.differences):
                        findings.append(finding)
        return findings

    def settled(self, finding: Finding) -> Finding | None:
        """What is left without the keys that the changelog has written again after the copy's offset."""
        copy = finding.copy
        part = Partition(self._descriptor.state, copy.key_group)
        ends = self._reader.ends({part.state: [part.key_group]}, self._deadline)
        suspects = {*finding.differences.missing, *finding.differences.extra, *finding.differences.different}
        written: set[bytes] = set()
        if ends[part] > copy.offset:
            for piece in self._reader.read({part: START._replace(offset=copy.offset)}, ends, self._deadline):
                written.update(key for key, _ in piece.changes if key in suspects)
        return Finding(copy, finding.differences.without(written), finding.ahead, finding.indexes) or None


def _levels(copies: Sequence[CheckedCopy]) -> list[list[CheckedCopy]]:
    """One copy of each key group at a time, the one that is furthest behind first: the changelog is read once."""
    of_group: dict[int, list[CheckedCopy]] = defaultdict(list)
    for copy in sorted(copies, key=lambda copy: copy.offset):
        of_group[copy.key_group].append(copy)
    depth = max(map(len, of_group.values()), default=0)
    return [[queue[level] for queue in of_group.values() if level < len(queue)] for level in range(depth)]
