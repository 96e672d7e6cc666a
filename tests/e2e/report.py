"""What the tests have found: noted while they run, and written as the report that is committed (report.md).

python -m tests.e2e.report TESTS.XML FINDINGS.JSONL > report.md
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.e2e import limits

GAP, IDLE = "gap_seconds", "idle_cores"


def note(what: str, **facts: Any) -> None:
    """Prints it, and adds it to the file of KEYHOLE_E2E_FINDINGS, a line of JSON each."""
    line = json.dumps({"what": what, **facts})
    print(line)
    if path := os.environ.get("KEYHOLE_E2E_FINDINGS"):
        with Path(path).open("a") as file:
            file.write(line + "\n")


def markdown(tests: ElementTree.Element, findings: list[dict[str, Any]], day: datetime) -> Iterator[str]:
    """The report, line by line."""
    cases = list(tests.iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    ran = {_module(case) for case in cases}
    seconds = sum(float(case.get("time", 0)) for case in cases)
    yield "# End-to-end tests: the last report"
    yield ""
    yield f"Written by `tests/e2e/run` on {day:%Y-%m-%d}; what the tests do is in [test_platform.py](test_platform.py)."
    yield f"{len(cases)} tests, {len(bad)} failed, {len(skipped)} skipped, in {seconds / 60:.0f} min."
    if left_out := sorted(path.stem for path in Path(__file__).parent.glob("test_*.py") if path.stem not in ran):
        yield f"Not in this run: {', '.join(left_out)}."
    yield ""
    yield "## What was taken away, and what readers noticed"
    yield ""
    yield "A reader in the cluster asks for the same key all the time, a read every 50 ms; each answer is checked."
    yield "The gap is the longest time between two answers, and the next column that between two newer epochs."
    yield "Whole: as many pods ready as before. The limits of each step are in [limits.py](limits.py)."
    yield ""
    titles = ("what happened", "gap, s", "without a new epoch, s", "reads answered", "by", "errors")
    yield "| " + " | ".join((*titles, "whole after, s", "two epochs after, s")) + " |"
    yield "|---|---|---|---|---|---|---|---|"
    for found in findings:
        if GAP in found:
            cells = [
                found["what"],
                found[GAP],
                found["epoch_seconds"],
                found["reads"],
                counts(found["by"]),
                counts(found["errors"]),
            ]
            cells += [found["whole_after_seconds"], found["next_epochs_after_seconds"]]
            yield "| " + " | ".join(str(cell) for cell in cells) + " |"
    yield ""
    yield from errors_left(findings)
    yield "## What each container takes"
    yield ""
    yield "All pods of a component added up. Idle: the job goes on, one reader reads. Loaded: 10,000 lookups a second"
    yield "are asked for; `load` below tells how many there were."
    yield ""
    yield "| container | cores, idle | MiB, idle | cores, loaded | MiB, loaded |"
    yield "|---|---|---|---|---|"
    for found in findings:
        if IDLE in found:
            cells = [found[name] for name in (IDLE, "idle_mebibytes", "loaded_cores", "loaded_mebibytes")]
            yield "| " + " | ".join(str(cell) for cell in [found["what"].removeprefix("container "), *cells]) + " |"
    yield ""
    yield "## Other findings"
    yield ""
    for found in findings:
        if GAP not in found and IDLE not in found:
            yield f"- {found['what']}: {facts_of(found)}"
    yield ""
    yield "## Tests"
    yield ""
    yield "| test | outcome | s |"
    yield "|---|---|---|"
    for case in cases:
        outcome = "failed" if case in bad else "skipped" if case in skipped else "passed"
        yield f"| {_module(case)}: {case.get('name')} | {outcome} | {float(case.get('time', 0)):.0f} |"


def _module(case: ElementTree.Element) -> str:
    """The name of its file, without .py."""
    return case.get("classname", "").rpartition(".")[2]


def errors_left(findings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Which reads may fail, why no more of them do, and what those that failed were told."""
    yield "## Errors that are left"
    yield ""
    yield "Each step of the table asserts how many of its reads failed, whatever with"
    yield f"([limits.py](limits.py)). In most steps none may: {limits.NOTHING.why}."
    yield "For the release `platform` the recount asserts the same of all reads since the first answer."
    yield "A read may fail here:"
    yield ""
    for step, bound in limits.BOUNDS.items():
        if not bound.reasons:
            continue
        most = "one for each timeout of the gap" if bound.timeouts else "until the first answer"
        yield f"- {step}: {', '.join(sorted(bound.reasons))}, {most}; {bound.why}."
    yield ""
    said = [(found["what"], *error) for found in findings for error in found.get("said", {}).items()]
    if said:
        yield "What the last error of each reason said:"
        yield ""
        yield from (f"- {what}, {reason}: {why}" for what, reason, why in said)
        yield ""


def counts(of: Mapping[str, int]) -> str:
    """A few words of a table's cell."""
    return ", ".join(f"{name} {count}" for name, count in sorted(of.items())) or "none"


def facts_of(found: Mapping[str, Any]) -> str:
    """The facts of a finding as one line."""
    facts = ((name, value) for name, value in found.items() if name != "what")
    return ", ".join(
        f"{name.replace('_', ' ')} {counts(value) if isinstance(value, dict) else value}" for name, value in facts
    )


if __name__ == "__main__":
    results, noted = sys.argv[1:]
    lines = Path(noted).read_text().splitlines() if Path(noted).exists() else []
    root = ElementTree.parse(results).getroot()
    print("\n".join(markdown(root, [json.loads(line) for line in lines], datetime.now(UTC))))
