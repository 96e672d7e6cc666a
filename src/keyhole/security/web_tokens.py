"""JWTs, as OIDC providers and Kubernetes (projected service account tokens) issue them."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import jwt

from keyhole.errors import InvalidConfiguration
from keyhole.security.hosts import is_loopback
from keyhole.security.reloading import Reloading
from keyhole.security.tokens import InvalidToken

_log = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures only: with a shared secret among them, a public key could be taken for one."""

LEEWAY_SECONDS = 30
_REFRESH_SECONDS = 300.0
_RETRY_SECONDS = 10.0
_FETCH_SECONDS = 5.0
_MAX_BYTES = 1 << 20


class Keys(Protocol):
    """The keys that sign tokens, as of now."""

    def get(self) -> jwt.PyJWKSet: ...

    @property
    def version(self) -> int:
        """A number that grows whenever they change."""
        ...

    def missing(self) -> None:
        """A key that isn't among them was named: there may be newer ones. Returns at once."""

    def close(self) -> None: ...


class WebTokens:
    """Checks JWTs: signature, issuer, audience, times. Thread-safe.

    Args:
        keys: See keys_of.
    """

    def __init__(self, keys: Keys, issuer: str, audience: str) -> None:
        self._keys = keys
        self._issuer = issuer
        self._audience = audience

    @property
    def version(self) -> int:
        """Grows whenever the keys change: what was checked by those before is to be checked again."""
        return self._keys.version

    def check(self, token: str) -> tuple[str, float]:
        """The subject, and when the token ends (seconds since 1970).

        Raises:
            InvalidToken: Its signature, times, issuer or audience are not those that are taken.
        """
        try:
            return self._checked(token)
        except jwt.PyJWTError as error:
            raise InvalidToken(type(error).__name__) from None

    def _checked(self, token: str) -> tuple[str, float]:
        header = jwt.get_unverified_header(token)
        key = self._key(header.get("kid"))
        if header.get("alg") not in ALGORITHMS or key.algorithm_name not in ALGORITHMS:
            raise jwt.InvalidAlgorithmError("an algorithm that is not accepted")
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            audience=self._audience,
            issuer=self._issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "iss", "aud", "sub"]},
        )
        return str(claims["sub"]), float(claims["exp"]) + LEEWAY_SECONDS

    def _key(self, kid: object) -> jwt.PyJWK:
        keys = self._keys.get().keys
        if kid is None and len(keys) == 1:
            return keys[0]
        for key in keys:
            if kid is not None and key.key_id == kid:
                return key
        self._keys.missing()
        raise jwt.InvalidKeyError("signed with a key that is not known")

    def close(self) -> None:
        """Ends what refreshes the keys."""
        self._keys.close()


def keys_of(where: str) -> Keys:
    """The keys in a file, read again when it changes, or at an https URL, fetched again every five minutes.

    Raises:
        InvalidConfiguration: The file holds no keys, or the URL isn't https. One that doesn't answer yet is no error:
            tokens are refused until it does.
    """
    if "://" not in where:
        return _KeyFile(where)
    url = urlsplit(where)
    if url.scheme != "https" and not (url.scheme == "http" and is_loopback(url.hostname or "")):
        raise InvalidConfiguration(f"the keys (JWKS) must come from a file or an https URL, not from {where}")
    return _Url(where)


def _parsed(content: bytes, where: str) -> jwt.PyJWKSet:
    try:
        keys = jwt.PyJWKSet.from_json(content.decode())
    except (jwt.PyJWKSetError, jwt.PyJWKError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InvalidConfiguration(f"{where} holds no keys (JWKS): {type(error).__name__}", path=where) from error
    return keys


class _KeyFile:
    def __init__(self, path: str) -> None:
        self._keys = Reloading("keys of tokens", lambda: _parsed(_read(path), path), (path,))

    def get(self) -> jwt.PyJWKSet:
        return self._keys.get()

    @property
    def version(self) -> int:
        return self._keys.versioned()[1]

    def missing(self) -> None:
        """The file is looked at anyway."""

    def close(self) -> None:
        """Part of the interface; there is no thread or connection to end."""


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise InvalidConfiguration(f"the keys (JWKS) {path} can't be read ({why})", path=path) from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Who may sign is the configured address's to say, and nobody else's."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Url:
    """Fetched on a thread of its own, which nobody waits for."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._keys: jwt.PyJWKSet | None = None
        self._content: bytes | None = None
        self.version = 0
        self._wanted = threading.Event()
        self._closed = False
        self._fetched = 0.0
        self._first = threading.Event()
        threading.Thread(target=self._run, name="keyhole-jwks", daemon=True).start()
        self._first.wait(_FETCH_SECONDS)

    def get(self) -> jwt.PyJWKSet:
        if self._keys is None:
            raise jwt.InvalidKeyError("the keys could not be fetched yet")
        return self._keys

    def missing(self) -> None:
        # Anybody can name any key: that must not make us fetch more than now and then.
        if time.monotonic() - self._fetched > _RETRY_SECONDS:
            self._wanted.set()

    def close(self) -> None:
        self._closed = True
        self._wanted.set()

    def _run(self) -> None:
        while not self._closed:
            self._fetched = time.monotonic()
            try:
                with contextlib.closing(self._opener.open(self._url, timeout=_FETCH_SECONDS)) as answer:
                    content = answer.read(_MAX_BYTES)
                if content != self._content:
                    self._keys = _parsed(content, self._url)
                    self._content = content
                    self.version += 1
            except (OSError, HTTPException, InvalidConfiguration) as error:  # urllib's errors are OSErrors
                _log.error("the keys of tokens can't be fetched", extra={"url": self._url, "reason": str(error)})
            self._first.set()
            self._wanted.wait(_REFRESH_SECONDS if self._keys is not None else _RETRY_SECONDS)
            self._wanted.clear()
