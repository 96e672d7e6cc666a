"""Authentication and authorization of one port: from what a caller shows to what it may do."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from keyhole.errors import InvalidConfiguration, PermissionDenied, Unauthenticated
from keyhole.security import policy as policies
from keyhole.security import tokens as token_files
from keyhole.security.audit import Audit
from keyhole.security.policy import Policy, Rights, Verb
from keyhole.security.reloading import Reloading
from keyhole.security.tokens import InvalidToken, Tokens

if TYPE_CHECKING:
    from keyhole.security.web_tokens import WebTokens

_log = logging.getLogger(__name__)

_BEARER = "bearer "
_MAX_TOKEN = 8192
_REMEMBERED = 1024
_MAX_CACHED_STATES = 4096

REFUSED = "not allowed; ask the operator, whose audit log says more"
NOT_KNOWN = "credentials are missing, wrong or expired; bring a valid token or certificate"


class Presented(NamedTuple):
    """What a caller shows: the `authorization` header, the names of its verified certificate and that's end (seconds
    since 1970), and where it calls from."""

    authorization: str = ""
    certificate: tuple[str, ...] = ()
    certificate_expires: float | None = None
    peer: str = ""


class _CertificateNames(NamedTuple):
    names: tuple[str, ...]
    expires: float | None


class AccessSettings(NamedTuple):
    """Files and names, as SecuritySettings have them."""

    policy: str
    tokens: str = ""
    jwks: str = ""
    issuer: str = ""
    audience: str = ""
    certificates: bool = False
    """Whether callers show certificates that were verified."""


class Access:
    """Knows callers. Used from one thread, the event loop's.

    Raises:
        InvalidConfiguration: A file can't be used, or the settings contradict each other.
    """

    def __init__(self, settings: AccessSettings, audit: Audit | None = None) -> None:
        _check(settings)
        self.audit = audit or Audit()
        path = settings.policy
        self._policy: Reloading[Policy] = Reloading("policy", lambda: policies.load(path), (path,))
        self._tokens: Reloading[Tokens] | None = None
        if settings.tokens:
            tokens = settings.tokens
            self._tokens = Reloading("tokens", lambda: token_files.load(tokens), (tokens,))
            self._warn_of_unknown(self._policy.get(), self._tokens.get())
        self._web: WebTokens | None = None
        if settings.jwks:
            # Not at the top: a port that takes no JWTs needs none of it.
            from keyhole.security.web_tokens import WebTokens, keys_of

            self._web = WebTokens(keys_of(settings.jwks), settings.issuer, settings.audience)
        # By hash of the token: a signature costs far more to check than to remember.
        self._remembered: OrderedDict[bytes, tuple[tuple[int, int], _CertificateNames]] = OrderedDict()
        self._rights: OrderedDict[tuple[str, ...], tuple[Rights, int]] = OrderedDict()

    def caller(self, shown: Presented) -> Caller:
        """Who this is.

        Raises:
            Unauthenticated: It shows nothing, or what it shows isn't valid. The audit log has why.
        """
        identity = self.identify(shown)
        return Caller(self, identity.names, identity.expires, shown)

    def identify(self, shown: Presented) -> _CertificateNames:
        """Who is presented, by certificate, token or both; raises as `caller`."""
        names = tuple(f"certificate:{name}" for name in shown.certificate)
        expires = shown.certificate_expires if names else None
        if expires is not None and time.time() >= expires:
            raise self.unknown(shown, "its certificate has expired")
        if shown.authorization and (self._tokens is not None or self._web is not None):
            of_token = self._of_token(shown)
            names += of_token.names
            ends = [end for end in (expires, of_token.expires) if end is not None]
            expires = min(ends, default=None)
        if not names:
            raise self.unknown(shown, "it shows neither a token nor a certificate")
        return _CertificateNames(names, expires)

    def rights(self, names: tuple[str, ...]) -> tuple[Rights, int]:
        """What somebody may do by now, and a number that grows whenever the policy changes."""
        policy, version = self._policy.versioned()
        known = self._rights.get(names)
        if known is None or known[1] != version:
            known = policy.of(names), version
            self._rights[names] = known
            if len(self._rights) > _REMEMBERED:
                self._rights.popitem(last=False)
        return known

    @property
    def policy_version(self) -> int:
        """Grows with each policy that is read; see `rights`."""
        return self._policy.versioned()[1]

    def unknown(self, shown: Presented, why: str) -> Unauthenticated:
        """The error, once it is in the audit log."""
        self.audit.refusal(Unauthenticated.reason, peer=shown.peer, why=why)
        return Unauthenticated(NOT_KNOWN)

    def close(self) -> None:
        """Stops fetching the keys of JWTs."""
        if self._web is not None:
            self._web.close()

    def _of_token(self, shown: Presented) -> _CertificateNames:
        scheme, token = shown.authorization[: len(_BEARER)], shown.authorization[len(_BEARER) :].strip()
        # HTTP lets any bytes through, and what is no text can not even be hashed.
        if scheme.lower() != _BEARER or not token.isascii() or not token or len(token) > _MAX_TOKEN:
            raise self.unknown(shown, "its authorization is no bearer token")
        key = hashlib.sha256(token.encode()).digest()
        version = (
            self._tokens.versioned()[1] if self._tokens is not None else 0,
            self._web.version if self._web is not None else 0,
        )
        known = self._remembered.get(key)
        if known is None or known[0] != version:
            identity = self._checked(token, shown)
            self._remembered[key] = version, identity
            if len(self._remembered) > _REMEMBERED:
                self._remembered.popitem(last=False)
        else:
            identity = known[1]
            self._remembered.move_to_end(key)
        if identity.expires is not None and time.time() >= identity.expires:
            raise self.unknown(shown, f"{identity.names[0]} has expired")
        return identity

    def _checked(self, token: str, shown: Presented) -> _CertificateNames:
        if self._tokens is not None and (entry := self._tokens.get().find(token)) is not None:
            return _CertificateNames(
                (f"token:{entry.name}",), None if entry.expires is None else entry.expires.timestamp()
            )
        if self._web is None:
            raise self.unknown(shown, "its token is not among those that are known")
        try:
            subject, expires = self._web.check(token)
        except InvalidToken as error:
            raise self.unknown(shown, f"its token is not valid ({error})") from None
        return _CertificateNames((f"jwt:{subject}",), expires)

    def _warn_of_unknown(self, policy: Policy, tokens: Tokens) -> None:
        named = {name for name in policy.identities() if name.startswith("token:")}
        if missing := sorted(named - {f"token:{entry.name}" for entry in tokens.tokens}):
            _log.warning("the policy names tokens that there are none of", extra={"tokens": missing})


class Caller:
    """One caller, for the length of one call or stream. Decisions are kept, and made again when the policy changes."""

    __slots__ = ("_access", "_cache", "_rights", "_shown", "_version", "expires", "method", "names")

    def __init__(self, access: Access | None, names: tuple[str, ...], expires: float | None, shown: Presented) -> None:
        self.names = names
        self.expires = expires
        self.method = ""
        self._access = access
        self._shown = shown
        self._cache: dict[tuple[Verb, str, str], bool] = {}
        if access is not None:
            self._rights, self._version = access.rights(names)

    @property
    def is_anybody(self) -> bool:
        """Nobody is asked who they are here."""
        return self._access is None

    def check(self, verb: Verb, application: str, state: str) -> None:
        """Passes where the caller may. Raises PermissionDenied where not, whether or not the state exists. The audit
        log has it.
        """
        if not self.may(verb, application, state):
            raise self.denied(verb, application, state)

    def may(self, verb: Verb, application: str, state: str) -> bool:
        """Whether it may. Quick: asked for every frame of lookups."""
        access = self._access
        if access is None:
            return True
        if access.policy_version != self._version:
            self._rights, self._version = access.rights(self.names)
            self._cache.clear()
        key = (verb, application, state)
        allowed = self._cache.get(key)
        if allowed is None:
            allowed = self._rights.may(verb, application, state)
            if len(self._cache) < _MAX_CACHED_STATES:
                self._cache[key] = allowed
        return allowed

    def may_see(self, application: str, state: str) -> bool:
        """Whether it may know of the state at all."""
        return self._access is None or self._now().may_see(application, state)

    def may_everywhere(self, *verbs: Verb) -> bool:
        """Whether an entry allows one of the verbs for all states."""
        return self._access is None or any(self._now().may_everywhere(verb) for verb in verbs)

    def check_everywhere(self, *verbs: Verb) -> None:
        """Passes where an entry allows one of the verbs for all states. Raises PermissionDenied where none does."""
        if not self.may_everywhere(*verbs):
            raise self.denied(verbs[0], "*", "*")

    def check_administers(self, application: str = "*", state: str = "*") -> None:
        """Passes for who has the verb admin for the state. Raises PermissionDenied for others, the platform too.

        Args:
            application, state: "*": for all there are, or will be.
        """
        if self._access is not None and not self._now().administers(application, state):
            raise self.denied(Verb.ADMIN, application, state)

    def check_infrastructure(self) -> None:
        """Passes for the platform, administrators, and those that write a state. Raises PermissionDenied for others."""
        if self._access is None:
            return
        rights = self._now()
        if not (rights.platform or rights.may_everywhere(Verb.ADMIN) or rights.may_somewhere(Verb.WRITE)):
            raise self.denied(Verb.PLATFORM, "*", "*")

    def denied(self, verb: Verb, application: str, state: str) -> PermissionDenied:
        """The error, once it is in the audit log."""
        assert self._access is not None
        self._access.audit.refusal(
            PermissionDenied.reason,
            peer=self._shown.peer,
            who=self.names[0],
            method=self.method,
            verb=verb,
            application=application,
            state=state,
        )
        return PermissionDenied(REFUSED)

    def still_known(self) -> bool:
        """Whether what it showed at the beginning would let it in now."""
        if self._access is None:
            return True
        try:
            return self._access.identify(self._shown).names == self.names
        except Unauthenticated:
            return False

    def _now(self) -> Rights:
        assert self._access is not None
        if self._access.policy_version != self._version:
            self._rights, self._version = self._access.rights(self.names)
            self._cache.clear()
        return self._rights


ANYBODY = Caller(None, (), None, Presented())
"""Where nobody is asked who they are."""

_current: ContextVar[Caller] = ContextVar("keyhole_caller", default=ANYBODY)

current: Callable[[], Caller] = _current.get
"""Who called what is running now; where nobody is asked who they are, a caller who may do everything."""

become: Callable[[Caller], object] = _current.set
"""For whoever has found out who calls, before it goes on in the same task."""


def _check(settings: AccessSettings) -> None:
    problems = []
    if not (settings.tokens or settings.jwks or settings.certificates):
        problems.append(
            "a policy needs callers who can say who they are: tokens, jwks, or TLS with tls_ca and client certificates"
        )
    if settings.jwks and not (settings.issuer and settings.audience):
        problems.append("jwks without issuer and audience would take tokens that were made for somebody else: set both")
    if not settings.jwks and (settings.issuer or settings.audience):
        problems.append("issuer and audience are about JWTs: set jwks too, or leave them out")
    if problems:
        raise InvalidConfiguration("; ".join(problems))
