"""What jobs have named and stored, as a terminal may be given it."""

from __future__ import annotations

import re

# In the names, keys and values of a state: they would break lines, or control the terminal.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def written_out(text: str, but: str = "") -> str:
    """The text with control characters as Python writes them, `but` those: they stay."""
    return _CONTROL.sub(lambda found: found[0] if found[0] in but else repr(found[0])[1:-1], text)
