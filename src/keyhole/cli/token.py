"""`keyhole token NAME --to FILE`: a bearer token for one, and what the servers' file of tokens holds of it."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from keyhole.errors import InvalidConfiguration
from keyhole.security.tokens import new


def run(name: str, to: Path, days: int | None) -> int:
    """Writes the token, and prints the entry. The token is never printed: terminals and logs keep that.

    Raises:
        InvalidConfiguration: The name can't be one, or the file is there already.
    """
    token, entry = new(name, None if days is None else datetime.now(UTC) + timedelta(days=days))
    try:
        descriptor = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise InvalidConfiguration(f"{to} can't be made ({why}); name a new file", path=to) from error
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    print(entry, end="")
    return 0
