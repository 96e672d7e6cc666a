"""What a caller brings: the authority it trusts, the certificate it shows, the token it sends. Paths, never secrets."""

from __future__ import annotations

import msgspec

from keyhole.addresses import host_of
from keyhole.errors import InvalidConfiguration
from keyhole.security.certificates import TlsFiles
from keyhole.security.hosts import is_loopback

_MAX_TOKEN_BYTES = 8192


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """How to connect, for `Client(..., credentials=...)`. Only names of files: it may be logged, pickled and shown.

    The files are read again when they change, and what they hold then counts for the next connection and the next call.

    Attributes:
        tls: Whether to speak TLS.
        tls_ca: The file of the authorities that the servers' certificates come from; empty: the operating system's.
        tls_certificate, tls_key: The files of the caller's own certificate, where the servers ask for one.
        tls_server_name: The name that a server's certificate must have, where it is not the one that is connected to:
            for servers that are found by their addresses.
        token_file: The file of a bearer token.
        plaintext: "allow" sends the token also without TLS to hosts other than this one.
    """

    tls: bool = True
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_server_name: str = ""
    token_file: str = ""
    plaintext: str = ""

    @property
    def files(self) -> TlsFiles:
        """The files that TLS needs."""
        return TlsFiles(self.tls_certificate, self.tls_key, self.tls_ca)

    def check(self, target: str) -> None:
        """Raises InvalidConfiguration: They contradict each other, or would send the token to `target` in the clear."""
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise InvalidConfiguration(
                "tls_certificate and tls_key belong together: name the files of both, or of neither"
            )
        if not self.tls and (given := [name for name in _OF_TLS if getattr(self, name)]):
            raise InvalidConfiguration(f"{', '.join(given)} without TLS has no meaning: turn TLS on, or leave it out")
        if self.token_file and not self.tls and self.plaintext != "allow" and not is_loopback(host_of(target)):
            raise InvalidConfiguration(
                f"the token would be sent to {target} for everybody on the way to read: turn TLS on, or say "
                "plaintext=allow where something else protects the connection"
            )


_OF_TLS = ("tls_ca", "tls_certificate", "tls_key", "tls_server_name")

PLAIN = Credentials(tls=False)
"""No TLS, no token: what counts where nothing is given."""


def read_token(path: str) -> str:
    """The token in a file.

    Raises:
        InvalidConfiguration: It can't be read, is empty, or holds anything but one token. The message has nothing of
            its content.
    """
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - bounded: a wrong path may be endless
            content = file.read(_MAX_TOKEN_BYTES + 1)
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise InvalidConfiguration(
            f"the token's file {path} can't be read ({why}); mount it there, or name the right file", path=path
        ) from error
    token = content.strip()
    if not token or len(content) > _MAX_TOKEN_BYTES or not all(0x21 <= byte < 0x7F for byte in token):
        raise InvalidConfiguration(
            f"the file {path} holds no token: one line of letters, digits and signs, not over {_MAX_TOKEN_BYTES} bytes",
            path=path,
        )
    return token.decode("ascii")
