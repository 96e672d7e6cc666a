"""What stands between the network and one deployable's ports, gRPC and HTTP alike: TLS, and who may call.

An HTTP port is to use it so:

    context = guard.http_context()                  # None: plaintext, which `PortGuard` has allowed
    site = web.TCPSite(runner, host, port, ssl_context=context)
    ...
    caller = guard.caller_of(request)               # aiohttp's
    caller.check(Verb.READ, application, state)    # raises PermissionDenied: 403; Unauthenticated above: 401
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import Any

from keyhole.errors import InvalidConfiguration, PermissionDenied, Unauthenticated
from keyhole.security.authentication import ANYBODY, Access, AccessSettings, Caller, Presented
from keyhole.security.certificates import Material, TlsFiles, expires, load, names_of
from keyhole.security.hosts import is_loopback
from keyhole.security.reloading import Reloading
from keyhole.security.security_settings import SecuritySettings

_COUNTED = {Unauthenticated.reason: "unauthenticated", PermissionDenied.reason: "denied"}

_log = logging.getLogger(__name__)


class PortGuard:
    """Made once per deployable, before anything listens.

    Attributes:
        material: Its certificate, as the files have it; None: plaintext.
        client_certificates: Callers must show one.
        access: Knows callers; None: everybody who can connect may do everything.

    Raises:
        InvalidConfiguration: Settings contradict each other, a file can't be used, or plaintext was not chosen where
            others than this machine can connect.
    """

    def __init__(self, name: str, host: str, settings: SecuritySettings) -> None:
        prefix = settings.PREFIX
        on = settings.tls == "on"
        self._settings = settings
        _check(name, host, settings)
        self.material: Reloading[Material] | None = None
        files = self._files = TlsFiles(settings.tls_certificate, settings.tls_key, settings.tls_ca)
        if on:
            if not files.certificate:
                raise InvalidConfiguration(
                    f"{prefix}TLS=on needs a certificate: set {prefix}TLS_CERTIFICATE and {prefix}TLS_KEY"
                )
            self.material = Reloading("certificate", lambda: load(files), files.paths)
        self.client_certificates = on and bool(settings.tls_ca) and settings.tls_client_certificates == "required"
        self.access: Access | None = None
        if settings.policy:
            self.access = Access(
                AccessSettings(
                    settings.policy,
                    settings.tokens,
                    settings.jwks,
                    settings.issuer,
                    settings.audience,
                    self.client_certificates,
                )
            )
        if on and self.access is None and not self.client_certificates:
            _log.warning("everybody who can connect may do everything; set a policy", extra={"service": name})

    @property
    def asks_who(self) -> bool:
        """Who calls must show who it is, so that what one is answered is not for all others."""
        return self.access is not None or self.client_certificates

    def check_host(self, what: str, host: str) -> None:
        """Raises InvalidConfiguration: another port would be in plaintext where that was not chosen."""
        _check_plaintext(what, host, self._settings)

    def counted_by(self, note: Callable[[str], None]) -> None:
        """`note` is called with each refusal: "unauthenticated" or "denied" (keyhole.metrics.labels.REFUSALS)."""
        if self.access is not None:
            self.access.audit.on_refusal = lambda reason: note(_COUNTED[reason])

    def http_context(self) -> ssl.SSLContext | None:
        """For an HTTP server: TLS 1.2 or newer, with the certificate as its files have it at each handshake.

        None: plaintext.
        """
        if self.material is None:
            return None
        material = self.material
        first, version = material.versioned()
        listening = self._context(first)
        made = [(version, listening)]

        def newest() -> ssl.SSLContext:
            now, version = material.versioned()
            if made[0][0] != version:
                try:
                    made[:] = [(version, self._context(now))]
                except (OSError, ssl.SSLError) as error:  # the files are changing again: the next handshake has them
                    _log.warning("the certificate can't be used yet", extra={"reason": str(error)})
            return made[0][1]

        def choose(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            # Called at each handshake, also without a name: the one moment in which the context can be changed.
            connection.context = newest()

        listening.sni_callback = choose
        return listening

    def _context(self, material: Material) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._files.certificate, self._files.key)
        if self.client_certificates:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=material.authority.decode("ascii"))
        return context

    def caller_of(self, request: Any) -> Caller:
        """Who sent one of aiohttp's requests. Raises Unauthenticated."""
        tls = request.get_extra_info("ssl_object")
        return self.http_caller(request.headers.get("Authorization", ""), tls, request.remote or "")

    def http_caller(self, authorization: str, tls: Any, peer: str) -> Caller:
        """Who sent an HTTP request.

        Args:
            authorization: The header; empty: none.
            tls: The connection's ssl.SSLObject, as transports give it; None: plaintext.
            peer: Where from, for the audit log.

        Raises:
            Unauthenticated: It shows nothing, or nothing that is valid.
        """
        if self.access is None:
            return ANYBODY
        der = tls.getpeercert(binary_form=True) if tls is not None and self.client_certificates else None
        if not der:
            return self.access.caller(Presented(authorization, peer=peer))
        return self.access.caller(Presented(authorization, names_of(der), expires(der).timestamp(), peer))


def _check(name: str, host: str, settings: SecuritySettings) -> None:
    prefix = settings.PREFIX
    on = settings.tls == "on"
    _check_plaintext(name, host, settings)
    given = [field for field in ("tls_certificate", "tls_key", "tls_ca", "tls_server_name") if getattr(settings, field)]
    if not on and given:
        names = ", ".join(prefix + field.upper() for field in given)
        raise InvalidConfiguration(f"{names} without {prefix}TLS=on would do nothing: turn TLS on, or leave it out")
    if bool(settings.tls_certificate) != bool(settings.tls_key):
        raise InvalidConfiguration(f"{prefix}TLS_CERTIFICATE and {prefix}TLS_KEY belong together: set both")
    who = [field for field in ("tokens", "jwks", "issuer", "audience") if getattr(settings, field)]
    if who and not settings.policy:
        names = ", ".join(prefix + field.upper() for field in who)
        raise InvalidConfiguration(
            f"{names} says who callers are, and {prefix}POLICY is missing, which says what they may do: set it"
        )


def _check_plaintext(what: str, host: str, settings: SecuritySettings) -> None:
    prefix = settings.PREFIX
    if settings.tls != "on" and settings.plaintext != "allow" and not is_loopback(host):
        raise InvalidConfiguration(
            f"{what} would listen on {host} without TLS: set {prefix}TLS=on with a certificate, or "
            f"{prefix}PLAINTEXT=allow where something else protects the network"
        )
