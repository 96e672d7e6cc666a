"""Numbers as a person writes them: `100M`, `1.2M/s`, `4KiB`. Pure."""

from __future__ import annotations

import argparse
import re

_NUMBER = re.compile(r"(\d+(?:[._]\d+)*)\s*([A-Za-z]*)")
_SCALES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_BYTES = {"": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "KiB": 2**10, "MiB": 2**20}
_QUANTITY = "write a number, with k, M, G (10^9) or T behind it: 100M"
_RATE = "write a number and a time: 1.2M/s"
_SIZE = "write bytes, with kB, MB, KiB or MiB behind them: 4KiB"


def quantity(text: str) -> float:
    """How many: 100M, 2.5k, 1000. Above 0. Raises ArgumentTypeError."""
    return _above_none(_scaled(text, text, _SCALES, _QUANTITY), text, _QUANTITY)


def rate(text: str) -> float:
    """How many a second: 1.2M/s, 71M/min, 5k/h, 1G/d. Above 0. Raises ArgumentTypeError."""
    return _above_none(_per_second(text), text, _RATE)


def rate_or_none(text: str) -> float:
    """As `rate`, or 0, with a time or without. Raises ArgumentTypeError."""
    return 0.0 if text.strip() == "0" else _per_second(text)


def size(text: str) -> float:
    """Bytes: 40, 4KiB, 1MB. Above 0. Raises ArgumentTypeError."""
    return _above_none(_scaled(text, text, _BYTES, _SIZE), text, _SIZE)


def share(text: str) -> float:
    """Above 0, at most 1. Raises ArgumentTypeError."""
    try:
        given = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number; write a share, above 0 and at most 1") from None
    if not 0 < given <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no share; write a number above 0 and at most 1")
    return given


def price(text: str) -> float:
    """0 or more, of any currency. Raises ArgumentTypeError."""
    if not re.fullmatch(r"\d+(\.\d+)?", text.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} is no price; write a number without a currency: 0.04")
    return float(text)


def _per_second(text: str) -> float:
    number, slash, unit = text.strip().partition("/")
    if not slash:
        raise argparse.ArgumentTypeError(f"{text!r} doesn't say per which time; write {text.strip()}/s, /min, /h or /d")
    if unit.strip() not in _SECONDS:
        raise argparse.ArgumentTypeError(f"{unit.strip()!r} of {text!r} is no unit of time; write /s, /min, /h or /d")
    return _scaled(number, text, _SCALES, _RATE) / _SECONDS[unit.strip()]


def _scaled(number: str, text: str, scales: dict[str, int], how: str) -> float:
    found = _NUMBER.fullmatch(number.strip())
    if found is None or found[2] not in scales or found[1].count(".") > 1:
        raise argparse.ArgumentTypeError(f"{text!r} can't be read; {how}")
    return float(found[1].replace("_", "")) * scales[found[2]]


def _above_none(given: float, text: str, how: str) -> float:
    if given == 0:
        raise argparse.ArgumentTypeError(f"{text} is nothing; {how}")
    return given
