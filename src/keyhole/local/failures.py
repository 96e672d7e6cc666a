"""What is shown of a process that has failed: the one line that says why, the end of its log, and where the whole
is.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from keyhole.local.processes import last_words

_KEPT = 10
_MOST_CHARACTERS = 1_000
_OURS = re.compile(r"^(?:Caused by: )?keyhole\.errors\.(?P<kind>\w+): (?P<why>.+)$")
_CAUSED = re.compile(r"^Caused by: (?P<why>[\w.$]+: .+)$")
# Spark's classes need not end in either; its messages then begin with a name in brackets.
_RAISED = re.compile(
    r"^(?P<why>(?:[\w$]+\.)*[A-Z][\w$]*(?:(?:Error|Exception)(?:: .+)?|: \[[A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*\] .+))$"
)
# They only carry what others have raised; the last comes of a text that is too long for a pattern of Spark's.
_CARRIERS = re.compile(
    r"(?:[\w$]+\.)*(?:Py4J\w*|PythonException|StreamingQueryException|SparkException: Job aborted.*|StackOverflowError)"
    r"(?:: .*)?"
)
_TRACE = re.compile(r"\s|\.\.\. \d+ more|Traceback |=== |During handling|The above exception")


def root_cause(output: str) -> str:
    """The line of a process's output that says why it has ended; empty: none does.

    An error of Keyhole's, if one was raised: it says what to do. Else the cause of Spark's last error; else what was
    raised last; else what was said last.
    """
    lines = [line.rstrip() for line in output.splitlines()]
    for pattern in (_OURS, _CAUSED, _RAISED):
        for found in _matches(pattern, lines):
            return found["why"][:_MOST_CHARACTERS]
    said = (line for line in reversed(lines) if line and not _TRACE.match(line) and not _CARRIERS.fullmatch(line))
    return next(said, "")[:_MOST_CHARACTERS]


def error_of_ours(output: str) -> str:
    """The class of the error of Keyhole's that `root_cause` quotes; empty: it quotes none."""
    lines = [line.rstrip() for line in output.splitlines()]
    return next((found["kind"] for found in _matches(_OURS, lines)), "")


def _matches(pattern: re.Pattern[str], lines: list[str]) -> Iterator[re.Match[str]]:
    """The lines that say why it failed, the last one first."""
    for line in reversed(lines):
        found = pattern.match(line)
        if found is not None:
            why = found["why"]
            if not _CARRIERS.fullmatch(why) and "Traceback (most recent call last)" not in why:
                yield found


def reason(output: str, exit_code: int | None) -> str:
    """` (why)`, or nothing where a signal has ended the process: what it said last is then no reason."""
    why = root_cause(output) if exit_code is None or exit_code >= 0 else ""
    return f" ({why})" if why else ""


def tell(what: str, exit_code: int | None, output: str, log: Path, keep_in: Path) -> str:
    """The message for a person about a process that has failed.

    Args:
        what: Has happened, as the beginning of a sentence.
        exit_code: Of the process; None: it runs, or nobody knows.
        output: What the process has printed.
        log: Where that is; it may go when the process's directory does.
        keep_in: A folder for a copy of it, beside the last ones that were kept there. Made if absent.
    """
    kept = _keep(log, keep_in)
    where = f"kept in {kept}" if kept is not None else f"in {log}, and could not be kept"
    return f"{what}{reason(output, exit_code)}\nIts whole log is {where}; its end:\n{last_words(output)}"


def _keep(log: Path, folder: Path) -> Path | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / f"{log.parent.name}-{log.name}"
        shutil.copyfile(log, kept)
        others = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
        for old in others[:-_KEPT]:
            old.unlink()
    except OSError:
        return None
    return kept
