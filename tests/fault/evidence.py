"""That planted bugs show: which rule each of them breaks, and in which answers. For test_planted.py."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from tests.fault.checker import Verdict, check
from tests.fault.direct_readers import DIRECT
from tests.fault.history import Answered, Counted, Event, Held, History, Read, Scanned, Watched
from tests.fault.mirroring_readers import MIRRORING
from tests.fault.recount import ScanOf
from tests.fault.tempers import LATEST
from tests.fault.workload import CHAINS, SPANS, STREAKS, SUMS, TALLIES, VALUES

ROWS = "every_answer_has_the_row_of_its_epoch"
END = "the_end_equals_the_recount"
EPOCHS = "an_epoch_that_is_asked_for_is_that_epoch"
COUNTS = "a_count_is_that_of_its_epochs"
LEAST = "min_epoch_is_kept"
TWICE = "a_scan_has_what_was_asked_for_once_and_in_its_order"
MISSES, ONCE = "a_watch_misses_nothing", "a_watch_tells_each_change_once_and_in_order"
TELLS = "a_watch_tells_the_rows_of_their_epochs"


def wrong_rows(history: History, state: str) -> int:
    """How many answers and copies of one state are wrong."""
    return of_state(read_by(history, _is_plain), state, {ROWS, END}).violated.total()


def read_by(history: History, kept: Callable[[Answered], bool]) -> History:
    """With these answers alone, of all that were given."""
    events: list[Event] = [event for event in history.events if not isinstance(event, Answered) or kept(event)]
    return msgspec.structs.replace(history, events=events)


def _anyhow(_: Answered) -> bool:
    return True


def _by_mirror(read: Answered) -> bool:
    return read.reader.startswith(MIRRORING)


def _looked_up_at_latest(read: Answered) -> bool:
    """A look-up of what is staged; other bugs are seen in scans."""
    return isinstance(read, Read) and read.reader == LATEST and not isinstance(read.keys[0], ScanOf)


def _of_snapshot(read: Answered) -> bool:
    """It wants all keys as of one epoch, whichever: who names one would see it, too."""
    return read.asked.snapshot


def _may_be_by_port(read: Answered) -> bool:
    """A look-up of the state that has a bug in lookup ports, where that shows."""
    look_up = isinstance(read, Read) and not isinstance(read.keys[0], ScanOf)
    return look_up and read.state == SPANS and not read.asked.latest


def _by_port(read: Answered) -> bool:
    """Likewise; who goes to the servers itself asks their ports."""
    return _may_be_by_port(read) and read.reader == DIRECT


def _whole(read: Answered) -> bool:
    return isinstance(read, Scanned | Counted)


def _is_plain(read: Answered) -> bool:
    """Mirrors, scans of all of a state, and ports have bugs of their own."""
    return not (_by_mirror(read) or _whole(read) or _may_be_by_port(read))


def of_state(history: History, state: str, rules: Collection[str]) -> Verdict:
    """What these rules find in one state."""
    kept = [
        event for event in history.events if not isinstance(event, Answered | Watched | Held) or event.state == state
    ]
    return check(msgspec.structs.replace(history, states=(state,), events=kept), rules)


@dataclass(frozen=True)
class Evidence:
    """That a planted bug shows: a rule is broken, in some of the answers of a state. `state` empty: in those of any."""

    bug: str
    rule: str
    state: str
    among: Callable[[Answered], bool] = _anyhow

    def is_in(self, history: History) -> bool:
        """Whether the rule is broken there."""
        answers = read_by(history, self.among)
        verdict = of_state(answers, self.state, {self.rule}) if self.state else check(answers, {self.rule})
        return not verdict.right


# Of what only reads in time can show. All other bugs of kinds show in every read of their states, and in the end.
EVIDENCE = (
    Evidence("expired counted", ROWS, STREAKS, _is_plain),
    Evidence("watch skips", MISSES, VALUES),
    Evidence("watch repeats", ONCE, SUMS),
    Evidence("watch of what is no more", TELLS, VALUES),
    Evidence("mirror of a part", ROWS, SPANS, _by_mirror),
    Evidence("latest without its rows", ROWS, SPANS, _looked_up_at_latest),
    Evidence("epoch passed over", EPOCHS, VALUES, _of_snapshot),
    Evidence("whole scan of two epochs", ROWS, SUMS, _whole),
    Evidence("whole scan loses a key", ROWS, CHAINS, _whole),
    Evidence("whole scan loses a key", COUNTS, CHAINS),
    Evidence("snapshot scanned at the last", EPOCHS, TALLIES, _whole),
    Evidence("kept index entry", TWICE, SPANS, _whole),
    Evidence("predicate on another row", ROWS, VALUES, _whole),
    Evidence("lookup port answers as before", ROWS, SPANS, _by_port),
    Evidence("hedge without bounds", LEAST, ""),
)


class Looks:
    """Agrees once all of EVIDENCE was seen. What one look has found the next one doesn't look for: a look at all of a
    long history takes seconds, which readers in this process then lack."""

    def __init__(self) -> None:
        self._missing = EVIDENCE

    def __call__(self, history: History) -> bool:
        self._missing = tuple(evidence for evidence in self._missing if not evidence.is_in(history))
        return not self._missing
