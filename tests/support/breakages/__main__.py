"""Breaks the product in small ways, one after the other, and says whether the tests notice.

    uv run python -m tests.support.breakages [--list] [--only NAME...] [--json FILE] [--jobs N]

Each is made in a copy of the working tree, so nothing is broken when this is killed. Exit code 0: all were noticed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from tests.support.breakages import BREAKAGES
from tests.support.breakages.breakage import Breakage
from tests.support.breakages.trial import Tree, Verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="tests.support.breakages", description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="name them, and break nothing")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="an area, or a part of a name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="gets a line for each verdict, as they come")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many at a time")
    parser.add_argument("--limit-seconds", type=float, default=600.0, help="of the tests of one")
    given = parser.parse_args(arguments)
    chosen = [
        of for of in BREAKAGES if not given.only or any(part == of.area or part in of.name for part in given.only)
    ]
    if not chosen:
        parser.error("there is none of these names")
    if given.list:
        for of in chosen:
            print(f"{of.area:10} {of.tier:10} {of.name} ({of.file})")
        return 0
    with given.json.open("w") if given.json else contextlib.nullcontext() as lines:
        verdicts = _verdicts(chosen, given.jobs, given.limit_seconds, lines)
    _print_table(verdicts)
    return 0 if all(verdict.outcome == "noticed" for verdict in verdicts) else 1


def _verdicts(
    breakages: Sequence[Breakage], jobs: int, limit_seconds: float, lines: TextIO | None = None
) -> list[Verdict]:
    def tell(verdict: Verdict) -> None:
        print(f"{verdict.outcome:8} {verdict.seconds:5.0f} s  {verdict.breakage.name}: {verdict.by}", flush=True)
        if lines is not None:
            print(json.dumps(_line(verdict)), file=lines, flush=True)

    with tempfile.TemporaryDirectory(prefix="keyhole-breakages-") as directory:
        trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for number in range(jobs):
            trees.put(Tree(Path(directory, str(number))))

        def verdict_of(breakage: Breakage) -> Verdict:
            tree = trees.get()
            try:
                verdict = tree.try_out(breakage, limit_seconds)
            finally:
                trees.put(tree)
            tell(verdict)
            return verdict

        with ThreadPoolExecutor(jobs) as pool:
            try:
                verdicts = list(pool.map(verdict_of, breakages))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # those under way come to their end
                raise
        # Else the machine, or the test itself, may be what failed.
        noticing = sorted({verdict.by for verdict in verdicts if verdict.outcome == "noticed"})
        failing = trees.get().failing(noticing, limit_seconds * max(1, len(noticing) // 10))
    sound = [_if_sound(verdict, failing) for verdict in verdicts]
    for before, after in zip(verdicts, sound, strict=True):
        if after != before:
            tell(after)  # the last one of a name counts
    return sound


def _if_sound(verdict: Verdict, failing: Collection[str]) -> Verdict:
    if verdict.outcome != "noticed" or verdict.by not in failing:
        return verdict
    return replace(verdict, outcome="error", by=f"{verdict.by} fails without it, too")


def _print_table(verdicts: Sequence[Verdict]) -> None:
    counts = Counter((of.breakage.area, of.breakage.tier, of.outcome) for of in verdicts)
    print(f"\n{'area':10} {'tier':10} {'noticed':>8} {'survived':>8} {'errors':>8}")
    for area, tier in sorted({(area, tier) for area, tier, _ in counts}):
        numbers = [counts[area, tier, outcome] for outcome in ("noticed", "survived", "error")]
        print(f"{area:10} {tier:10} " + " ".join(f"{number:8}" for number in numbers))
    print(f"{len(verdicts)} in all, {sum(of.outcome == 'noticed' for of in verdicts)} noticed")


def _line(verdict: Verdict) -> dict[str, object]:
    of = verdict.breakage
    return {
        "name": of.name,
        "area": of.area,
        "tier": of.tier,
        "file": of.file,
        "outcome": verdict.outcome,
        "noticed_by": verdict.by if verdict.outcome == "noticed" else "",
        "error": verdict.by if verdict.outcome == "error" else "",
        "seconds": round(verdict.seconds, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
