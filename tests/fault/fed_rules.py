"""Judges a history of the real-time lane: by rules of the other one (checker.py), and by some of its own. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import cast

import msgspec

from tests.fault.checker import RULES, Rule, Verdict, judge, name_of, taken_back
from tests.fault.context import Context, Epochs
from tests.fault.fed_recount import FedRecount, Logged, of_source, summed
from tests.fault.history import CHANGELOG, OWNER, Held, History, Read
from tests.fault.recount import Question, Shown, key_of
from tests.fault.workload import SUMS, names

# Of the broker's timestamps, and of the two clocks.
_ROUNDED_MS = 20


class FedHistory(msgspec.Struct):
    """An episode.

    Attributes:
        seen: Of it; the final epoch is -1 where the cluster came to no rest, else 0: each key group has one of its own.
        updates: The updates topic, by key group.
        source: The source topic, by partition.
        wall_ms: What the wall clock showed when the monotonic one began: it does not jump.
    """

    seen: History
    updates: dict[int, list[Logged]]
    source: dict[int, list[Logged]]
    wall_ms: float


class FedContext(Context):
    """A history, and what the rules look up in it."""

    # A feeder is started again while another one, which slept, goes on: it says so, and that one goes on.
    excused = Context.excused | {"STATE_CONFLICT"}

    def __init__(self, history: FedHistory) -> None:
        self.fed = history
        self.history = history.seen
        self.reads = [event for event in history.seen.events if isinstance(event, Read)]
        self.epochs = {SUMS: Epochs({}, {}, [])}
        self.counts = FedRecount(history.updates)

    def right(self, state: str, question: Question, epoch: int, began: float, ended: float) -> Collection[Shown]:
        """See Context."""
        return (self.counts.answer(key_of(question), epoch),)

    def where_from(self, state: str, question: Question, row: Shown) -> str:
        """See Context."""
        found = self.counts.epochs(key_of(question), row)
        return f"the row is that of epochs {found[0]} to {found[1]}" if found else "no epoch has that row"


def check_fed(history: FedHistory) -> Verdict:
    """By all rules."""
    return judge(FedContext(history), FED_RULES)


def _each_row_of_the_source_stands_in_the_updates_and_no_other(context: Context) -> Iterator[str]:
    """None lost on the way, none made up, and each as it was."""
    fed = cast("FedContext", context)
    wanted, there = of_source(fed.fed.source), fed.counts.counted
    for name in wanted.keys() | there.keys():
        if wanted.get(name) != there.get(name):
            yield f"{name} of the source is {wanted.get(name)}, and {there.get(name)} in the updates topic"


def _the_end_has_what_the_source_comes_to(context: Context) -> Iterator[str]:
    """The owner of each key, and its changelog; of every copy what its epoch has."""
    fed = cast("FedContext", context)
    if fed.history.final_epoch < 0:
        yield "the cluster came to no rest after all faults had ended"
        return
    right = summed(of_source(fed.fed.source).values())
    held = [event for event in fed.history.events if isinstance(event, Held)]
    holders: Counter[tuple[str, str]] = Counter()
    for copy in held:
        holders.update((copy.role, key) for key in copy.rows)
        for key, row in copy.rows.items():
            if row != right.get(key):
                where = fed.where_from(SUMS, key, row)
                yield f"at the end, {copy.where} ({copy.role}) has {row} for {key}, not {right.get(key)}; {where}"
    for role in (OWNER, CHANGELOG):
        odd = [key for key in names(SUMS) if holders[role, key] != 1]
        if odd:
            yield f"at the end, {len(odd)} keys have no {role}, or more than one"


def _what_was_applied_is_never_taken_back(context: Context) -> Iterator[str]:
    """An answer of an owner is final: no owner of a later assignment is behind it, whatever the rows are."""
    yield from taken_back(context, rows_too=False)


def _no_bounded_answer_lacks_what_is_older(context: Context) -> Iterator[str]:
    """Of a read with max_staleness: all that Kafka had shown by then was applied."""
    fed = cast("FedContext", context)
    for read in fed.reads:
        if not read.asked.max_staleness_ms:
            continue
        before = fed.fed.wall_ms + 1000 * read.began - read.asked.max_staleness_ms - _ROUNDED_MS
        for key, claim in zip(read.keys, read.claims, strict=True):
            group = fed.counts.group_of.get(key_of(key))
            needed = 0 if group is None else fed.counts.shown_by(group, before)
            if claim.epoch < needed:
                age_ms = fed.fed.wall_ms + 1000 * read.began - claim.as_of_ms
                yield (
                    f"reader {read.reader} at {read.began:.3f} got {claim} of {key}, {age_ms:.0f} ms old then by its "
                    f"own word, and needed epoch {needed}"
                )


_SHARED = (
    "every_answer_has_the_row_of_its_epoch",
    "min_epoch_is_kept",
    "never_stale_means_the_confirmed_owner",
    "what_a_key_group_may_do_follows_from_its_state",
    "nothing_ends_by_itself",
)
_BY_NAME: Mapping[str, Rule] = {name_of(rule): rule for rule in RULES}

FED_RULES: Sequence[Rule] = (
    *(_BY_NAME[name] for name in _SHARED),
    _each_row_of_the_source_stands_in_the_updates_and_no_other,
    _the_end_has_what_the_source_comes_to,
    _what_was_applied_is_never_taken_back,
    _no_bounded_answer_lacks_what_is_older,
)
