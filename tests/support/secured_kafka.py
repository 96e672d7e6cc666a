"""A Kafka that takes only who has a password, over TLS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka
from keyhole.local.kafka_node import Listener
from keyhole.local.ports import free_ports
from tests.support.certificates import Authority

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


USER = "keyhole"


class SecuredKafka(NamedTuple):
    """One that runs.

    Attributes:
        address: With the file of settings that opens it: `kafka.properties` in its directory. One is USER there.
        plain: Where it asks nobody for a password, and everybody is User:ANONYMOUS.
    """

    address: str
    plain: str


@contextmanager
def secured_kafka(
    directory: Path, jars: Sequence[Path], java: Java, password: str, settings: Mapping[str, str] | None = None
) -> Iterator[SecuredKafka]:
    """A broker in the directory, which is its own.

    Args:
        settings: More of the broker's.
    """
    directory.mkdir(exist_ok=True)
    issued = Authority(directory).issue("kafka", "127.0.0.1")
    both = directory / "kafka.pem"
    both.write_text(Path(issued.key).read_text() + Path(issued.certificate).read_text())
    (port,) = free_ports(1)
    of = "listener.name.secured"
    settings = {
        **(settings or {}),
        "sasl.enabled.mechanisms": "PLAIN",
        f"{of}.sasl.enabled.mechanisms": "PLAIN",
        f"{of}.plain.sasl.jaas.config": f'{_PLAIN} required user_{USER}="{password}";',
        f"{of}.ssl.keystore.type": "PEM",
        f"{of}.ssl.keystore.location": str(both),
    }
    file = directory / "kafka.properties"
    file.write_text(
        f"security.protocol=sasl_ssl\nsasl.mechanism=PLAIN\nsasl.username={USER}\nsasl.password={password}\n"
        f"ssl.ca.location={issued.authority}\n"
    )
    listener = Listener("SECURED", "127.0.0.1", port, f"127.0.0.1:{port}", "SASL_SSL")
    with LocalKafka(directory / "broker", jars, java, settings=settings, more=[listener]) as broker:
        yield SecuredKafka(f"127.0.0.1:{port}?settings={file}", broker.bootstrap_servers)
