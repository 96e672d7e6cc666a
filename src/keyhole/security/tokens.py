"""Bearer tokens of the static kind: 256 random bits each, of which the servers know the hash only.

    [[tokens]]
    name = "dashboard"
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    expires = 2027-01-01T00:00:00Z            # may be left out

`keyhole token NAME` makes a token and its entry. A salt, or a slow hash, would add nothing: nobody can guess 256 bits.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from keyhole.encoding.toml_text import decode_toml
from keyhole.errors import InvalidConfiguration
from keyhole.hints import ready

_PREFIX = "keyhole_"
_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")


class InvalidToken(Exception):
    """Why a token is not let in, in a word. For the log, not for the caller: it holds nothing of the token."""


class TokenEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bearer token that callers may bring: the SHA-256 of it, and until when it counts."""

    name: str
    sha256: str
    expires: datetime | None = None


@ready
class Tokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of the tokens that callers may bring."""

    tokens: tuple[TokenEntry, ...]

    def find(self, token: str) -> TokenEntry | None:
        """The entry of a token, expired or not. Takes as long for every token, right or wrong."""
        presented = digest(token)
        found = None
        for entry in self.tokens:
            if hmac.compare_digest(entry.sha256, presented):
                found = entry
        return found


def digest(token: str) -> str:
    """What of a token the file holds."""
    return hashlib.sha256(token.encode()).hexdigest()


def new(name: str, expires: datetime | None) -> tuple[str, str]:
    """A token, which is shown once and kept by whom it is for, and its entry in the file.

    Raises:
        InvalidConfiguration: The name can't be one.
    """
    if not _NAME.fullmatch(name):
        raise InvalidConfiguration(f"{name!r} can't name a token: letters, digits, dots, dashes, @ and _, up to 100")
    token = _PREFIX + secrets.token_urlsafe(_BYTES)
    lines = ["[[tokens]]", f'name = "{name}"', f'sha256 = "{digest(token)}"']
    if expires is not None:
        lines.append(f"expires = {expires.astimezone(UTC).isoformat(timespec='seconds')}")
    return token, "\n".join(lines) + "\n"


def load(path: str) -> Tokens:
    """Reads the file.

    Raises:
        InvalidConfiguration: It can't be read, or an entry is wrong; the message names the entry, and no hash.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise InvalidConfiguration(f"the tokens' file {path} can't be read ({why})", path=path) from error
    try:
        tokens = decode_toml(text, Tokens)
    except msgspec.DecodeError as error:
        raise InvalidConfiguration(
            f"the tokens' file {path} is not one: {error}. Make its entries with `keyhole token NAME`", path=path
        ) from error
    problems = []
    names = [entry.name for entry in tokens.tokens]
    for number, entry in enumerate(tokens.tokens, 1):
        if not _NAME.fullmatch(entry.name):
            problems.append(f"entry {number}: its name can't be one")
        if not re.fullmatch("[0-9a-f]{64}", entry.sha256):
            problems.append(f"entry {number} ({entry.name}): sha256 is not 64 hexadecimal digits; the token itself "
                            "must never stand here")  # fmt: skip
        if entry.expires is not None and entry.expires.tzinfo is None:
            problems.append(f"entry {number} ({entry.name}): expires has no time zone; write 2027-01-01T00:00:00Z")
    problems += [f"{name} is there twice" for name in sorted({name for name in names if names.count(name) > 1})]
    if problems:
        raise InvalidConfiguration(f"the tokens' file {path} is wrong: {'; '.join(problems)}", path=path)
    return tokens
