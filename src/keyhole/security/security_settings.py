"""The settings of TLS, tokens and rights that a deployable has, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from keyhole.security.credentials import Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerSettings:
    """What whoever calls others has. All files are read again when they change.

    Attributes:
        tls: "on": it speaks TLS with others, and so do its ports.
        tls_certificate: The file of its certificate (PEM), and those up to the authority; shown to all.
        tls_key: The file of its key (PEM, without a password).
        tls_ca: The file of the authorities whose certificates of others count; none: those of the operating system.
        tls_server_name: The name that the servers' certificates have, where they are found by their addresses.
        plaintext: "allow": it may send tokens, and listen, without TLS also where others than this machine reach it.
        token_file: The file of the bearer token that it shows to others.
    """

    PREFIX: ClassVar[str]

    tls: str = "off"
    tls_certificate: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    tls_server_name: str = ""
    plaintext: str = ""
    token_file: str = ""

    @property
    def credentials(self) -> Credentials:
        """What it brings to others."""
        # The settings have the names of what they are.
        given = {name: getattr(self, name) for name in Credentials.__struct_fields__}
        return Credentials(**(given | {"tls": self.tls == "on"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings(CallerSettings):
    """What a deployable that others call has beside that.

    Attributes:
        tls_client_certificates: "off": callers need no certificate, also where `tls_ca` is given.
        policy: The file of who may do what (TOML); none: everybody who can connect may do everything.
        tokens: The file of the hashes of the bearer tokens that callers may bring (TOML).
        jwks: Of those who bring a JWT: the keys that sign them, a file or an https URL.
        issuer: Of those who bring a JWT: who must have issued it.
        audience: Of those who bring a JWT: whom it must be meant for.
    """

    tls_client_certificates: str = "required"
    policy: str = ""
    tokens: str = ""
    jwks: str = ""
    issuer: str = ""
    audience: str = ""
