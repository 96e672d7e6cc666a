"""What somebody may have meant by a name that there isn't. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def with_the_nearest(name: str, known: Collection[str]) -> str:
    """The name, and those of `known` that are spelled nearly like it: `keygroups (is it key_groups?)`."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.8)
    return f"{name} (is it {' or '.join(near)}?)" if near else name
