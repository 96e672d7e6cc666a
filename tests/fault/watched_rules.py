"""What must be true of watches: rules of the checker, each of which says what it has found wrong. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tests.fault.context import Context
from tests.fault.history import Seen, Watched
from tests.fault.recount import SHAPES, whole
from tests.fault.workload import names

Content = Mapping[int | str | None, tuple[int, ...]]
"""Of one key: the fields of its entries by their map keys; of a value by None."""


def a_watch_tells_the_rows_of_their_epochs(context: Context) -> Iterator[str]:
    """What a row or a change has is what the recount has after its epoch, which was being committed by then. By a
    predicate, what that is not true of is no more.
    """
    for watched in context.watched:
        began = context.epochs[watched.state].began_commit
        for seen in watched.changes:
            right = _content(context, watched, seen.key, seen.epoch).get(seen.map_key)
            if seen.fields != right:
                yield f"{_in_words(watched, seen)}, where that epoch has {right}"
            if seen.epoch and (seen.epoch not in began or watched.ended < began[seen.epoch]):
                yield f"{_in_words(watched, seen)}, before its commit began"


def a_watch_tells_each_change_once_and_in_order(context: Context) -> Iterator[str]:
    """From its beginning on, however often it was left and gone on with."""
    for chain in _chains(context):
        last: dict[tuple[str, int | None], int] = {}
        for watched in chain:
            for seen in watched.changes:
                entry = (seen.key, seen.map_key)
                if seen.epoch <= last.get(entry, -1) or (seen.snapshot and entry in last):
                    yield f"{_in_words(watched, seen)}, after it was told as of epoch {last[entry]}"
                last[entry] = seen.epoch


def a_watch_misses_nothing(context: Context) -> Iterator[str]:
    """Once it says that it has all of an epoch, what it has made of its changes is what the recount has: of each key as
    of that epoch, or of the later one that its key group is at.
    """
    for chain in _chains(context):
        kept: dict[str, dict[int | str | None, Seen]] = {}
        given = set[tuple[str, int | None, int]]()
        whole_until = 0
        until: dict[str, int] = {}
        for watched in chain:
            for seen in watched.changes:
                kept.setdefault(seen.key, {})[seen.map_key] = seen
                given.add((seen.key, seen.map_key, seen.epoch))
            if watched.complete <= whole_until:
                continue
            further = dict(watched.further)
            for key in names(watched.state):
                before = until.get(key, 0)
                epoch = until[key] = max(before, further.get(key, watched.complete))
                yield from _missing(context, watched, key, kept.get(key, {}), epoch)
                for passed in range(before + 1, epoch + 1) if before else ():
                    for map_key in _changed(context, watched, key, passed):
                        if (key, map_key, passed) not in given:
                            yield f"{_by(watched)} was not told what epoch {passed} did to {key} {map_key or ''}"
            whole_until = watched.complete


def _missing(
    context: Context, watched: Watched, key: str, kept: Mapping[int | str | None, Seen], epoch: int
) -> Iterator[str]:
    right = _content(context, watched, key, epoch)
    for map_key in right.keys() | kept.keys():
        seen = kept.get(map_key)
        if seen is not None and seen.epoch > epoch:
            continue
        has = None if seen is None else seen.fields
        if has != right.get(map_key):
            yield (
                f"{_by(watched)} has {has} for {key} {map_key or ''} with all of epoch {epoch}, which has "
                f"{right.get(map_key)}"
            )


def _changed(context: Context, watched: Watched, key: str, epoch: int) -> Iterable[int | str | None]:
    before, after = (_content(context, watched, key, of) for of in (epoch - 1, epoch))
    if before == after:
        return ()
    return [of for of in before.keys() | after.keys() if before.get(of) != after.get(of)]


def _content(context: Context, watched: Watched, key: str, epoch: int) -> Content:
    answer = context.recount.answer(watched.state, whole(watched.state, key, watched.where), epoch)
    if SHAPES[watched.state].entries:
        return {entry[0]: entry[1:] for entry in answer or ()}  # type: ignore[index, misc]  # entries
    return {} if answer is None else {None: answer}  # type: ignore[dict-item]  # fields


def _chains(context: Context) -> Iterable[list[Watched]]:
    chains: dict[tuple[str, str, int], list[Watched]] = {}
    for watched in context.watched:
        chains.setdefault((watched.reader, watched.state, watched.chain), []).append(watched)
    return chains.values()


def _by(watched: Watched) -> str:
    return f"reader {watched.reader} {watched.chain} of {watched.state} at {watched.began:.3f}-{watched.ended:.3f}"


def _in_words(watched: Watched, seen: Seen) -> str:
    what = "the row" if seen.snapshot else "the change"
    return f"{_by(watched)} was told {what} {seen.fields} of {seen.key} {seen.map_key or ''} as of epoch {seen.epoch}"


WATCHED_RULES = (
    a_watch_tells_the_rows_of_their_epochs,
    a_watch_tells_each_change_once_and_in_order,
    a_watch_misses_nothing,
)
