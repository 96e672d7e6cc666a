"""Judges a history: what no schedule of faults may ever make happen. Pure; each rule is one function.

The workload is known, so the row of every key after every epoch is known. An answer is right if it has exactly the row
of the epoch that it claims, if that epoch was being committed when it was given, and if nothing told before is taken
back.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from tests.fault.context import Context
from tests.fault.history import CHANGELOG, OWNER, Contradiction, Ended, Held, History, Injected, Read
from tests.fault.mirroring_readers import MIRRORING
from tests.fault.recount import Question, Shown, key_of, whole
from tests.fault.watched_rules import WATCHED_RULES
from tests.fault.whole_rules import WHOLE_RULES
from tests.fault.workload import NOTICES, names

CLOCK_JUMP, USURP = "clock_jump", "usurp"

# Beside what any driver may end with, one of two on one checkpoint: what Spark says of it, and what we say where it has
# read the checkpoint before the other one went on.
_EXCUSED_OF_TWO = frozenset({"CONCURRENT_STREAM_LOG_UPDATE", "CHECKPOINT_MISMATCH"})
# Spark gives a processor's Python worker 10 s from its start to its first word, whatever else the machine has to do.
_SPARKS_OWN = "Python worker failed to connect back"
_SHOWN = 40

Rule = Callable[[Context], Iterator[str]]
"""Says what a history has that may not be; its name says what must."""


@dataclass(frozen=True)
class Violation:
    """`rule` names the function that found it."""

    rule: str
    text: str


@dataclass
class Verdict:
    """What a history amounts to. `violations` has the first of each rule; `violated` counts all of them."""

    answers: int = 0
    epochs: int = 0
    took_back: int = 0
    violated: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return not self.violated


def check(history: History, rules: Collection[str] = ()) -> Verdict:
    """Args: rules: By name; empty: all of them."""
    wanted = [rule for rule in RULES if not rules or name_of(rule) in rules]
    return judge(Context(history), wanted)


def judge(context: Context, rules: Sequence[Rule]) -> Verdict:
    """What these rules find."""
    verdict = Verdict(
        answers=sum(len(read.keys) for read in context.reads),
        epochs=max((step.epoch for epochs in context.epochs.values() for step in epochs.complete), default=0),
        took_back=sum(1 for _ in taken_back(context, rows_too=False)),
    )
    for rule in rules:
        name = name_of(rule)
        for text in rule(context):
            verdict.violated[name] += 1
            if verdict.violated[name] <= _SHOWN:
                verdict.violations.append(Violation(name, text))
    return verdict


def name_of(rule: Rule) -> str:
    return rule.__name__.strip("_")


def _every_answer_has_the_row_of_its_epoch(context: Context) -> Iterator[str]:
    """No answer out of thin air, no part of an epoch, nothing lost, nothing twice.

    A scan has exactly the entries that the key had after its epoch, as far as they were asked for, in their order. An
    answer that names a staged epoch has what that epoch makes of them, however often it is staged.
    """
    for read in context.reads:
        for key, row, claim in zip(read.keys, read.rows, read.claims, strict=True):
            right = context.right(read.state, key, claim.shown, read.began, read.ended)
            if row not in right:
                where = context.where_from(read.state, key, row)
                yield f"{_in_words(read, key, row)} by {claim}, where that epoch has {_either(right)}; {where}"


def _no_answer_is_told_before_its_epoch_was_being_committed(context: Context) -> Iterator[str]:
    for read in context.reads:
        for key, row, claim in zip(read.keys, read.rows, read.claims, strict=True):
            began = context.epochs[read.state].began_commit.get(claim.epoch)
            if claim.epoch and (began is None or read.ended < began):
                when = "never" if began is None else f"{began - read.ended:.3f} s later"
                yield f"{_in_words(read, key, row)} by {claim}; its commit began {when}"


def _what_is_staged_is_told_to_who_asks_for_it_and_from_its_staging_on(context: Context) -> Iterator[str]:
    """And no epoch is laid over itself, or over a later one."""
    for read in context.reads:
        began = context.epochs[read.state].began_stage
        for claim in set(read.claims):
            if not claim.staged_epoch:
                continue
            if not read.asked.latest:
                yield f"reader {read.reader} asked for what is committed, and got {claim} of {read.state}"
            if claim.staged_epoch <= claim.epoch:
                yield f"reader {read.reader} got {claim} of {read.state}, whose staged epoch is committed"
            if read.ended < began.get(claim.staged_epoch, math.inf):
                yield f"reader {read.reader} at {read.ended:.3f} got {claim} of {read.state} before that was staged"


def _min_epoch_is_kept(context: Context) -> Iterator[str]:
    for read in context.reads:
        for key, row, claim in zip(read.keys, read.rows, read.claims, strict=True):
            if claim.epoch < read.asked.min_epoch:
                yield f"{_in_words(read, key, row)} by {claim}, asked for {read.asked.min_epoch}"


def _an_epoch_that_is_asked_for_is_that_epoch(context: Context) -> Iterator[str]:
    """By its number, or as one for all that is asked for."""
    for read in context.reads:
        found = {claim.epoch for claim in read.claims}
        if read.asked.as_of_epoch and found != {read.asked.as_of_epoch}:
            yield f"reader {read.reader} at {read.began:.3f} asked for {read.asked.as_of_epoch} and got {sorted(found)}"
        if read.asked.snapshot and len(found) > 1:
            yield f"reader {read.reader} at {read.began:.3f} asked for one epoch and got {sorted(found)}"


def _never_stale_means_the_confirmed_owner(context: Context) -> Iterator[str]:
    for read in context.reads:
        if read.asked.stale != "never":
            continue
        for claim in set(read.claims):
            if claim.role != OWNER or claim.unconfirmed:
                yield f"reader {read.reader} asked for no stale answer and got one from {claim}"


def _max_staleness_is_kept(context: Context) -> Iterator[str]:
    """By the monotonic clock, which no injected jump moves."""
    for read in context.reads:
        if not read.asked.max_staleness_ms:
            continue
        needed = context.epochs[read.state].complete_at(read.began - read.asked.max_staleness_ms / 1000)
        for claim in set(read.claims):
            if claim.epoch < needed:
                yield (
                    f"reader {read.reader} at {read.began:.3f} asked for at most {read.asked.max_staleness_ms} ms and "
                    f"got {claim}, though epoch {needed} had been complete for longer"
                )


def _as_of_is_true(context: Context) -> Iterator[str]:
    """Only where all clocks agree: `as_of` is told by them."""
    if any(isinstance(event, Injected) and event.kind == CLOCK_JUMP for event in context.history.events):
        return
    for read in context.reads:
        complete = context.epochs[read.state].complete
        for claim in set(read.claims):
            index = bisect_right(complete, claim.as_of_ms - 1, key=lambda step: step.wall_ms)
            if claim.as_of_ms and index and claim.epoch < complete[index - 1].epoch:
                yield (
                    f"reader {read.reader} at {read.began:.3f} got {claim} of {read.state}, though epoch "
                    f"{complete[index - 1].epoch} was complete at {complete[index - 1].wall_ms}"
                )


def _no_owner_takes_back_what_was_told(context: Context) -> Iterator[str]:
    yield from taken_back(context, rows_too=True)


def taken_back(context: Context, *, rows_too: bool) -> Iterator[str]:
    """Answers of an owner that are older than what an owner of no later assignment had told before.

    An owner that is cut off may answer on with what it has: only its own version, and later ones, must not go back.
    Who asks for an epoch by its number, or for one that all have, may ask for the past.

    Args:
        rows_too: Only those where the answer is taken back as well: that epoch has another one. An owner speaks for the
            whole epoch as soon as it has committed its part; the next owner, of key groups that the epoch doesn't
            touch, may not know of it.
    """
    answered: dict[tuple[str, str], dict[tuple[int, int], int]] = {}
    under_way: list[tuple[float, int, Read]] = []
    of_the_last = [read for read in context.reads if not (read.asked.as_of_epoch or read.asked.snapshot)]
    for number, read in enumerate(sorted(of_the_last, key=lambda read: read.began)):
        while under_way and under_way[0][0] < read.began:
            _, _, before = heapq.heappop(under_way)
            for key, claim in zip(before.keys, before.claims, strict=True):
                if claim.role == OWNER:
                    of_key = answered.setdefault((before.state, key_of(key)), {})
                    standing = (claim.generation, claim.version)
                    of_key[standing] = max(of_key.get(standing, 0), claim.epoch)
        heapq.heappush(under_way, (read.ended, number, read))
        for key, row, claim in zip(read.keys, read.rows, read.claims, strict=True):
            if claim.role != OWNER:
                continue
            for standing, epoch in answered.get((read.state, key_of(key)), {}).items():
                if standing > (claim.generation, claim.version) or epoch <= claim.shown:
                    continue
                later = context.right(read.state, key, epoch, read.began, read.ended)
                if not rows_too or row not in later:
                    yield (
                        f"{_in_words(read, key, row)} by {claim}, after {standing} had told epoch {epoch}, with "
                        f"{_either(later)}"
                    )
                    break


def _no_mirror_goes_backwards(context: Context) -> Iterator[str]:
    """Of one mirror the answers of a key are of ever later epochs."""
    last: dict[tuple[str, str, str], int] = {}
    for read in sorted(context.reads, key=lambda read: read.began):
        if not read.reader.startswith(MIRRORING):
            continue
        for key, row, claim in zip(read.keys, read.rows, read.claims, strict=True):
            of_key = (read.reader, read.state, key_of(key))
            if claim.epoch < last.setdefault(of_key, claim.epoch):
                yield f"{_in_words(read, key, row)} by {claim}, after one of epoch {last[of_key]}"
            last[of_key] = claim.epoch


def _epochs_complete_one_after_the_other(context: Context) -> Iterator[str]:
    """Over all drivers: each epoch is the last one again, or the next; who was superseded completes nothing."""
    for state, epochs in context.epochs.items():
        last = 0
        taken_over: dict[int, int] = {}
        drivers: list[int] = []
        for step in epochs.complete:
            if step.epoch > last + 1:
                yield f"epoch {step.epoch} of {state} was complete after epoch {last}"
            # One that was suspended right after its write may tell late what it had completed before.
            if step.epoch > taken_over.get(step.pid, step.epoch):
                yield f"driver {step.pid} completed epoch {step.epoch} of {state} after another had taken over"
            if step.pid not in drivers:
                taken_over |= {pid: step.epoch for pid in drivers if pid not in taken_over}
                drivers.append(step.pid)
            last = max(last, step.epoch)


def _a_batch_that_is_run_again_reads_what_it_read_before(context: Context) -> Iterator[str]:
    """And none reads less of the broadcast state than those before it, or what there is not yet."""
    read: dict[int, int] = {}
    began = context.epochs[NOTICES].began_commit if NOTICES in context.epochs else {}
    for pinned in sorted(context.pinned, key=lambda pinned: pinned.at):
        least = max((epoch for batch, epoch in read.items() if batch < pinned.batch), default=0)
        if read.setdefault(pinned.batch, pinned.epoch) != pinned.epoch:
            yield f"batch {pinned.batch} read epoch {read[pinned.batch]} of {NOTICES}, and then {pinned.epoch}"
        if pinned.epoch < least:
            yield f"batch {pinned.batch} read epoch {pinned.epoch} of {NOTICES}, after one before it had read {least}"
        if pinned.epoch and began.get(pinned.epoch, pinned.at) >= pinned.at:
            yield f"batch {pinned.batch} read epoch {pinned.epoch} of {NOTICES} before its commit began"


def _a_batch_that_is_run_again_has_the_subtasks_that_it_had_before(context: Context) -> Iterator[str]:
    had: dict[tuple[str, int], int] = {}
    for dealt in context.dealt:
        number = had.setdefault((dealt.state, dealt.batch), dealt.subtasks)
        if dealt.subtasks != number:
            yield f"batch {dealt.batch} had {number} subtasks of {dealt.state}, and then {dealt.subtasks}"


def _what_a_key_group_may_do_follows_from_its_state(context: Context) -> Iterator[str]:
    """On every server, by the states that it has them in: what it writes, reads back, and answers for."""
    for event in context.history.events:
        if isinstance(event, Contradiction):
            yield f"{event.name} at {event.at:.3f}: {event.text}"


def _nothing_ends_by_itself(context: Context) -> Iterator[str]:
    """But drivers, which the job runner starts again, for a reason that a fault can be."""
    faults = [event for event in context.history.events if isinstance(event, Injected)]
    for event in context.history.events:
        if not isinstance(event, Ended):
            continue
        two = any(fault.kind == USURP and fault.began <= event.at for fault in faults)
        excused = context.excused | _EXCUSED_OF_TWO if two else context.excused
        if not (event.name.startswith("driver") and (event.reason in excused or _SPARKS_OWN in event.message)):
            yield f"{event.name} ended at {event.at:.3f} with {event.reason}: {event.message}"


def _the_end_equals_the_recount(context: Context) -> Iterator[str]:
    """The changelog, and every copy at its epoch; owners, and at least one copy of each key, at the last one."""
    final = context.history.final_epoch
    if final < 0:
        yield "the cluster came to no rest after all faults had ended"
        return
    holders: Counter[tuple[str, str, str]] = Counter()
    for held in context.history.events:
        if not isinstance(held, Held):
            continue
        for key, row in held.rows.items():
            asked = whole(held.state, key)
            right = context.right(held.state, asked, held.epoch, held.began, held.ended)
            if row not in right:
                where = context.where_from(held.state, asked, row)
                yield (
                    f"at the end, {held.where} ({held.role}) has {row} for {held.state} {key} as of epoch "
                    f"{held.epoch}, where that epoch has {_either(right)}; {where}"
                )
        if held.epoch != final:
            yield f"at the end, {held.where} ({held.role}) is at epoch {held.epoch} of {held.state}, not at {final}"
        holders.update((held.state, held.role, key) for key in held.rows)
    for state in context.history.states:
        for role in (OWNER, CHANGELOG):
            odd = [key for key in names(state) if holders[state, role, key] != 1]
            if odd:
                yield f"at the end, {len(odd)} keys of {state} have no {role}, or more than one"


def _in_words(read: Read, key: Question, row: Shown) -> str:
    return f"reader {read.reader} at {read.began:.3f}-{read.ended:.3f} got {row} for {read.state} {key}"


def _either(right: Collection[Shown]) -> str:
    return " or ".join(map(str, right))


RULES: tuple[Rule, ...] = (
    _every_answer_has_the_row_of_its_epoch,
    _no_answer_is_told_before_its_epoch_was_being_committed,
    _what_is_staged_is_told_to_who_asks_for_it_and_from_its_staging_on,
    _min_epoch_is_kept,
    _an_epoch_that_is_asked_for_is_that_epoch,
    _never_stale_means_the_confirmed_owner,
    _max_staleness_is_kept,
    _as_of_is_true,
    _no_owner_takes_back_what_was_told,
    _no_mirror_goes_backwards,
    _epochs_complete_one_after_the_other,
    _a_batch_that_is_run_again_reads_what_it_read_before,
    _a_batch_that_is_run_again_has_the_subtasks_that_it_had_before,
    _what_a_key_group_may_do_follows_from_its_state,
    _nothing_ends_by_itself,
    _the_end_equals_the_recount,
    *WATCHED_RULES,
    *WHOLE_RULES,
)
