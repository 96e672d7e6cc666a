"""Percent signs in URLs: what is no escape, or spells no text, is refused. Pure.

The HTTP library takes it as it stands, so that a key in Latin-1 would be another key, which is not there.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from keyhole.errors import MalformedRequest

_NO_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")


def check_escapes(url: str) -> None:
    """Passes where each percent sign begins an escape, and all of them together are text in UTF-8.

    Args:
        url: Path and query, as they came.

    Raises:
        MalformedRequest: They are not. Nothing of them is quoted.
    """
    if "%" not in url:
        return
    if _NO_ESCAPE.search(url):
        raise MalformedRequest("the URL has a percent sign that begins no escape: the sign itself is spelled %25")
    try:
        unquote_to_bytes(url.encode("utf-8", "surrogateescape")).decode()
    except UnicodeDecodeError:
        raise MalformedRequest("what the URL has percent-encoded is no UTF-8: an ü is spelled %C3%BC") from None
