"""Bytes as a person reads them. Pure."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def bytes_said(of: float) -> str:
    """As a person says it: 1.2 TiB, 14 KiB, 900 B."""
    for unit in _UNITS:
        if of < 1024 or unit == _UNITS[-1]:
            return f"{of:,.0f} {unit}" if unit == "B" or of >= 10 else f"{of:,.1f} {unit}"
        of /= 1024
    raise AssertionError("the last unit takes all")
