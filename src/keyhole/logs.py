"""JSON logs: constant messages, facts in fields. Keys and values of states are never logged."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import sys
from datetime import UTC, datetime

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, then whatever `extra=` gave."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({name: value for name, value in record.__dict__.items() if name not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


_OURS = ("keyhole", "services", "jobs")


def configure(level: str = "INFO") -> None:
    """Sends all logs of the process to standard error. Called once, by a deployable's main.

    Args:
        level: Of our own. Libraries log nothing below INFO: at DEBUG some log all that passes through them, and so
            passwords and tokens (py4j each command to Spark's JVM, HTTP clients their headers). py4j logs nothing
            below WARNING: at INFO it has a line for each call back of Spark's, and so for each batch.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    number = logging.getLevelName(level)
    root.setLevel(max(number, logging.INFO))
    logging.getLogger("py4j").setLevel(max(number, logging.WARNING))
    for name in _OURS:
        logging.getLogger(name).setLevel(level)


def tell_crashes() -> None:
    """From now on a signal that a library's own code brings on (SIGSEGV, SIGBUS) leaves the threads' stacks."""
    # Not where standard error is no file, as in a notebook.
    with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
        faulthandler.enable()
