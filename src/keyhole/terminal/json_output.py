"""JSON on standard output: for programs, and for people who read it in a terminal. Letters stand in it as they are."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

# Beside those that JSON has escaped itself: what controls a terminal, ends a line for some readers, or is no character.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def print_json(value: Any) -> None:
    """Prints one line, at once. What JSON has not, times say, is text as `str` makes it."""
    sys.stdout.write(json_line(value, sys.stdout.encoding or "utf-8") + "\n")
    sys.stdout.flush()


def json_line(value: Any, encoding: str) -> str:
    """The value as one line of JSON. What the encoding can't carry is escaped (`\\u00fc`): it is the same JSON."""
    text = _ESCAPED.sub(_escaped, json.dumps(value, default=str, ensure_ascii=False))
    if _carries(encoding, text):
        return text
    return _NOT_ASCII.sub(lambda found: found[0] if _carries(encoding, found[0]) else _escaped(found), text)


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]


def _carries(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
