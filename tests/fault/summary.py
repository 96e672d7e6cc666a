"""What a run of many episodes amounts to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.fault.availability import LEAST_ANSWERED, Availability, availability
from tests.fault.checker import Verdict, check
from tests.fault.history import Counted, FailedRead, History, Injected, Read, Scanned
from tests.fault.recount import ScanOf

# Of an episode's violations, on the terminal: the first of each rule, and of each so many characters.
_SHOWN = 3
_WIDTH = 600


@dataclass
class Summary:
    """Adds episodes up. `without_verdict`: what kept an episode from one, by seed."""

    seeds: list[int] = field(default_factory=list)
    seconds: float = 0.0
    epochs: int = 0
    epochs_under_faults: int = 0
    reads: int = 0
    answers: int = 0
    scans: int = 0
    whole_scans: int = 0
    counts: int = 0
    selected: int = 0
    standby_answers: int = 0
    failed_reads: int = 0
    took_back: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    violated: Counter[str] = field(default_factory=Counter)
    violations: list[dict[str, object]] = field(default_factory=list)
    availability: dict[str, Availability] = field(default_factory=dict)
    without_verdict: dict[int, str] = field(default_factory=dict)
    _last: str = ""

    @property
    def right(self) -> bool:
        """Nothing was violated, and standbys answered where the owner couldn't."""
        harmless = self.availability.get("harmless", Availability())
        return not self.violated and not self.without_verdict and harmless.fraction > LEAST_ANSWERED

    def add(self, history: History, seconds: float) -> bool:
        """Judges an episode. Returns whether nothing was violated."""
        verdict = check(history)
        reads = [event for event in history.events if isinstance(event, Read)]
        failed = sum(isinstance(event, FailedRead) for event in history.events)
        faults = Counter(event.kind for event in history.events if isinstance(event, Injected))
        self.seeds.append(history.seed)
        self.seconds += seconds
        self.epochs += verdict.epochs
        self.epochs_under_faults += history.epochs_under_faults
        self.reads += len(reads)
        self.answers += verdict.answers
        self.scans += sum(isinstance(read.keys[0], ScanOf) for read in reads)
        self.whole_scans += len(history.of(Scanned))
        self.counts += len(history.of(Counted))
        self.selected += selected(history)
        self.standby_answers += sum(claim.role == "standby" for read in reads for claim in read.claims)
        self.failed_reads += failed
        self.took_back += verdict.took_back
        self.faults += faults
        self.violated += verdict.violated
        self.violations += [{"seed": history.seed, "rule": v.rule, "text": v.text} for v in verdict.violations]
        found = availability(history)
        for kind, part in found.items():
            self.availability.setdefault(kind, Availability()).add(part)
        self._last = _line(history, verdict, faults, len(reads), failed, found)
        return verdict.right

    def last(self) -> str:
        """The last episode, for a person."""
        return self._last

    def to_json(self) -> dict[str, object]:
        return {
            "seeds": self.seeds,
            "seconds": self.seconds,
            "epochs": self.epochs,
            "epochs_under_faults": self.epochs_under_faults,
            "reads": self.reads,
            "failed_reads": self.failed_reads,
            "answers_checked": self.answers,
            "of_these_scans": self.scans,
            "scans_of_whole_states": self.whole_scans,
            "counts": self.counts,
            "of_these_two_by_predicates": self.selected,
            "standby_answers": self.standby_answers,
            "epoch_claims_taken_back": self.took_back,
            "faults": dict(sorted(self.faults.items())),
            "violated": dict(self.violated),
            "violations": self.violations,
            "without_verdict": self.without_verdict,
            "availability": {kind: part.to_json() for kind, part in sorted(self.availability.items())},
        }


def selected(history: History) -> int:
    """How many scans of whole states, and counts, were by a predicate."""
    return sum(event.of.where is not None for event in history.events if isinstance(event, Scanned | Counted))


def _line(
    history: History,
    verdict: Verdict,
    faults: Counter[str],
    reads: int,
    failed: int,
    found: dict[str, Availability],
) -> str:
    harmless = found.get("harmless", Availability())
    head = (
        f"seed {history.seed}: {verdict.epochs} epochs ({history.epochs_under_faults} under faults), "
        f"{sum(faults.values())} faults {_counts(faults)}, {reads} reads, {failed} failed, {verdict.answers} answers "
        f"checked, {len(history.of(Scanned))} scans of whole states, {len(history.of(Counted))} counts, "
        f"{selected(history)} of them by predicates; harmless faults: "
        f"{harmless.fraction:.2%} answered, longest gap {harmless.longest_gap_seconds:.2f} s; "
        f"{'all right' if verdict.right else f'VIOLATED {_counts(verdict.violated)}'}"
    )
    first = (
        violation
        for rule in verdict.violated
        for violation in [v for v in verdict.violations if v.rule == rule][:_SHOWN]
    )
    return "\n".join([head, *(f"  {violation.rule}: {violation.text[:_WIDTH]}" for violation in first)])


def _counts(of: Counter[str]) -> str:
    return "(" + ", ".join(f"{kind} {count}" for kind, count in sorted(of.items())) + ")"
