"""Certificates and keys from files, with everything that can be wrong with them said by name. Holds no key longer than
it must, and puts none into a message.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.errors import InvalidConfiguration

if TYPE_CHECKING:
    from cryptography import x509


@dataclass(frozen=True)
class TlsFiles:
    """What a process shows, and whom it trusts: paths of PEM files, empty where there is none.

    Attributes:
        certificate: Its own, the leaf first, then those between it and the authority.
        key: Of the leaf; not encrypted.
        authority: Whose certificates of others count; empty: those of the operating system.
    """

    certificate: str = ""
    key: str = ""
    authority: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that are named: certificate, key, authority."""
        return tuple(path for path in (self.certificate, self.key, self.authority) if path)


@dataclass(frozen=True)
class Material:
    """The content of TlsFiles, checked."""

    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)
    authority: bytes = field(default=b"", repr=False)


def load(files: TlsFiles, *, now: datetime | None = None) -> Material:
    """Reads and checks them.

    Raises:
        InvalidConfiguration: One is missing or no PEM; the key isn't the certificate's, or is encrypted; the
            certificate has expired, or is not valid yet. The message names the file.
    """
    authority = _read("authority", files.authority) if files.authority else b""
    if authority:
        _check_authority(files.authority, authority)
    if not files.certificate:
        return Material(authority=authority)
    certificate, key = _read("certificate", files.certificate), _read("key", files.key)
    _check_fit(files)
    if (certificate, key) != (_read("certificate", files.certificate), _read("key", files.key)):
        return load(files, now=now)  # they are being replaced
    _check_dates(files, certificate, now or datetime.now(UTC))
    return Material(certificate, key, authority)


def expires(certificate: bytes) -> datetime:
    """When the first certificate of a PEM text, or one in DER, ends."""
    return _read_certificate(certificate).not_valid_after_utc


def names_of(certificate: bytes) -> tuple[str, ...]:
    """The DNS names, URIs and addresses of a certificate in PEM or DER, then its common name."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    of = _read_certificate(certificate)
    names: list[str] = []
    try:
        others = of.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        pass
    else:
        names += others.get_values_for_type(x509.DNSName)
        names += others.get_values_for_type(x509.UniformResourceIdentifier)
        names += [str(address) for address in others.get_values_for_type(x509.IPAddress)]
    names += [str(name.value) for name in of.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return tuple(dict.fromkeys(names))


def _read_certificate(certificate: bytes) -> x509.Certificate:
    from cryptography import x509

    # gRPC tells of callers in PEM, and Python's own TLS in DER.
    read = x509.load_pem_x509_certificate if certificate.startswith(b"-----") else x509.load_der_x509_certificate
    return read(certificate)


def _read(what: str, path: str) -> bytes:
    if not path:
        raise InvalidConfiguration(f"a certificate is named without its {what}; name both files, or neither")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise InvalidConfiguration(
            f"the {what} {path} can't be read ({why.lower()}); mount it there, or name the right file", path=path
        ) from error


def _check_authority(path: str, pem: bytes) -> None:
    try:
        ssl.create_default_context(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise InvalidConfiguration(
            f"the authority {path} is not made of certificates in PEM; name the file of the CA that issued the others' "
            "certificates",
            path=path,
        ) from error


def _check_dates(files: TlsFiles, certificate: bytes, now: datetime) -> None:
    try:
        from cryptography import x509
    except ImportError:
        # A client may be installed without it: then the other side says what is wrong with the dates.
        return
    leaf = x509.load_pem_x509_certificate(certificate)
    if now >= leaf.not_valid_after_utc:
        raise InvalidConfiguration(
            f"the certificate {files.certificate} expired at {leaf.not_valid_after_utc.isoformat()}; renew it (the "
            "files are read again when they change)",
            path=files.certificate,
        )
    if now < leaf.not_valid_before_utc:
        raise InvalidConfiguration(
            f"the certificate {files.certificate} is valid only from {leaf.not_valid_before_utc.isoformat()} on; check "
            "this machine's clock",
            path=files.certificate,
        )


def _check_fit(files: TlsFiles) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.certificate, files.key, password=_refuse_password)
    except _Encrypted:
        problem = f"the key {files.key} is encrypted; Keyhole takes keys without a password, protected as Secrets are"
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = (
                f"the key {files.key} is not that of the certificate {files.certificate}; name the two files that "
                "were issued together"
            )
        else:
            problem = (
                f"the certificate {files.certificate} or the key {files.key} is not PEM, or is damaged; issue them "
                "again, or name the right files"
            )
    else:
        return
    raise InvalidConfiguration(problem, path=files.certificate)


class _Encrypted(Exception):
    pass


def _refuse_password() -> str:
    raise _Encrypted
