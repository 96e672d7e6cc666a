"""TLS as gRPC takes it. Certificates are read anew when their files change: by the server at each handshake."""

from __future__ import annotations

import grpc

from keyhole.errors import InvalidConfiguration
from keyhole.security.certificates import Material, TlsFiles, load
from keyhole.security.credentials import Credentials
from keyhole.security.reloading import Reloading


def watched(files: TlsFiles) -> Reloading[Material]:
    """The content of the files, as of now and from now on. Raises InvalidConfiguration, as `certificates.load`."""
    return Reloading("certificate", lambda: load(files), files.paths)


def server_credentials(material: Reloading[Material], *, require_client_certificate: bool) -> grpc.ServerCredentials:
    """The credentials of a port. gRPC asks at each handshake, on a thread of its own (grpc.aio, too; docs/adr).

    Args:
        require_client_certificate: One of the material's authority.

    Raises:
        InvalidConfiguration: A client's certificate is required, and there is no authority to check it by.
    """
    if require_client_certificate and not material.get().authority:
        raise InvalidConfiguration(
            "client certificates are required, and no authority is named to check them by: name its file (tls_ca)"
        )

    def configuration() -> grpc.ServerCertificateConfiguration:
        now = material.get()
        return grpc.ssl_server_certificate_configuration(
            [(now.key, now.certificate)], root_certificates=now.authority or None
        )

    return grpc.dynamic_ssl_server_credentials(configuration(), configuration, require_client_certificate)


def channel_credentials(material: Material) -> grpc.ChannelCredentials:
    """The credentials of one connection after the other, until the material changes."""
    return grpc.ssl_channel_credentials(material.authority or None, material.key or None, material.certificate or None)


def server_name_options(credentials: Credentials) -> tuple[tuple[str, str], ...]:
    """Which name a server's certificate must have, where it isn't the target's."""
    name = credentials.tls_server_name
    return (("grpc.ssl_target_name_override", name),) if name else ()
