"""What must be true of scans of whole states and of counts: rules of the checker, beside those of all reads. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tests.fault.context import Context
from tests.fault.history import Counted, Scanned
from tests.fault.recount import SHAPES, whole
from tests.fault.whole_answers import claims_by_group, keys_by_group


def a_scan_has_what_was_asked_for_once_and_in_its_order(context: Context) -> Iterator[str]:
    for scanned in context.scanned:
        places = [(key, map_key or 0) for key, map_key, _, _ in scanned.entries]
        odd = [key for key, _ in places if not scanned.of.has(key)]
        if odd:
            yield f"{_by(scanned)} got {odd}, which it has not asked for"
        if len(set(places)) < len(places):
            yield f"{_by(scanned)} got entries twice: {sorted(of for of in set(places) if places.count(of) > 1)}"
        if scanned.of.order and places != sorted(places, reverse=scanned.of.order == "descending"):
            yield f"{_by(scanned)} got {places} in another order than {scanned.of.order}"


def a_scan_has_each_key_group_as_of_one_epoch(context: Context) -> Iterator[str]:
    """However many pages it has, and whoever has given them."""
    for scanned in context.scanned:
        for group, claims in claims_by_group(scanned).items():
            if len({(claim.epoch, claim.staged_epoch) for claim in claims}) > 1:
                yield f"{_by(scanned)} got key group {group} as of several epochs: {claims}"


def a_scan_has_nothing_of_a_key_group_only_where_there_was_nothing(context: Context) -> Iterator[str]:
    """As of the epoch that was asked for, or as of any that it may have been of."""
    for scanned in context.scanned:
        claims = claims_by_group(scanned)
        for group, keys in keys_by_group(scanned.state, scanned.of).items():
            if group in claims:
                continue
            for epoch in _possible(context, scanned):
                if all(0 in _sizes(context, scanned, key, epoch) for key in keys):
                    break
            else:
                yield f"{_by(scanned)} got nothing of key group {group}, with {keys}, which has been empty in no epoch"


def a_count_is_that_of_its_epochs(context: Context) -> Iterator[str]:
    """Of each key group as of one of the epochs that it names."""
    for counted in context.counted:
        epochs = {claim.shown for claim in counted.claims}
        sums = {0}
        for keys in keys_by_group(counted.state, counted.of).values():
            of_group = {size for epoch in epochs for size in _of_keys(context, counted, keys, epoch)}
            sums = {before + size for before in sums for size in of_group}
        if counted.count not in sums:
            yield f"{_by(counted)} counted {counted.count} as of {sorted(epochs)}, which have {sorted(sums)}"


def _possible(context: Context, scanned: Scanned) -> Collection[int]:
    asked = scanned.asked
    if asked.as_of_epoch:
        return (asked.as_of_epoch,)
    epochs = context.epochs[scanned.state]
    began = {**epochs.began_commit, **(epochs.began_stage if asked.latest else {})}
    last = max((epoch for epoch, at in began.items() if at <= scanned.ended), default=0)
    return range(asked.min_epoch, max(last, asked.min_epoch) + 1)


def _of_keys(context: Context, of: Counted, keys: Collection[str], epoch: int) -> set[int]:
    sums = {0}
    for key in keys:
        sums = {before + size for before in sums for size in _sizes(context, of, key, epoch)}
    return sums


def _sizes(context: Context, of: Scanned | Counted, key: str, epoch: int) -> set[int]:
    """How many entries that are asked for the key may have: several numbers where it expires by the clock."""
    right = context.right(of.state, whole(of.state, key, of.of.where), epoch, of.began, of.ended)
    if SHAPES[of.state].entries:
        return {len(shown or ()) for shown in right}
    return {int(shown is not None) for shown in right}


def _by(of: Scanned | Counted) -> str:
    return f"reader {of.reader} of {of.state} at {of.began:.3f}-{of.ended:.3f}"


WHOLE_RULES = (
    a_scan_has_what_was_asked_for_once_and_in_its_order,
    a_scan_has_each_key_group_as_of_one_epoch,
    a_scan_has_nothing_of_a_key_group_only_where_there_was_nothing,
    a_count_is_that_of_its_epochs,
)
