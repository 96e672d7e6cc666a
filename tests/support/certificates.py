"""An authority, and certificates of it, made in a test."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from keyhole.security.certificates import TlsFiles

DAY = timedelta(days=1)


class Authority:
    """Issues certificates into files below a directory."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.now(UTC) - DAY)
            .not_valid_after(datetime.now(UTC) + 365 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = directory / f"{name}.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, name: str, *names: str, lives: timedelta = DAY, begins: timedelta = -DAY, to: str | None = None
    ) -> TlsFiles:
        """A certificate with that common name, and the DNS names and addresses.

        Args:
            lives: From now on.
            to: The name of its files; default: `name`.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        begin = min(datetime.now(UTC) + begins, datetime.now(UTC) + lives - DAY)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin if begins <= timedelta() else datetime.now(UTC) + begins)
            .not_valid_after(datetime.now(UTC) + lives)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general(one) for one in names]), False)
        certificate = builder.sign(self._key, hashes.SHA256())
        written = TlsFiles(
            str(self._directory / f"{to or name}.crt"), str(self._directory / f"{to or name}.key"), str(self.path)
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        _replace(Path(written.key), private)
        _replace(Path(written.certificate), certificate.public_bytes(serialization.Encoding.PEM))
        return written


def tls_environ(prefix: str, files: TlsFiles) -> dict[str, str]:
    """The settings of a process that has this certificate."""
    return {
        f"{prefix}TLS": "on",
        f"{prefix}TLS_CERTIFICATE": files.certificate,
        f"{prefix}TLS_KEY": files.key,
        f"{prefix}TLS_CA": files.authority,
    }


def _replace(path: Path, content: bytes) -> None:
    """As Secrets change: never half a file."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
